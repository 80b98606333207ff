"""Files in an object store: the same contract as on a disk."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faulty_store import AFTER, BEFORE, RESET, FaultyStore
from support.stores import RemoteStore, race

from spark_mq import Queue
from spark_mq.delta.object_store import FileInfo, ObjectStore
from spark_mq.errors import InvalidOption

ODD = ["a b", "ü", "a%20b", "x[1]^|", "#?&+", "k=v,w", "~", "x\\y", "'\"", "a:b", "..x", "a%2Fb"]


@pytest.fixture
def store(remote: RemoteStore) -> ObjectStore:
    return ObjectStore(remote.new_path(), remote.options)


def test_a_file_that_was_written_is_read_back(store: ObjectStore) -> None:
    for data in (b"", b"one", memoryview(b"two"), os.urandom(20_000_000)):
        store.write("folder/file", data)
        assert store.read("folder/file") == bytes(data)
    assert not store.is_local


def test_a_store_that_lets_two_writers_win_is_not_tried(remote: RemoteStore) -> None:
    with pytest.raises(AssertionError, match="let 2 of 2 create one name"):
        race(remote, 2, 1, mode="overwrite")


def test_create_refuses_a_name_that_exists(store: ObjectStore) -> None:
    store.create("log/1.json", b"first")
    with pytest.raises(FileExistsError, match=r"log/1\.json") as caught:
        store.create("log/1.json", b"second")
    assert caught.value.__cause__ is not None
    assert store.read("log/1.json") == b"first"


def test_a_missing_file_is_reported_in_each_method(store: ObjectStore, remote: RemoteStore) -> None:
    store.write("folder/file", b"")
    # The root counts, too. On Azure characters count, elsewhere bytes.
    too_long = (
        "x" * 1_100,
        "é" * (1_100 if remote.server == "azurite" else 500),
        "a/" * 5_000 + "f",
    )
    for path in ("missing", "missing/file", "folder", *too_long):
        for method in (store.read, store.open):
            with pytest.raises(FileNotFoundError):
                method(path)
        assert not store.exists(path)
        assert store.stat(path) is None
    for path in too_long:
        assert store.list(path) == []
        store.delete(path)
        with pytest.raises(OSError, match="no names of more than 1024 bytes"):
            store.write(path, b"")
    longest = "/".join(["x" * 195] * 5)  # in folders, because versitygw keeps files
    store.write(longest, b"fits")
    assert store.read(longest) == b"fits"
    store.delete("missing")
    store.delete("folder/file")
    assert not store.exists("folder/file")


def test_stat_and_lists_agree(store: ObjectStore) -> None:
    for path in ("b", "a", "group=x/c", "group=x/below/d", "group=x.y"):
        store.write(path, path.encode())
    assert [info.path for info in store.list("")] == ["a", "b", "group=x.y"]
    assert [info.path for info in store.list("group=x")] == ["group=x/c"]
    assert [i.path for i in store.list_all("group=x")] == ["group=x/below/d", "group=x/c"]
    assert len(store.list_all()) == 5
    assert [store.stat(info.path) for info in store.list_all()] == store.list_all()
    assert store.list("missing") == store.list_all("missing") == store.list("a") == []
    first = store.stat("a")
    store.write("a", b"z")
    assert isinstance(first, FileInfo)
    assert store.stat("a").etag != first.etag  # type: ignore[union-attr]


def test_a_listing_has_more_than_one_page(store: ObjectStore) -> None:
    for number in range(1_003):
        store.write(f"log/{number:04}", b"")
    assert [info.path for info in store.list("log")] == [f"log/{n:04}" for n in range(1_003)]
    assert len(store.list_all()) == 1_003


@pytest.mark.parametrize("name", ODD)
def test_odd_characters_in_paths(store: ObjectStore, remote: RemoteStore, name: str) -> None:
    path = f"k={name}/{name}"
    if remote.server == "azurite" and "\\" in name:
        assert_no_backslashes(store, path)
        return
    store.create(path, b"1")
    store.write(path, b"2")
    assert store.read(path) == b"2"
    assert [info.path for info in store.list_all()] == [path]
    assert [info.path for info in store.list(f"k={name}")] == [path]
    assert store.child(f"k={name}").read(name) == b"2"
    store.delete(path)
    assert not store.exists(path)


def assert_no_backslashes(store: ObjectStore, path: str) -> None:
    """Azure, and also Azurite, turns a backslash into "/", so the file would get another name."""
    for call in (
        store.read,
        store.open,
        lambda p: store.write(p, b""),
        lambda p: store.create(p, b""),
    ):
        with pytest.raises(FileNotFoundError, match="no names with a backslash"):
            call(path)
    assert not store.exists(path)
    assert store.list("") == store.list_all() == []
    for name in ("x\\y", "x%5Cy", "x%5cy/queue"):
        with pytest.raises(InvalidOption, match=r"must not have .*Use another folder"):
            Queue.create(f"{store.root}/{name}", storage_options=store.options)


def test_the_root_of_a_bucket_and_encoded_roots(remote: RemoteStore) -> None:
    name = uuid.uuid4().hex
    ObjectStore(remote.root, remote.options).write(f"{name} x/file", b"1")
    same = {"s3": "s3a", "az": "abfs"}
    scheme, _, bucket = remote.root.partition("://")
    other = f"{same.get(scheme, scheme)}://{bucket}"
    for root in (f"{remote.root}/{name} x", f"{remote.root}/{name}%20x/", f"{other}/{name} x"):
        store = ObjectStore(root, remote.options)
        assert store.read("file") == b"1"
        assert [info.path for info in store.list_all()] == ["file"]


def test_a_store_survives_pickling(store: ObjectStore) -> None:
    again = pickle.loads(pickle.dumps(store.child("below")))
    again.write("file", b"1")
    assert store.read("below/file") == b"1"
    assert again.options == store.options


def test_read_parquet_and_open(store: ObjectStore) -> None:
    written = pa.table({"text": pa.array(["a", None], pa.string_view())})
    sink = pa.BufferOutputStream()
    pq.write_table(written, sink)
    store.write("file.parquet", memoryview(sink.getvalue()))
    schema = pa.schema({"text": pa.string(), "added": pa.int64()})
    found = store.read_parquet("file.parquet", schema)
    assert found.schema == schema
    assert found.to_pydict() == {"text": ["a", None], "added": [None, None]}


def test_open_reads_any_part_of_a_large_file(store: ObjectStore) -> None:
    data = os.urandom(700_000)
    store.write("file", data)
    with store.open("file") as file:
        assert file.size() == len(data)
        for start, length in ((0, 10), (699_990, 100), (300_000, 399_999), (700_000, 5), (1, 0)):
            file.seek(start)
            assert file.read(length) == data[start : start + length]
        file.seek(0)
        assert file.read() == data
    store.write("empty", b"")
    with store.open("empty") as file:
        assert (file.size(), file.read()) == (0, b"")


@pytest.mark.only_on("versitygw")
def test_writes_into_a_folder_that_is_just_deleted_succeed(store: ObjectStore) -> None:
    """Versitygw deletes a folder with its last file, and meanwhile refuses writes with a 409."""

    def work(number: int) -> None:
        for _ in range(200):
            store.write(f"folder/{number}", b"1")
            store.delete(f"folder/{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.list("folder") == []


def create_each(store: ObjectStore, me: int, rounds: int, barrier: Any, report: Any) -> None:
    for number in range(rounds):
        barrier.wait(60)
        try:
            store.create(f"log/{number}", b"%d" % me)
        except FileExistsError:
            continue
        report((number, me))


def test_of_threads_and_processes_that_create_one_name_exactly_one_wins(store: ObjectStore) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, queue = spawn.Barrier(4), spawn.SimpleQueue()
    kinds = [spawn.Process, spawn.Process, threading.Thread, threading.Thread]
    each = [(store, me, 15, barrier, queue.put) for me in range(4)]
    pairs = zip(kinds, each, strict=True)
    workers: list[Any] = [kind(target=create_each, args=args) for kind, args in pairs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    won = []
    while not queue.empty():
        won.append(queue.get())
    assert sorted(number for number, _ in won) == list(range(15))
    assert all(store.read(f"log/{number}") == b"%d" % me for number, me in won)


@pytest.mark.parametrize("fault", [BEFORE, AFTER, RESET])
def test_a_create_that_meets_a_fault_leaves_the_whole_file(remote: RemoteStore, fault: str) -> None:
    with FaultyStore(remote) as proxy:
        options = {**proxy.options, "backoff_config.init_backoff": "1ms"}
        store = ObjectStore(remote.new_path(), options)
        proxy.once(fault, "PUT", "file")
        try:
            store.create("file", b"mine")
        except (FileExistsError, OSError):
            assert fault != BEFORE  # an answer was lost: the caller has to look
        assert store.read("file") == b"mine"
        assert proxy.met() == 1


def in_a_fork(store: ObjectStore) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.read("file")
            text = "read"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # what is tested
def test_a_forked_process_is_refused_instead_of_waiting_for_ever(store: ObjectStore) -> None:
    store.write("file", b"1")
    assert "spawn or forkserver" in in_a_fork(store)
    assert store.read("file") == b"1"
