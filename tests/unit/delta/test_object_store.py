"""The object store on a local disk."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import DISK, ByteStore, Call
from support.handles import Killed, die
from support.power_cut import Effects, left_after
from support.tables import parquet_bytes

from spark_mq.delta.object_store import ObjectStore, absolute_path, join
from spark_mq.errors import InvalidOption


@pytest.fixture(params=[True, False], ids=["durable", "not durable"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "root"), durable=request.param)


def names(store: ObjectStore) -> list[str]:
    """Every name on the disk below the root, temporary files included."""
    root = Path(store.root)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_loop_of_links_is_out_of_reach_and_not_missing(store: ObjectStore) -> None:
    """So an automatic mount looks that failed. A missing file would make its messages dead."""
    store.write("file", b"")
    os.symlink("loop", Path(store.root, "loop"))
    for method in (store.read, store.open):
        with pytest.raises(OSError, match="symbolic links") as caught:
            method("loop")
        assert not isinstance(caught.value, FileNotFoundError)


def test_a_file_that_vanishes_during_a_listing_is_left_out(store: ObjectStore) -> None:
    store.write("a", b"")
    os.symlink("nowhere", join(store.root, "b"))  # listed, but without a file behind it
    assert [info.path for info in store.list("")] == ["a"]
    assert [info.path for info in store.list_all()] == ["a"]


def test_files_and_empty_folders_behind_a_link_out_of_the_root_are_none_of_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "outside" / "empty").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_bytes(b"")
    store.write("kept", b"1")
    Path(store.root, "link").symlink_to(tmp_path / "outside")
    Path(store.root, "inside", "empty").mkdir(parents=True)
    assert [info.path for info in store.list_all()] == ["kept"]
    store.delete_empty_folders(["link", "link/empty", "inside"])
    assert (tmp_path / "outside" / "empty").is_dir()
    assert not Path(store.root, "inside").exists()


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_any_damage_of_a_parquet_file_is_one_kind_of_error(
    store: ObjectStore, compression: str
) -> None:
    rng = random.Random(compression)
    rows = pa.table({"text": [f"text {n % 7} of {n}" for n in range(300)], "n": range(300)})
    sound = parquet_bytes(rows, compression=compression, store_schema=False)
    seen: set[str] = set()
    for _ in range(300):
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        store.write("file.parquet", bytes(data))
        try:
            store.read_parquet("file.parquet", rows.schema).to_pylist()
        except pa.ArrowInvalid as error:
            seen.add(f"{str(error).partition(':')[0]} by {type(error.__cause__).__name__}")
        except MemoryError:  # a page that claims too much
            continue
    assert "file.parquet is damaged by OSError" in seen


class Recording:
    """Records each effect on the disk."""

    def __init__(self, disk: ByteStore) -> None:
        self.effects = Effects()
        self.restart()
        disk.on(*DISK, act=self._act)

    def restart(self, *, fails_at: int = -1, crash: bool = True) -> None:
        """Count from here on. Raise at an effect and, in a crash, then on."""
        self.fails_at, self.crash = fails_at, crash
        self.steps = list[str]()
        self.failed = ""

    @property
    def syncs(self) -> int:
        return sum(step.startswith("sync") for step in self.steps)

    def left(self, path: str, *, keeps_names: bool, after: int | None = None) -> bytes | None:
        """Return what a power cut leaves of a file, at the end or after so many effects."""
        count = len(self.effects.done) if after is None else after
        return left_after(self.effects, count, keeps_names=keeps_names).get(path)

    def _act(self, call: Call) -> None:
        if call.verb == "write_new" and not os.path.isdir(os.path.dirname(call.path)):
            raise FileNotFoundError(call.path)
        self.steps.append(call.verb)
        if (self.failed and self.crash) or len(self.steps) - 1 == self.fails_at:
            self.failed = call.verb
            raise Killed if self.crash else OSError(errno.EIO, "test")
        self.effects.record(call)


@pytest.fixture
def recording(byte_store: ByteStore) -> Recording:
    return Recording(byte_store)


DATA = b"x" * 5000


def survives(recording: Recording, path: str) -> bool:
    """Whether no power cut shows half of a file, and none after the last effect loses it."""
    counts = range(len(recording.effects.done) + 1)
    shown = {recording.left(path, keeps_names=True, after=count) for count in counts}
    return shown <= {None, DATA} and recording.left(path, keeps_names=False) == DATA


OPERATIONS = pytest.mark.parametrize("operation", ["create", "write"])


@OPERATIONS
def test_no_power_cut_loses_a_file_or_shows_half_of_it(
    operation: str, tmp_path: Path, recording: Recording
) -> None:
    store = ObjectStore(f"{tmp_path}/new/root")
    getattr(store, operation)("a/b/file", DATA)
    assert survives(recording, f"{tmp_path}/new/root/a/b/file")
    assert recording.syncs == 6  # file, its folder, and the entries of b, a, root and new


def test_a_folder_that_another_process_made_is_synced_too(
    tmp_path: Path, recording: Recording
) -> None:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    ObjectStore(f"{tmp_path}/root").create("a/b/file", b"")
    synced = {one.path for one in recording.effects.done if one.verb == "sync_folder"}
    assert synced == {f"{tmp_path}{end}" for end in ("", "/root", "/root/a", "/root/a/b")}


def commit(store: ObjectStore, name: str) -> None:
    """Write a data file without a sync, and create the log entry that names it."""
    store.write(f"data/{name}", DATA, sync=False)
    store.create(f"log/{name}", b"y", after=[f"data/{name}"])


def lost_data(recording: Recording, root: str) -> bool:
    """Whether a power cut can show the log entry of the second commit without its data file."""
    for count in range(len(recording.effects.done) + 1):
        # Of two names that were not synced a cut may keep one and lose the other.
        entry = recording.left(f"{root}/log/2", keeps_names=True, after=count)
        data = recording.left(f"{root}/data/2", keeps_names=False, after=count)
        if entry == b"" or (entry is not None and data != DATA):
            return True
    return recording.left(f"{root}/log/2", keeps_names=False) is None


def test_a_file_without_a_sync_is_durable_before_the_entry_that_names_it(
    tmp_path: Path, recording: Recording
) -> None:
    store = ObjectStore(str(tmp_path))
    commit(store, "1")
    recording.restart()
    commit(store, "2")
    assert not lost_data(recording, str(tmp_path))
    assert recording.syncs == 4, "both files, and both folders"


def test_a_failed_sync_of_a_data_file_creates_no_entry(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    def fail(call: Call) -> None:
        if "/data/" in call.path:
            raise OSError(errno.EIO, "test")

    byte_store.on("sync_file", act=fail)
    store = ObjectStore(str(tmp_path))
    with pytest.raises(OSError, match="test"):
        commit(store, "1")
    assert not store.exists("log/1")
    assert os.listdir(tmp_path / "log") == []


def test_syncs_at_the_end_of_the_interpreter_run_in_the_calling_thread(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def submit(self, *_: Any) -> None:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("spark_mq.delta.local_files._syncing", [Ended()])
    commit(ObjectStore(str(tmp_path)), "1")
    synced = [one.path for one in recording.effects.done if one.verb == "sync_file"]
    assert f"{tmp_path}/data/1" in synced


@OPERATIONS
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "error"])
@pytest.mark.parametrize("step", range(9))
def test_a_failure_at_any_step_leaves_no_half_file(
    operation: str, crash: bool, step: int, tmp_path: Path, recording: Recording
) -> None:
    store = ObjectStore(str(tmp_path / "root"))
    if operation == "write":
        store.write("a/file", b"old")
    recording.restart(fails_at=step, crash=crash)
    try:
        getattr(store, operation)("a/file", DATA)
        failed = False
    except (Killed, OSError):
        failed = True
    failed_at = recording.failed
    recording.restart()
    content = store.read("a/file") if store.exists("a/file") else None
    assert content in ((None, DATA) if operation == "create" else (b"old", DATA))
    assert failed or content == DATA
    assert store.list("a") == ([store.stat("a/file")] if content is not None else [])
    if not crash and failed_at not in ("", "unlink"):
        assert [name for name in names(store) if name.endswith(".tmp")] == []
    store.write("a/file", b"next")  # and the way is free
    assert store.read("a/file") == b"next"


def test_a_disk_without_hard_links_is_named(tmp_path: Path, byte_store: ByteStore) -> None:
    def refuse(call: Call) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), call.path)

    byte_store.on("link", act=refuse)
    store = ObjectStore(str(tmp_path))
    with pytest.raises(OSError, match="refuses hard links"):
        store.create("file", b"")
    assert names(store) == []


def test_stale_temporaries_are_hidden_and_deleted_by_age(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    byte_store.on("link", act=lambda _: die())
    store = ObjectStore(str(tmp_path))
    with pytest.raises(Killed):
        store.create("a/file", b"x")
    left = names(store)
    assert len(left) == 1
    assert left[0].startswith("a/.spark_mq-")
    assert store.list("a") == []
    assert store.list_all() == []
    store.write("a/.hidden.tmp", b"another program's")
    assert store.delete_stale_temporaries("a", 3600) == 0
    assert names(store) == ["a/.hidden.tmp", *left]
    assert store.delete_stale_temporaries("", 0) == 0
    assert store.delete_stale_temporaries("a", 0) == 1
    assert names(store) == ["a/.hidden.tmp"]
    assert store.delete_stale_temporaries("missing", 0) == 0


# --- Paths of roots ---


def test_absolute_path_makes_local_paths_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_path("a/../b") == str(tmp_path / "b")
    assert absolute_path(Path("b")) == str(tmp_path / "b")
    assert absolute_path(Path()) == str(tmp_path)
    for uri in ("file:///a b", "file:/a b", "FILE:///a b"):
        assert absolute_path(uri) == "/a b"
    assert absolute_path("file:///") == "/"


@pytest.mark.parametrize("name", ["a b", "a+b", "ü", "a%b", "a#b", "é日本"])
def test_the_uri_of_a_folder_names_it(name: str) -> None:
    if "%" not in name:  # pathlib decodes nothing
        assert absolute_path(Path("/", name).as_uri()) == f"/{name}"
    assert absolute_path(f"file:///{name}") == f"/{name}"
    assert ObjectStore(Path("/", name).as_uri()).root == f"/{name}"


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute_path("~/q") == absolute_path(Path("~/q")) == "/home/me/q"
    assert absolute_path("~") == "/home/me"
    assert absolute_path("/a/~/b~") == "/a/~/b~"
    assert absolute_path("s3://b/~/q") == "s3://b/~/q"


NO_PLACE = {
    "target is empty": ["", " "],
    "target=.* is not a path: give text": [b"queue", 7, None, ["queue"]],
    r"target=.*variable \$.*expandvars": [
        "$HOME/q", "${HOME}/q", "/data/$ENV/q", "/data/$ENV", "s3://b/$ENV/q", "file:/$A",
    ],
    "target='~nobody-here/q' names the home of a user": ["~nobody-here/q"],
    "s3, s3a, gs, az, abfs, abfss, adl, azure.*hdfs is not supported": [
        "hdfs://h/a", "https://h/a", "https://a.blob.core.windows.net/", "memory://a",
        "http://h/a", "file://h/a", "dbfs:/a", "s3:/b", "s3:///a",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "why"), [(path, why) for why, paths in NO_PLACE.items() for path in paths]
)
def test_a_path_that_names_no_place_is_refused(path: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why) as caught:
        absolute_path(path, "target")
    assert caught.value.data["option"] == "target"


@pytest.mark.parametrize(
    "path",
    ["/a$b", "/$", "/a/$b$", "/c$HOME/d", "/a {b}, c* d?", "/'; DROP TABLE leases; --", '/a"b`c'],
)
def test_odd_characters_within_a_name_are_part_of_it(path: str) -> None:
    assert absolute_path(path) == absolute_path(f"file://{path}") == path


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "S3"])
def test_absolute_path_keeps_supported_uris(scheme: str) -> None:
    assert absolute_path(f"{scheme}://bucket/a b/ü/") == f"{scheme}://bucket/a b/ü"
    # Only Azure drops a dot at the end of a folder.
    assert absolute_path("s3://bucket/a./b.") == "s3://bucket/a./b."


AMBIGUOUS = ["/a?token=hush", "/a#x", "//a", "/a//c", "/a/../c", "/.", "/a\n"]


@pytest.mark.parametrize(
    "uri",
    [
        *(f"s3://b{end}" for end in AMBIGUOUS),
        *("s3://b/\udcff", "s3://key:hush@b/a", "http://key:hush@b/a"),
        *("az://b/a.", "abfss://c@d/a./b", "az://c/a\\b", "abfss://c@d/a%5cb", "adl://b/a../"),
        "https://a.blob.core.windows.net/c/q?sv=1&sig=hush",
    ],
)
def test_a_uri_that_names_another_place_is_refused(uri: str) -> None:
    for use in (absolute_path, ObjectStore):
        with pytest.raises(InvalidOption) as caught:
            use(uri)
        assert "hush" not in str(caught.value)


def test_join_puts_one_slash_between() -> None:
    assert join("/a", "b") == join("/a/", "b") == "/a/b"
    assert join("s3://b/", "c") == "s3://b/c"
