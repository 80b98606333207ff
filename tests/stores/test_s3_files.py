"""The requests of each call of a store on S3, its credentials, and no secret in its errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.handles import shown
from support.relays import Relay, Requests, counting, serving
from support.stores import RemoteStore
from support.tables import parquet_bytes

from spark_mq.delta.object_store import ObjectStore

pytestmark = pytest.mark.only_on("versitygw")

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKEY"
SIGNED = "c2lnbmF0dXJlIG9mIGEgcmVxdWVzdA"  # no option has it


@pytest.fixture
def counted(remote: RemoteStore) -> Iterator[tuple[ObjectStore, Requests]]:
    """A store behind a proxy, and the requests that went through."""
    with counting(remote.url) as (url, seen):
        yield ObjectStore(remote.new_path(), remote.options_at(url)), seen


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
    store.write("file", b"1")
    store.write("small.parquet", parquet_bytes(pa.table({"a": [1, 2]})))
    if "open" in name:
        large = pa.table({name: [os.urandom(1_000) for _ in range(1_000)] for name in "ab"})
        data = parquet_bytes(large, row_group_size=500, compression="none")
        store.write("large.parquet", data)
    seen.clear()
    call, expected = calls()[name]
    call(store)
    assert [method for method, _, _ in seen] == expected


def test_create_is_if_none_match_and_write_is_not(counted: tuple[ObjectStore, Requests]) -> None:
    store, seen = counted
    store.create("file", b"1")
    store.write("file", b"2")
    assert [headers.get("if-none-match") for _, _, headers in seen] == ["*", None]


def failing(remote: RemoteStore, **more: str) -> ObjectStore:
    return ObjectStore("s3://queues/q", {**remote.options, "max_retries": "0", **more})


def test_a_store_out_of_reach_is_an_os_error(remote: RemoteStore) -> None:
    url = f"http://user:{quote(SECRET, safe='')}@127.0.0.1:1"
    store = failing(remote, AWS_ENDPOINT_URL=url, AWS_SECRET_ACCESS_KEY=SECRET)
    for call in (store.read, store.open, store.exists, store.list, store.delete):
        with pytest.raises(OSError, match="Generic S3 error") as caught:
            call("file")
        assert not isinstance(caught.value, FileNotFoundError)
        assert type(caught.value.__cause__).__module__ == "obstore.exceptions"
        assert SECRET not in shown(caught.value)
        assert quote(SECRET, safe="") not in shown(caught.value)


def test_a_panic_during_a_call_is_an_os_error(remote: RemoteStore) -> None:
    store = failing(remote, AWS_ENDPOINT_URL=f"http://user:{SECRET}@127.0.0.1:1")
    with pytest.raises(OSError, match="queues/q/file") as caught:
        store.read("file")
    assert type(caught.value) is OSError
    assert SECRET not in shown(caught.value)


def refuse(to: Relay, status: int) -> None:
    """Refuse a request, and quote what was sent."""
    signed = to.headers.get("Authorization", "")
    text = f"<Error><AWSAccessKeyId>{SIGNED}</AWSAccessKeyId>"
    text += f"<StringToSign>{SIGNED}</StringToSign><Message>{SECRET} {signed} http://h/b?sv={SIGNED}&amp;x=1</Message></Error>"
    to.answer(status, text.encode(), {})


@pytest.mark.parametrize("status", [401, 403, 400, 500])
def test_no_secret_is_in_the_error_of_a_refusal(remote: RemoteStore, status: int) -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    options = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": SECRET}
    kind = PermissionError if status in (401, 403) else OSError
    with serving(lambda to, _: refuse(to, status)) as url:
        store = failing(remote, AWS_ENDPOINT_URL=url, **options)
        for call in (store.read, store.open, lambda path: store.create(path, b"1"), store.list):
            with pytest.raises(kind, match="queues/q/file") as caught:
                call("file")
            text = shown(caught.value)
            assert not [hidden for hidden in (SECRET, key, SIGNED, "Signature=") if hidden in text]


def test_keys_of_the_environment_work_and_stay_hidden(
    remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in remote.options.items():
        monkeypatch.setenv(name, value)
    for options in ({}, {"timeout": "20s"}):
        store = ObjectStore(remote.new_path(), options)
        store.create("file", b"1")
        assert store.read("file") == b"1"


def answer_as_machine(to: Relay) -> None:
    """Be the metadata of a machine that has a role, and a store that takes all from it."""
    role = {
        "AccessKeyId": "AKIAROLE",
        "SecretAccessKey": "role-secret",
        "Token": "role-token",
        "Expiration": "2999-01-01T00:00:00Z",
        "LastUpdated": "2020-01-01T00:00:00Z",
        "Code": "Success",
        "Type": "AWS-HMAC",
    }
    answers = {"token": b"imds", "security-credentials/": b"queue-role", "file": b""}
    end = next((end for end in answers if to.path.endswith(end)), "")
    to.answer(200, answers.get(end, json.dumps(role).encode()), {"ETag": '"1"'})


def test_without_keys_the_role_of_the_machine_is_used(
    remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    asked: list[dict[str, str]] = []

    def serve(to: Relay, _: bytes) -> None:
        asked.append({name.lower(): value for name, value in to.headers.items()})
        answer_as_machine(to)

    with serving(serve) as url:
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        options = {k: v for k, v in remote.options_at(url).items() if k not in keys}
        store = ObjectStore("s3://queues/q", {**options, "AWS_METADATA_ENDPOINT": url})
        store.create("file", b"1")
        assert "Credential=AKIAROLE/" in asked[-1]["authorization"]
        assert asked[-1]["x-amz-security-token"] == "role-token"
