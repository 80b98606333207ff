"""A store without credentials is named as such. Nothing outside of this machine is asked."""

from __future__ import annotations

import os
import re

import pytest
from support.byte_store import VERBS, ByteStore, Call
from support.servers import free_port

from spark_mq import Queue
from spark_mq.delta.storage_options import store_options
from spark_mq.errors import StorageError


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a port that nobody listens on, in an environment without credentials."""
    for name in os.environ:
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    return free_port()


def text_of(byte_store: ByteStore, path: str, error: OSError) -> str:
    """What a user reads if each call of the store fails so."""

    def fail(_: Call) -> None:
        raise error

    byte_store.on(*VERBS, act=fail)
    options = {"account_name": "a"} if path.startswith("az") else None
    with pytest.raises(StorageError) as caught:
        Queue.open(path, storage_options=options)
    return str(caught.value)


@pytest.mark.parametrize("call", [Queue.open, Queue.create])
def test_a_store_without_credentials_is_no_store_out_of_reach(
    closed_port: int, call: object
) -> None:
    options = {
        "aws_metadata_endpoint": f"http://127.0.0.1:{closed_port}",
        "aws_allow_http": "true", "aws_region": "eu-central-1", "max_retries": "0",
    }  # fmt: skip
    with pytest.raises(StorageError) as caught:
        call("s3://bucket/orders", storage_options=options)  # type: ignore[operator]
    text = str(caught.value)
    assert "No credentials were found" in text
    assert "aws_access_key_id" in text
    assert "aws_secret_access_key" in text
    assert "look at the store" not in text
    assert "out of reach" not in text


def test_a_store_out_of_reach_with_credentials_stays_one(closed_port: int) -> None:
    options = {
        "aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_allow_http": "true",
        "aws_endpoint": f"http://127.0.0.1:{closed_port}", "aws_region": "eu-central-1",
        "max_retries": "0",
    }  # fmt: skip
    with pytest.raises(StorageError, match="out of reach") as caught:
        Queue.open("s3://bucket/latest/api/token", storage_options=options)
    assert "credentials" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "asked", "named"),
    [
        ("S3://b/q", "PUT http://169.254.169.254/latest/api/token - 403 Forbidden", "aws_"),
        ("s3a://b/q", "GET http://169.254.170.2/v2/credentials: timed out", "aws_"),
        (
            "gs://b/q",
            "GET http://metadata.google.internal/computeMetadata/v1/i: dns error",
            "google_",
        ),
        (
            "abfss://b@a.dfs.core.windows.net/q",
            "GET http://10.0.0.1/metadata/identity/oauth2/token",
            "azure_",
        ),
    ],
)
def test_each_store_names_its_own_options(
    byte_store: ByteStore, path: str, asked: str, named: str
) -> None:
    error = PermissionError(13, f"Generic error: Error performing {asked}")
    text = text_of(byte_store, path, error)
    assert "No credentials were found" in text
    names = re.findall(r"\b(?:aws|azure|google)_[a-z_]+", text)
    assert names
    for name in names:
        assert name.startswith(named)
        assert store_options(path.partition(":")[0].lower(), {name: "x"}).config, "it exists"


@pytest.mark.parametrize(
    "text",
    [
        "Failed to open local file '/data/kafka connect/http/f'. Detail: [errno 5] I/O error",
        "Failed to open local file '/quota/forbidden/f'. Detail: [errno 5] I/O error",
        "cannot read consumer_group=dns/part-1.parquet",
        "the file ended after 5003 of 15010 bytes",
    ],
)
def test_a_path_or_a_size_says_nothing_of_the_cause(byte_store: ByteStore, text: str) -> None:
    found = text_of(byte_store, "/q", OSError(5, text))
    assert found.endswith("Retry. If it fails again, check the store")


@pytest.mark.parametrize(
    "text",
    [
        "Connection reset by peer",
        "Server returned non-2xx status code: 503 Service Unavailable",
        "operation timed out",
        "Generic S3 error: Error performing GET http://127.0.0.1:1/b in 2s, after 2 retries",
        # With 403 in a name.
        "GET http://host/66e2d231af9f403d8991b8 - status code: 500 Internal Error",
    ],
)
def test_a_store_that_does_not_answer_is_out_of_reach(byte_store: ByteStore, text: str) -> None:
    assert "out of reach" in text_of(byte_store, "s3://b/q", OSError(5, text))
