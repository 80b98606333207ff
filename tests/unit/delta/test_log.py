"""The log client: following, the conflict rule, lost replies, guards, and what other engines
read.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.byte_store import ByteStore, Call, Injected
from support.clocks import MachineClocks
from support.limits import Limits, keeping
from support.rule_variants import first, rule_variant
from support.tables import parquet_bytes
from support.thrift import decode

from spark_mq.delta.actions import AddFile, Change, checkpoint_path, log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState, last_checkpoint
from spark_mq.delta.tables import (
    checkpoint_soon,
    create_table,
    wait_for_checkpoints,
    write_checkpoint,
)
from spark_mq.errors import (
    CommitConflict,
    ContentionTimeout,
    CorruptLog,
    NotAQueue,
    StorageError,
    UnsupportedTable,
)
from spark_mq.storage.ledger_table import LedgerTable

SCHEMA = pa.schema([("part", pa.string()), ("value", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = ObjectStore(str(tmp_path / "table"))
    assert create_table(made, SCHEMA, description="d", partition_by=["part"])
    return made


def remote(root: str) -> ObjectStore:
    """A local folder that is taken for an object store: looks are requests there, and left out."""
    store = ObjectStore(root)
    store.is_local = False
    return store


def fail(byte_store: ByteStore, store: ObjectStore, verb: str, *errors: OSError) -> None:
    """Let the next calls fail without doing anything."""
    left = list(errors)

    def act(call: Call) -> Any:
        if left:
            raise left.pop(0)
        return call.run()

    byte_store.on(verb, act=act, of=store)


@pytest.fixture
def log(store: ObjectStore) -> DeltaLog:
    return DeltaLog(store)


def change(name: str, part: str = "a", **options: Any) -> Change:
    path = f"part={part}/{name}.parquet"
    adds = options.pop("adds", (AddFile(path, 1, 1, {"part": part}),))
    return Change(name, {"operation": name}, adds=adds, **options)


def other(store: ObjectStore, *changes: Change) -> None:
    """Commit as another writer does."""
    for one in changes:
        log = DeltaLog(ObjectStore(store.root))
        log.commit(one, log.refresh().version)


def paths(log: DeltaLog) -> set[str]:
    return {file.path for file in log.refresh().files()}


# -- following


@pytest.mark.parametrize("error", [FileExistsError("412"), OSError("500"), TimeoutError("reset")])
def test_a_table_whose_creation_landed_without_its_reply_is_created(
    tmp_path: Path, byte_store: ByteStore, error: OSError
) -> None:
    made = ObjectStore(str(tmp_path / "table"))
    byte_store.inject("create", fail=error)
    assert create_table(made, SCHEMA, description="d")
    assert DeltaLog(made).refresh().description == "d"


def test_the_creation_of_a_table_is_tried_again_over_a_store(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    made = remote(str(tmp_path / "table"))
    fail(byte_store, made, "create", OSError("503"), TimeoutError("reset"))
    assert create_table(made, SCHEMA, description="d")
    fail(byte_store, made, "create", OSError("503"))
    assert not create_table(made, SCHEMA, description="other")


def test_no_table_is_none_to_open_and_an_error_to_refresh(tmp_path: Path) -> None:
    log = DeltaLog(ObjectStore(str(tmp_path / "none")))
    assert log.open() is None
    with pytest.raises(NotAQueue):
        log.refresh()


@pytest.mark.parametrize("track_files", [True, False])
def test_a_cold_start_reads_the_checkpoint_and_the_commits_after_it(
    store: ObjectStore, track_files: bool
) -> None:
    other(store, change("one", txns=[("app", 7)]), change("two"))
    assert write_checkpoint(store) == 2 == last_checkpoint(store)
    other(store, change("three", removes=[AddFile("part=a/one.parquet", 1, 1, {"part": "a"})]))
    for version in range(3):
        if version != 2:
            store.delete(log_path(version))
    state = DeltaLog(store, track_files=track_files).refresh()
    assert (state.version, state.description, state.txns) == (3, "d", {"app": 7})
    assert {f.path for f in state.files()} == (
        {"part=a/two.parquet", "part=a/three.parquet"} if track_files else set()
    )


def test_a_checkpoint_whose_writer_died_before_its_hint_gets_one(store: ObjectStore) -> None:
    other(store, change("one"))
    write_checkpoint(store)
    store.delete("_delta_log/_last_checkpoint")
    store.delete(log_path(0))
    assert write_checkpoint(store) == 1 == last_checkpoint(store)
    assert paths(DeltaLog(store)) == {"part=a/one.parquet"}
    assert DeltaTable(store.root).version() == 1


@pytest.mark.parametrize("hint", [b"{}", b"[]", b'{"version": 77}', b"\xff"])
def test_a_broken_hint_is_none(store: ObjectStore, hint: bytes) -> None:
    other(store, change("one"))
    store.write("_delta_log/_last_checkpoint", hint)
    assert DeltaLog(store).refresh().version == 1


def test_a_hint_to_a_checkpoint_behind_the_cleaned_log_finds_the_newer_one(
    store: ObjectStore,
) -> None:
    other(store, change("one"))
    write_checkpoint(store)
    hint = store.read("_delta_log/_last_checkpoint")
    other(store, change("two"), change("three"))
    write_checkpoint(store)
    store.write("_delta_log/_last_checkpoint", hint)
    for version in range(3):
        store.delete(log_path(version))
    assert DeltaLog(store).refresh().version == 3


def without(name: str, field: str) -> Callable[[pa.Table], pa.Table]:
    """Drop a field of an action in a checkpoint."""

    def drop(rows: pa.Table) -> pa.Table:
        column = rows[name].combine_chunks()
        kept = [f for f in column.type if f.name != field]
        parts = [column.field(f.name) for f in kept]
        left = pa.StructArray.from_arrays(parts, fields=kept, mask=column.is_null())
        return rows.set_column(rows.schema.names.index(name), name, left)

    return drop


def no_struct(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.names.index("add"), "add", pa.array(range(len(rows))))


BROKEN: dict[str, Callable[[pa.Table], pa.Table]] = {
    "add without path": without("add", "path"),
    "add without struct": no_struct,
    "txn without version": without("txn", "version"),
    "no protocol": lambda rows: rows.drop_columns(["protocol"]),
    "broken page": lambda rows: rows,
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_checkpoint_that_is_none_is_passed_over_or_named(
    store: ObjectStore, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    other(store, change("one", txns=[("app", 1)]))
    write_checkpoint(store)
    path = rewrite_checkpoint(store, BROKEN[broken])
    if broken == "broken page":
        data = bytearray(store.read(path))
        _, page = decode(bytes(data), 4)
        data[page : page + 5] = b"\xff" * 5
        store.write(path, bytes(data))
    assert paths(DeltaLog(store)) == {"part=a/one.parquet"}
    assert f"checkpoint {path} of" in caplog.text
    store.delete(log_path(0))
    with pytest.raises(CorruptLog, match=r"checkpoint .* cannot be read"):
        DeltaLog(store).refresh()


def test_a_file_in_the_place_of_the_last_checkpoint_is_named_by_the_next(
    store: ObjectStore,
) -> None:
    other(store, change("one"))
    write_checkpoint(store)
    store.write(checkpoint_path(1), b"PAR1garbage")
    with pytest.raises(CorruptLog, match=r"1\.checkpoint\.parquet .* cannot be read.*remove it"):
        write_checkpoint(store)


def rewrite_checkpoint(store: ObjectStore, change: Callable[[pa.Table], pa.Table]) -> str:
    """Change the rows of the first checkpoint. Return its path."""
    path = checkpoint_path(1)
    rows = pq.read_table(pa.BufferReader(store.read(path)))
    store.write(path, parquet_bytes(change(rows), use_dictionary=False))
    return path


def test_a_checkpoint_may_leave_out_the_size_of_a_file_as_a_commit_may(store: ObjectStore) -> None:
    other(store, change("one"))
    write_checkpoint(store)
    rewrite_checkpoint(store, without("add", "size"))
    assert [file.size for file in DeltaLog(store).refresh().files()] == [0]


@pytest.mark.parametrize("names", [["one"], ["one", "two"]], ids=["as long", "longer"])
def test_a_table_made_again_is_noticed_right_after_an_own_commit(
    store: ObjectStore, log: DeltaLog, tmp_path: Path, names: list[str]
) -> None:
    log.commit(change("mine"), log.refresh().version)
    os.rename(tmp_path / "table", tmp_path / "old")
    create_table(ObjectStore(store.root), SCHEMA, description="again")
    other(store, *map(change, names))
    with pytest.raises(NotAQueue, match="created again after"):
        log.refresh()


def test_a_commit_that_follows_another_one_opens_the_table_again(
    store: ObjectStore, log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at the last commit, as over a store within seconds: the next commit names the
    one before it.
    """
    other(store, change("one"))
    log.refresh()
    monkeypatch.setattr(log, "_base_is_there", lambda: True)
    store.delete(log_path(1))
    other(store, change("another"), change("two"))
    assert log.refresh().version == 2
    assert paths(log) == {"part=a/another.parquet", "part=a/two.parquet"}
    assert log.generation == 2


def protocol(reader: int, writer: int, **features: list[str]) -> dict[str, Any]:
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}


@pytest.mark.parametrize(
    ("action", "feature"),
    [
        (protocol(3, 7, readerFeatures=["deletionVectors"], writerFeatures=[]), "deletionVectors"),
        (protocol(1, 7, writerFeatures=["appendOnly", "rowTracking"]), "rowTracking"),
        (protocol(1, 4), "changeDataFeed"),
        (protocol(2, 5), "columnMapping"),
        (
            {"add": {"path": "x", "size": 1, "deletionVector": {"storageType": "u"}}},
            "deletionVectors",
        ),
    ],
)
def test_a_feature_that_comes_later_is_refused_by_its_name(
    store: ObjectStore, log: DeltaLog, action: dict[str, Any], feature: str
) -> None:
    log.refresh()
    ObjectStore(store.root).create(log_path(1), json.dumps(action).encode())
    for look in (log.refresh, log.refresh, DeltaLog(store).open):
        with pytest.raises(UnsupportedTable, match=f"{feature}.*, since commit 1") as caught:
            look()
        assert caught.value.path == store.root


def test_a_partition_is_read_at_the_version_that_it_had(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = log.refresh().version
    theirs = threading.Thread(target=lambda: log.commit(change("theirs"), base))

    def meanwhile() -> None:
        theirs.start()
        theirs.join(0.5)

    partition = Injected(TableState.partition, after=meanwhile)
    monkeypatch.setattr(TableState, "partition", partition)
    assert log.partition_at({"part": "a"}) == (base, ())
    theirs.join(60)
    version, files = log.partition_at({"part": "a"})
    assert (version, [file.path for file in files]) == (base + 1, ["part=a/theirs.parquet"])


# -- the conflict rule


def removal(part: str) -> Change:
    return change("theirs", adds=(), removes=[AddFile(f"part={part}/x", 1, 1, {"part": part})])


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (change("theirs"), {"partitions": [{"part": "a"}]}),
        (removal("a"), {"partitions": [{"part": "a"}]}),
        (removal("b"), {"removes": [AddFile("part=b/x", 1)]}),
    ],
)
@pytest.mark.parametrize("seen", [False, True])
def test_a_commit_that_changed_what_was_read_is_a_conflict(
    store: ObjectStore, log: DeltaLog, theirs: Change, mine: dict[str, Any], seen: bool
) -> None:
    base = log.refresh().version
    other(store, theirs)
    if seen:
        log.refresh()
    with pytest.raises(CommitConflict):
        log.commit(change("mine", **mine), base)
    assert DeltaLog(store).refresh().version == 1


def test_transact_gives_up_at_its_deadline(store: ObjectStore, log: DeltaLog) -> None:
    count = iter(range(1000))

    def compute(state: Any) -> tuple[Change, None]:
        other(store, change(f"theirs-{next(count)}"))
        return change("mine", partitions=[{"part": "a"}]), None

    with pytest.raises(ContentionTimeout, match="Nothing was changed"):
        log.transact(compute, timeout=0)
    assert "part=a/mine.parquet" not in paths(log)


# -- lost, doubled and late replies


REFUSED = PermissionError("403")
LOST = [OSError("503"), ConnectionResetError("reset"), TimeoutError("timeout")]


@pytest.mark.parametrize(
    "failures",
    [LOST, [LOST[0], REFUSED, REFUSED], [REFUSED, REFUSED, LOST[1]]],
    ids=["never refused", "refused later", "refused first"],
)
def test_a_put_that_a_store_did_not_refuse_may_land_after_its_error(
    store: ObjectStore, byte_store: ByteStore, failures: Sequence[OSError]
) -> None:
    log = DeltaLog(there := remote(store.root))
    late = list[Call]()  # the store applies them when nobody waits

    def lose(call: Call) -> None:
        late.append(call)
        raise failures[len(late) - 1]

    base = log.refresh().version
    byte_store.on("create", act=lose, of=there)
    with pytest.raises(StorageError, match="it is unknown if the change landed") as raised:
        log.commit(change("mine"), base)
    assert raised.value.data["landed"] is None
    late[0].run()
    assert log.refresh().operation_id == "mine"


@pytest.mark.parametrize("refusal", [REFUSED, FileNotFoundError("no such bucket")])
def test_a_put_that_a_store_refuses_changes_nothing(
    store: ObjectStore, byte_store: ByteStore, refusal: OSError
) -> None:
    log = DeltaLog(there := remote(store.root))
    base = log.refresh().version
    fail(byte_store, there, "create", refusal, refusal, refusal)
    with pytest.raises(StorageError, match="nothing was changed") as raised:
        log.commit(change("mine"), base)
    assert raised.value.data["landed"] is False


def test_a_lost_put_is_refused_for_certain_once_its_number_is_taken(
    store: ObjectStore, byte_store: ByteStore
) -> None:
    log = DeltaLog(there := remote(store.root))
    late = list[Call]()

    def lose(call: Call) -> None:
        late.append(call)
        other(store, change("theirs"))
        raise OSError("503")

    base = log.refresh().version
    byte_store.on("create", act=lose, of=there)
    with pytest.raises(CommitConflict):
        log.commit(change("mine", partitions=[{"part": "a"}]), base)
    with pytest.raises(FileExistsError):
        late[0].run()


@pytest.mark.parametrize(
    ("reply", "step"), [(None, "exists"), (None, "delete"), (OSError("500"), "exists")]
)
def test_a_commit_that_cannot_be_checked_after_its_put_is_unknown(
    store: ObjectStore, log: DeltaLog, byte_store: ByteStore, reply: OSError | None, step: str
) -> None:
    base = log.refresh().version

    def down() -> None:
        if step == "delete":
            others_commit_and_clean(store)
        fail(byte_store, store, step, OSError("down"))

    byte_store.inject("create", of=store, before=down, fail=reply)
    with pytest.raises(StorageError, match="it is unknown if the change landed") as raised:
        log.commit(change("mine"), base)
    assert raised.value.data["landed"] is None


# -- a writer frozen across a cleaning


def clean_to(store: ObjectStore, version: int) -> None:
    """As a cleaner does: only what the last checkpoint makes superfluous."""
    for old in range(version):
        store.delete(log_path(old))
        store.delete(checkpoint_path(old))


def others_commit_and_clean(store: ObjectStore, count: int = 5) -> None:
    other(store, *(change(f"theirs-{n}", "b") for n in range(count)))
    clean_to(store, write_checkpoint(store))


@pytest.mark.parametrize(("checkpoint", "kept_from"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_a_commit_that_landed_before_a_cleaning_counts(
    store: ObjectStore, log: DeltaLog, byte_store: ByteStore, checkpoint: int, kept_from: int
) -> None:
    base = log.refresh().version

    def frozen() -> None:
        other(store, *(change(f"theirs-{n}") for n in range(checkpoint - 1)))
        assert write_checkpoint(store) == checkpoint
        clean_to(store, kept_from)

    byte_store.inject("create", of=store, after=frozen)
    assert log.commit(change("mine"), base) == 1
    assert "part=a/mine.parquet" in paths(DeltaLog(store))


def appended(store: ObjectStore) -> None:
    write_deltalake(
        store.root, pa.table({"part": ["b"], "value": [1]}, schema=SCHEMA), mode="append"
    )


@pytest.mark.parametrize("store_kind", ["local", "remote"])
@pytest.mark.parametrize(
    "following",
    [lambda store: other(store, change("theirs-1")), appended],
    ids=["from a checkpoint", "of another engine"],
)
def test_a_stray_is_withdrawn_although_its_successor_was_written_without_reading_the_log(
    store: ObjectStore,
    byte_store: ByteStore,
    following: Callable[[ObjectStore], None],
    store_kind: str,
) -> None:
    clocks, writer = MachineClocks(), remote(store.root) if store_kind == "remote" else store
    log = DeltaLog(writer)
    log.clock = clocks.elapsed
    base = log.refresh().version

    def frozen() -> None:
        others_commit_and_clean(store, 1)
        following(store)
        clean_to(store, write_checkpoint(store))
        clocks.move(3600.0, 3600.0)

    byte_store.inject("create", of=writer, before=frozen)
    with pytest.raises(CommitConflict, match="cleaned beyond"):
        log.commit(change("mine"), base)
    assert not store.exists(log_path(1))
    assert "part=a/mine.parquet" not in paths(DeltaLog(store))


def put(log: DeltaLog, name: str) -> int:
    return log.transact(lambda _: (change(name), None))[0]


def on_clocks(store: ObjectStore) -> tuple[DeltaLog, MachineClocks]:
    """A log over a store, whose last commits are its own, and the clocks of its machine."""
    clocks, log = MachineClocks(), DeltaLog(remote(store.root))
    log.clock = clocks.elapsed
    for name in "abc":
        put(log, name)
    assert log.is_own_turn
    return log, clocks


def test_a_wall_clock_that_is_set_costs_a_look_and_no_more(
    store: ObjectStore, byte_store: ByteStore
) -> None:
    log, clocks = on_clocks(store)
    looks = byte_store.paths("read", of=log.store)
    for step in (3600.0, -3600.0):
        clocks.move(0.1, step)
        put(log, "after the step")
        assert looks
        looks.clear()
        put(log, "next")
        assert not looks
        assert log.is_own_turn
    assert DeltaLog(store).refresh().version == 7


def test_a_writer_that_takes_turns_looks_no_more_once_it_has_seen_the_other(
    store: ObjectStore, byte_store: ByteStore
) -> None:
    log, _ = on_clocks(store)
    other(store, change("theirs-0", "b"))
    log.refresh()
    assert not log.is_own_turn, "the other one may go on"
    put(log, "d")
    assert not log.is_own_turn, "it is the other's turn"
    other(store, change("theirs-1", "b"))
    log.refresh()
    assert log.is_own_turn
    looks = byte_store.paths("read", of=log.store)
    put(log, "e")
    assert not looks
    other(store, change("theirs-2", "b"), change("theirs-3", "b"))
    log.refresh()
    assert not log.is_own_turn, "two commits are no turn"


def test_a_look_of_another_thread_does_not_hide_that_a_writer_slept(
    store: ObjectStore, byte_store: ByteStore
) -> None:
    log, clocks = on_clocks(store)

    def frozen() -> None:
        others_commit_and_clean(store)
        clocks.move(3600.0, 3600.0)
        assert log.refresh().version == 8, "this is the other thread"

    byte_store.inject("create", of=log.store, before=frozen)
    with pytest.raises(CommitConflict, match="cleaned beyond"):
        log.commit(change("mine"), 3)
    assert not store.exists(log_path(4))


def test_a_look_of_another_thread_that_was_forgotten_hides_no_sleep(store: ObjectStore) -> None:
    log, clocks = on_clocks(store)
    others_commit_and_clean(store)
    clocks.move(3600.0, 3600.0)
    assert log.refresh().version == 8
    log.forget()
    with pytest.raises(CommitConflict):
        log.commit(change("mine"), 3)
    assert not store.exists(log_path(4))


def test_a_gap_after_own_commits_over_a_store_is_refused(store: ObjectStore) -> None:
    log, clocks = on_clocks(store)
    write_checkpoint(store)
    other(store, change("one"), change("two"))
    store.delete(log_path(4))
    clocks.move(60.0, 60.0)
    with pytest.raises(CorruptLog, match=r"commit 4 .* is missing from its log"):
        log.refresh()


def test_a_writer_that_was_idle_looks_before_its_next_commit(store: ObjectStore) -> None:
    log, clocks = on_clocks(store)
    others_commit_and_clean(store)
    clocks.move(6.0, 6.0)
    assert put(log, "mine") == 9


@pytest.mark.parametrize("count", [5, 40], ids=["at the next number", "at its next look"])
def test_a_writer_whose_clocks_missed_a_pause_finds_the_present_again(
    store: ObjectStore, limits: Limits, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """What it commits until then is lost, so it says so."""
    limits(gap_check_seconds=30.0)
    log, clocks = on_clocks(store)
    others_commit_and_clean(store, count)
    seconds = 0
    while put(log, f"after {seconds}") < 3 + count:
        clocks.move(1.0, 1.0)
        seconds += 1
    assert seconds <= 30
    assert "may be lost" in caplog.text
    assert f"part=a/after {seconds}.parquet" in paths(DeltaLog(store))


def test_a_follower_over_a_store_that_a_cleaner_overtakes_opens_the_table_again(
    store: ObjectStore, byte_store: ByteStore
) -> None:
    clocks, log = MachineClocks(), DeltaLog(remote(store.root))
    log.clock = clocks.elapsed
    log.refresh()
    other(store, change("one"))
    clocks.move(6.0, 6.0)
    byte_store.inject("read", of=log.store, after=lambda: others_commit_and_clean(store))
    assert log.refresh().version == 6
    assert log.generation == 2


# -- other engines, checkpoints


def test_a_commit_that_landed_succeeds_though_no_thread_is_left_for_its_checkpoint(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = DeltaLog(store, on_checkpoint=checkpoint_soon)
    limits(checkpoint_interval=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        assert log.commit(change("one"), log.state.version) == 1
    assert "checkpoint 1 of" in caplog.text
    wait_for_checkpoints(store.root)
    log.commit(change("two"), 1)
    wait_for_checkpoints(store.root)
    assert last_checkpoint(store) == 2


# -- cleaning


def test_a_file_that_gets_its_name_just_before_the_orphans_go_stays(
    store: ObjectStore, limits: Limits
) -> None:
    """Its writer was slow, and its commit lands between the sweep's look and its commit."""
    limits(orphan_seconds=-1.0)
    for name in ("slow", "dead"):
        store.write(f"part=a/{name}.parquet", b"x")
    write_checkpoint(store)

    def rival(_: Any) -> None:
        if not paths(DeltaLog(store)):
            other(store, change("slow"))

    with rule_variant("_conflict_with_all", first(rival)), keeping(0, 0.0):
        assert LedgerTable(store.root).clean(archived=2**62) == 1
    assert paths(DeltaLog(store)) == {"part=a/slow.parquet"}
    assert [store.exists(f"part=a/{name}.parquet") for name in ("slow", "dead")] == [True, False]
