"""What a table needs from a byte store: in memory, on a disk, and with --store on a server.

What one of them adds is in ``unit/delta/test_object_store`` (a disk), ``unit/delta/
test_memory_files`` and ``stores/test_remote_files``.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.handles import memory_store
from support.queues import Place, place
from support.tables import parquet_bytes

from spark_mq.delta.object_store import ObjectStore
from spark_mq.testing import memory_queue

__all__ = ["place"]

ODD = ["a b", "ü", "a%20b", "x[1]^|", "#?&+", "k=v,w", "~", "x\\y", "e\u0301", "'\"", "a:b", "..x",
       "a%2Fb"]  # fmt: skip
BAD = ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/.", "./a", "a\0b", "a\nb", "a\x7f"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    here = ["memory", "disk", "disk without syncs"]
    server = metafunc.config.getoption("--store")
    metafunc.parametrize("store", [server] if server else here, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, place: Place) -> Any:
    if request.param == "memory":
        return memory_store()
    if request.param.startswith("disk"):
        return ObjectStore(str(tmp_path / "root"), durable=request.param == "disk")
    there = place()
    return ObjectStore(there["path"], there["storage_options"])


def paths(store: ObjectStore, folder: str = "") -> list[str]:
    return [file.path for file in store.list_all(folder)]


def test_a_file_that_was_written_is_read_back(store: ObjectStore) -> None:
    words = memoryview(b"0123456789abcdef").cast("Q")
    for data in (b"", b"short", words, os.urandom(3_000_000)):
        store.write("folder/file", data)
        assert store.read("folder/file") == bytes(data)
    assert paths(store) == ["folder/file"]


def test_create_refuses_a_name_that_exists_and_keeps_its_content(store: ObjectStore) -> None:
    store.create("log/1.json", b"first")
    with pytest.raises(FileExistsError, match=r"log/1\.json"):
        store.create("log/1.json", b"second")
    assert store.read("log/1.json") == b"first"
    assert paths(store) == ["log/1.json"]


def test_a_missing_file_is_reported_by_each_method(store: ObjectStore) -> None:
    store.write("folder/file", b"")
    for path in ("missing", "missing/file", "folder", "folder/file/below"):
        for method in (store.read, store.open):
            with pytest.raises(FileNotFoundError):
                method(path)
        assert not store.exists(path)
        assert store.stat(path) is None
        if path != "folder":
            assert store.list(path) == store.list_all(path) == []
            store.delete(f"{path}/below")
    store.delete("missing")
    assert paths(store) == ["folder/file"]


def test_files_are_deleted_alone_and_together(store: ObjectStore) -> None:
    for name in ("a", "b", "folder/c", "kept"):
        store.write(name, b"1")
    store.delete("a")
    store.delete_many(["b", "folder/c", "missing"])
    assert paths(store) == ["kept"]


def test_a_tag_changes_with_the_content_also_of_one_length(store: ObjectStore) -> None:
    store.write("file", b"old")
    before = store.stat("file")
    store.write("file", b"new")
    after = store.stat("file")
    assert (after.path, after.size) == ("file", 3)
    assert after.modified == pytest.approx(store.now(), abs=60)
    assert before.etag != after.etag
    assert store.list("") == store.list_all() == [after]


def test_lists_have_the_files_of_a_folder_in_order(store: ObjectStore) -> None:
    assert store.list_all() == []
    for path in ("b", "a", "group=x/c", "group=x/below/d", "group=x.y"):
        store.write(path, path.encode())
    assert [file.path for file in store.list("")] == ["a", "b", "group=x.y"]
    assert [(file.path, file.size) for file in store.list("group=x")] == [("group=x/c", 9)]
    assert sorted(file.path for file in store.iterate("group=x")) == ["group=x/c"]
    assert paths(store, "group=x") == ["group=x/below/d", "group=x/c"]
    assert len(paths(store)) == 5
    assert store.folders() == ["group=x"]
    assert store.folders("group=x") == ["below"]
    assert store.list("a") == store.list("missing") == []
    assert [store.stat(file.path) for file in store.list_all()] == store.list_all()


@pytest.mark.parametrize("name", ODD)
def test_odd_characters_in_paths(store: ObjectStore, name: str) -> None:
    path = f"k={name}/{name}"
    if "\\" in name and store.root.startswith(("az:", "abfs")):  # Azure turns it into "/"
        for call in (store.read, lambda path: store.write(path, b"")):
            with pytest.raises(FileNotFoundError, match="no names with a backslash"):
                call(path)
        return
    store.create(path, b"1")
    store.write(path, b"2")
    assert store.read(path) == b"2"
    with store.open(path) as file:
        assert file.read() == b"2"
    assert paths(store) == [path]
    assert [file.path for file in store.list(f"k={name}")] == [path]
    assert store.child(f"k={name}").read(name) == b"2"
    store.delete(path)
    assert not store.exists(path)


@pytest.mark.parametrize("path", BAD)
def test_a_path_that_is_not_below_the_root_is_refused(store: ObjectStore, path: str) -> None:
    methods: list[Callable[[str], Any]] = [
        store.read, store.open, store.exists, store.stat, store.delete, store.child,
        lambda p: store.write(p, b""), lambda p: store.create(p, b""),
    ]  # fmt: skip
    if path:
        methods += [store.list, store.list_all]
    for method in methods:
        with pytest.raises(OSError, match="not a file below the root") as caught:
            method(path)
        assert caught.value.errno == errno.EINVAL


def test_a_child_sees_what_is_below_its_folder_alone(store: ObjectStore) -> None:
    child = store.child("sub/folder")
    child.write("file", b"1")
    store.write("other", b"2")
    assert store.read("sub/folder/file") == b"1"
    assert paths(child) == ["file"]
    assert child.root == f"{store.root}/sub/folder"
    child.options["a"] = "c"
    assert "a" not in store.options


def test_another_process_opens_the_store_except_in_memory(store: ObjectStore) -> None:
    if store.root.startswith("memory:"):
        for kept in (store, memory_queue()):
            with pytest.raises(TypeError, match="kept in memory"):
                pickle.dumps(kept)
        return
    again = pickle.loads(pickle.dumps(store.child("below")))
    again.write("file", b"1")
    assert store.read("below/file") == b"1"
    for name in ("options", "is_local", "durable"):
        assert getattr(again, name) == getattr(store, name)


def test_a_parquet_file_is_read_in_a_schema(store: ObjectStore) -> None:
    rows = pa.table({"text": pa.array(["a", None], pa.string_view()), "more": [1, 2]})
    store.write("file.parquet", parquet_bytes(rows))
    schema = pa.schema({"text": pa.string(), "added": pa.int64(), "more": pa.int32()})
    read = store.read_parquet("file.parquet", schema)
    assert read.schema == schema
    assert read.to_pydict() == {"text": ["a", None], "added": [None, None], "more": [1, 2]}
    with store.open("file.parquet") as file:
        assert pq.ParquetFile(file).metadata.num_rows == 2


def test_any_part_of_a_file_is_read(store: ObjectStore) -> None:
    data, end = os.urandom(2_000_000), 2_000_000  # of which a store keeps the last MiB
    store.write("file", data)
    with store.open("file") as file:
        assert file.size() == end
        for start, length in ((0, 10), (end - 10, 100), (500_000, 999_999), (end, 5), (1, 0)):
            file.seek(start)
            assert file.read(length) == data[start : start + length]
    store.write("empty", b"")
    with store.open("empty") as file:
        assert (file.size(), file.read()) == (0, b"")


def create_each(store: ObjectStore, me: int, rounds: int, barrier: Any, report: Any) -> None:
    for number in range(rounds):
        barrier.wait(60)
        try:
            store.create(f"log/{number}", b"%d" % me * 1000)
        except FileExistsError:
            continue
        report((number, me))


def test_of_threads_and_processes_that_create_one_name_exactly_one_wins(store: ObjectStore) -> None:
    spawn, rounds = multiprocessing.get_context("spawn"), 15
    kinds: list[Any] = [threading.Thread] * 4
    if store.durable and not store.root.startswith("memory:"):  # a sync has no part in it
        kinds = [spawn.Process, spawn.Process, threading.Thread, threading.Thread]
    barrier, winners = spawn.Barrier(4), spawn.SimpleQueue()
    workers = [
        kind(target=create_each, args=(store, me, rounds, barrier, winners.put))
        for me, kind in enumerate(kinds)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    won = []
    while not winners.empty():
        won.append(winners.get())
    assert sorted(number for number, _ in won) == list(range(rounds))
    assert all(store.read(f"log/{number}") == b"%d" % me * 1000 for number, me in won)
    assert len(paths(store)) == rounds
