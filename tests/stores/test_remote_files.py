"""Files in an object store: the same contract as on a disk."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from faulty_store import AFTER, BEFORE, RESET, FaultyStore
from support.forks import in_a_fork
from support.stores import RemoteStore, race

from spark_mq.delta.object_store import ObjectStore


@pytest.fixture
def store(remote: RemoteStore) -> ObjectStore:
    return ObjectStore(remote.new_path(), remote.options)


def test_a_file_of_many_parts_is_read_back(store: ObjectStore) -> None:
    data = os.urandom(20_000_000)
    store.write("folder/file", data)
    assert store.read("folder/file") == data
    assert not store.is_local


def test_a_store_that_lets_two_writers_win_is_not_tried(remote: RemoteStore) -> None:
    with pytest.raises(AssertionError, match="let 2 of 2 create one name"):
        race(remote, 2, 1, mode="overwrite")


def test_a_name_that_no_store_holds_is_a_missing_file(
    store: ObjectStore, remote: RemoteStore
) -> None:
    # The root counts, too. On Azure characters count, elsewhere bytes.
    too_long = (
        "x" * 1_100,
        "é" * (1_100 if remote.server == "azurite" else 500),
        "a/" * 5_000 + "f",
    )
    for path in too_long:
        for method in (store.read, store.open):
            with pytest.raises(FileNotFoundError):
                method(path)
        assert not store.exists(path)
        assert store.stat(path) is None
        assert store.list(path) == []
        store.delete(path)
        with pytest.raises(OSError, match="no names of more than 1024 bytes"):
            store.write(path, b"")
    longest = "/".join(["x" * 195] * 5)  # in folders, because versitygw keeps files
    store.write(longest, b"fits")
    assert store.read(longest) == b"fits"


def test_a_listing_has_more_than_one_page(store: ObjectStore) -> None:
    for number in range(1_003):
        store.write(f"log/{number:04}", b"")
    assert [info.path for info in store.list("log")] == [f"log/{n:04}" for n in range(1_003)]
    assert len(store.list_all()) == 1_003


def test_the_root_of_a_bucket(remote: RemoteStore) -> None:
    name = uuid.uuid4().hex
    ObjectStore(remote.root, remote.options).write(f"{name}/file", b"1")
    assert ObjectStore(f"{remote.root}/{name}", remote.options).read("file") == b"1"


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


@pytest.mark.parametrize("fault", [BEFORE, AFTER, RESET])
def test_a_create_that_meets_a_fault_leaves_the_whole_file(
    remote: RemoteStore, proxy: FaultyStore, fault: str
) -> None:
    options = {**proxy.options, "backoff_config.init_backoff": "1ms"}
    store = ObjectStore(remote.new_path(), options)
    proxy.once(fault, "PUT", "file")
    try:
        store.create("file", b"mine")
    except (FileExistsError, OSError):
        assert fault != BEFORE  # an answer was lost: the caller has to look
    assert store.read("file") == b"mine"
    assert proxy.met() == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # what is tested
def test_a_forked_process_is_refused_instead_of_waiting_for_ever(store: ObjectStore) -> None:
    store.write("file", b"1")
    assert "spawn or forkserver" in str(in_a_fork(lambda: store.read("file")))
    assert store.read("file") == b"1"
