"""A store without credentials is named as such. Nothing outside of this machine is asked."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from spark_mq import Queue
from spark_mq.delta.store_errors import to_storage_error
from spark_mq.errors import SparkMQError, StorageError


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a port that nobody listens on, in an environment without credentials."""
    for name in os.environ:
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


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
        ("s3://b/q", "PUT http://169.254.169.254/latest/api/token - 403 Forbidden", "aws_"),
        ("S3://b/q", "PUT http://169.254.169.254/latest/api/token - 403 Forbidden", "aws_"),
        ("s3a://b/q", "GET http://169.254.170.2/v2/credentials: timed out", "aws_"),
        (
            "gs://b/q",
            "GET http://metadata.google.internal/computeMetadata/v1/i: dns error",
            "google_",
        ),
        ("az://b/q", "GET http://169.254.169.254/metadata/identity/oauth2/token", "azure_"),
        ("abfss://b@a/q", "GET http://10.0.0.1/metadata/identity/oauth2/token", "azure_"),
    ],
)
def test_each_store_names_its_own_options(path: str, asked: str, named: str) -> None:
    error = PermissionError(13, f"Generic error: Error performing {asked}")
    text = str(to_storage_error(path, error, "opening"))
    assert "No credentials were found" in text
    assert named in text
    assert isinstance(to_storage_error(path, error, "opening"), SparkMQError)


def test_the_options_that_the_error_names_exist(tmp_path: Path) -> None:
    from spark_mq.delta.storage_options import store_options
    from spark_mq.delta.store_errors import _CREDENTIALS

    for scheme, start in (("s3", "s3"), ("gs", "g"), ("az", "a")):
        words = _CREDENTIALS[start].replace(",", " ").split()
        names = [word for word in words if "_" in word]
        assert names
        for name in names:
            assert store_options(scheme, {name: "x"}).config


def test_a_403_inside_a_name_is_no_refusal() -> None:
    error = OSError(5, "GET http://host/66e2d231af9f403d8991b8 - status code: 500 Internal Error")
    assert "out of reach" in str(to_storage_error("s3://b/q", error, "reading"))


@pytest.mark.parametrize(
    "text",
    [
        "Failed to open local file '/data/kafka connect/http/f'. Detail: [errno 5] I/O error",
        "Failed to open local file '/quota/forbidden/f'. Detail: [errno 5] I/O error",
        "cannot read consumer_group=dns/part-1.parquet",
        "the file ended after 5003 of 15010 bytes",
    ],
)
def test_a_path_or_a_size_says_nothing_of_the_cause(text: str) -> None:
    found = str(to_storage_error("/q", OSError(5, text), "reading"))
    assert found.endswith("Retry. If it fails again, check the store")


@pytest.mark.parametrize(
    "text",
    [
        "error trying to connect: tcp connect error",
        "Connection reset by peer",
        "Server returned non-2xx status code: 503 Service Unavailable",
        "operation timed out",
        "Generic S3 error: Error performing GET http://127.0.0.1:1/b in 2s, after 2 retries",
    ],
)
def test_a_store_that_does_not_answer_is_out_of_reach(text: str) -> None:
    assert "out of reach" in str(to_storage_error("s3://b/q", OSError(5, text), "reading"))
