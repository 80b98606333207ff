"""The object store over an S3 endpoint: the same contract, and the requests of each call."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faulty_s3 import AFTER, BEFORE, RESET, FaultyS3
from support.s3_endpoint import Relay, relay
from support.s3_requests import Requests, counting

from spark_mq.delta.object_store import FileInfo, ObjectStore

ODD = ["a b", "ü", "a%20b", "x[1]^|", "#?&+", "k=v,w", "~", "x\\y", "'\"", "a:b", "..x", "a%2Fb"]
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKEY"
SIGNED = "c2lnbmF0dXJlIG9mIGEgcmVxdWVzdA"  # no option has it


@pytest.fixture
def store(s3: dict[str, str]) -> ObjectStore:
    return ObjectStore(f"s3://queues/{uuid.uuid4().hex}/q", s3)


@pytest.fixture
def counted(s3: dict[str, str]) -> Iterator[tuple[ObjectStore, Requests]]:
    """A store behind a proxy, and the requests that went through."""
    with counting(s3["AWS_ENDPOINT_URL"]) as (url, seen):
        yield ObjectStore(f"s3://queues/{uuid.uuid4().hex}", {**s3, "AWS_ENDPOINT_URL": url}), seen


def test_a_file_that_was_written_is_read_back(store: ObjectStore) -> None:
    for data in (b"", b"one", memoryview(b"two"), os.urandom(20_000_000)):
        store.write("folder/file", data)
        assert store.read("folder/file") == bytes(data)
    assert not store.is_local


def test_create_refuses_a_name_that_exists(store: ObjectStore) -> None:
    store.create("log/1.json", b"first")
    with pytest.raises(FileExistsError, match=r"log/1\.json") as caught:
        store.create("log/1.json", b"second")
    assert caught.value.__cause__ is not None
    assert store.read("log/1.json") == b"first"


def test_a_missing_file_is_reported_in_each_method(store: ObjectStore) -> None:
    store.write("folder/file", b"")
    # The root counts, too. moto would take longer names, but S3 does not.
    too_long = ("x" * 1_000, "é" * 500, "a/" * 5_000 + "f")
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
    store.write("x" * 980, b"fits")
    assert store.read("x" * 980) == b"fits"
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
def test_odd_characters_in_paths(store: ObjectStore, name: str) -> None:
    path = f"k={name}/{name}"
    store.create(path, b"1")
    store.write(path, b"2")
    assert store.read(path) == b"2"
    assert [info.path for info in store.list_all()] == [path]
    assert [info.path for info in store.list(f"k={name}")] == [path]
    assert store.child(f"k={name}").read(name) == b"2"
    store.delete(path)
    assert not store.exists(path)


def test_the_root_of_a_bucket_and_encoded_roots(s3: dict[str, str]) -> None:
    name = uuid.uuid4().hex
    ObjectStore("s3://queues", s3).write(f"{name} x/file", b"1")
    for root in (f"s3://queues/{name} x", f"s3://queues/{name}%20x/", f"s3a://queues/{name} x"):
        store = ObjectStore(root, s3)
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


def large_parquet() -> pa.Buffer:
    sink = pa.BufferOutputStream()
    columns = {name: [os.urandom(1_000) for _ in range(1_000)] for name in "ab"}
    pq.write_table(pa.table(columns), sink, row_group_size=500, compression="none")
    return sink.getvalue()


def calls() -> dict[str, tuple[Callable[[ObjectStore], Any], list[str]]]:
    schema = pa.schema({"a": pa.int64()})
    return {
        "read": (lambda s: s.read("file"), ["GET"]),
        "create": (lambda s: s.create("new", b"1"), ["PUT"]),
        "write": (lambda s: s.write("file", b"1"), ["PUT"]),
        "write 16 MB": (lambda s: s.write("file", bytes(16_000_000)), ["PUT"]),
        "exists": (lambda s: s.exists("file"), ["HEAD"]),
        "not exists": (lambda s: s.exists("missing"), ["HEAD"]),
        "stat": (lambda s: s.stat("file"), ["HEAD"]),
        "list": (lambda s: s.list("folder"), ["GET"]),
        "list_all": (lambda s: s.list_all(), ["GET"]),
        "delete": (lambda s: s.delete("file"), ["POST"]),
        "read_parquet": (lambda s: s.read_parquet("small.parquet", schema), ["GET"]),
        "open, small": (lambda s: pq.ParquetFile(s.open("small.parquet")).read(), ["GET"]),
        "open, footer": (lambda s: pq.ParquetFile(s.open("large.parquet")).metadata, ["GET"]),
        "open, a column": (
            lambda s: pq.ParquetFile(s.open("large.parquet")).read_row_group(0, ["a"]),
            ["GET", "GET"],
        ),
        "temporaries": (lambda s: s.delete_stale_temporaries("", 0), []),
    }


@pytest.mark.parametrize("name", calls())
def test_requests_of_each_call(counted: tuple[ObjectStore, Requests], name: str) -> None:
    store, seen = counted
    small = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2]}), small)
    store.write("file", b"1")
    store.write("small.parquet", memoryview(small.getvalue()))
    if "open" in name:
        store.write("large.parquet", memoryview(large_parquet()))
    seen.clear()
    call, expected = calls()[name]
    call(store)
    assert [method for method, _, _ in seen] == expected


def test_create_is_if_none_match_and_write_is_not(counted: tuple[ObjectStore, Requests]) -> None:
    store, seen = counted
    store.create("file", b"1")
    store.write("file", b"2")
    assert [headers.get("if-none-match") for _, _, headers in seen] == ["*", None]


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
def test_a_create_that_meets_a_fault_leaves_the_whole_file(s3: dict[str, str], fault: str) -> None:
    with FaultyS3(s3["AWS_ENDPOINT_URL"]) as proxy:
        options = {**s3, "AWS_ENDPOINT_URL": proxy.url, "backoff_config.init_backoff": "1ms"}
        store = ObjectStore(f"s3://queues/{uuid.uuid4().hex}", options)
        proxy.once(fault, "PUT", "file")
        try:
            store.create("file", b"mine")
        except (FileExistsError, OSError):
            assert fault != BEFORE  # an answer was lost: the caller has to look
        assert store.read("file") == b"mine"
        assert proxy.met() == 1


def failing(s3: dict[str, str], **more: str) -> ObjectStore:
    return ObjectStore("s3://queues/q", {**s3, "max_retries": "0", **more})


def short_repr(error: BaseException | None) -> str:
    """All that a traceback shows of an error."""
    text = ""
    while error is not None:
        text += f"{error!s} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return text


def test_a_store_out_of_reach_is_an_os_error(s3: dict[str, str]) -> None:
    url = f"http://user:{quote(SECRET, safe='')}@127.0.0.1:1"
    store = failing(s3, AWS_ENDPOINT_URL=url, AWS_SECRET_ACCESS_KEY=SECRET)
    for call in (store.read, store.open, store.exists, store.list, store.delete):
        with pytest.raises(OSError, match="Generic S3 error") as caught:
            call("file")
        assert not isinstance(caught.value, FileNotFoundError)
        assert type(caught.value.__cause__).__module__ == "obstore.exceptions"
        assert SECRET not in short_repr(caught.value)
        assert quote(SECRET, safe="") not in short_repr(caught.value)


def test_a_panic_during_a_call_is_an_os_error(s3: dict[str, str]) -> None:
    store = failing(s3, AWS_ENDPOINT_URL=f"http://user:{SECRET}@127.0.0.1:1")
    with pytest.raises(OSError, match="queues/q/file") as caught:
        store.read("file")
    assert type(caught.value) is OSError
    assert SECRET not in short_repr(caught.value)


class Answering(Relay):
    """An endpoint that refuses all, and quotes what it was sent."""

    status = 403

    def serve(self, body: bytes) -> None:
        signed = self.headers.get("Authorization", "")
        text = f"<Error><AWSAccessKeyId>{SIGNED}</AWSAccessKeyId>"
        text += f"<StringToSign>{SIGNED}</StringToSign><Message>{SECRET} {signed} http://h/b?sv={SIGNED}&amp;x=1</Message></Error>"
        self.answer(self.status, text.encode(), {})


@pytest.mark.parametrize("status", [401, 403, 400, 500])
def test_no_secret_is_in_the_error_of_a_refusal(s3: dict[str, str], status: int) -> None:
    server = relay(type("Refusing", (Answering,), {"status": status}), "http://127.0.0.1:1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        key = "AKIAIOSFODNN7EXAMPLE"
        options = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": SECRET}
        store = failing(s3, AWS_ENDPOINT_URL=url, **options)
        kind = PermissionError if status in (401, 403) else OSError
        for call in (store.read, store.open, lambda path: store.create(path, b"1"), store.list):
            with pytest.raises(kind) as caught:
                call("file")
            assert SECRET not in short_repr(caught.value)
            assert key not in short_repr(caught.value)
            assert SIGNED not in short_repr(caught.value)
            assert "Signature=" not in short_repr(caught.value)
            assert "queues/q/file" in str(caught.value)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def test_keys_of_the_environment_work_and_stay_hidden(
    s3: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    for options in ({}, {"timeout": "20s"}):
        store = ObjectStore(f"s3://queues/{uuid.uuid4().hex}", options)
        store.create("file", b"1")
        assert store.read("file") == b"1"


class Metadata(Relay):
    """The metadata of a machine that has a role."""

    asked: list[str]

    def serve(self, body: bytes) -> None:
        self.asked.append(f"{self.command} {self.path}")
        role = {
            "AccessKeyId": "AKIAROLE",
            "SecretAccessKey": "role-secret",
            "Token": "role-token",
            "Expiration": "2999-01-01T00:00:00Z",
            "LastUpdated": "2020-01-01T00:00:00Z",
            "Code": "Success",
            "Type": "AWS-HMAC",
        }
        answers = {"token": b"imds", "security-credentials/": b"queue-role"}
        end = next((end for end in answers if self.path.endswith(end)), "")
        self.answer(200, answers.get(end, json.dumps(role).encode()), {})


def test_without_keys_the_role_of_the_machine_is_used(
    counted: tuple[ObjectStore, Requests],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    server = relay(type("Role", (Metadata,), {"asked": []}), "http://127.0.0.1:1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        store, seen = counted
        url = f"http://127.0.0.1:{server.server_address[1]}"
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        options = {name: value for name, value in store.options.items() if name not in keys}
        without = ObjectStore(store.root, {**options, "AWS_METADATA_ENDPOINT": url})
        without.create("file", b"1")
        assert "Credential=AKIAROLE/" in seen[-1][2]["authorization"]
        assert seen[-1][2]["x-amz-security-token"] == "role-token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


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
