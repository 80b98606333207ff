"""How many requests each operation takes over S3, with nobody else committing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from support.s3_endpoint import BUCKET, storage_options
from support.s3_requests import Requests, counting

from spark_mq import Lease, Queue


@pytest.fixture
def counted(s3: dict[str, str]) -> Iterator[tuple[Queue, Requests]]:
    with counting(s3["AWS_ENDPOINT_URL"]) as (url, seen):
        path = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        queue = Queue.create(path, storage_options=storage_options(url))
        for _ in range(3):
            queue.publish([b"a", b"b"])
            lease = queue.group().lease("w", max_messages=1)
            assert lease is not None
            lease.ack()
        yield queue, seen


def measured(seen: Requests, operation: Callable[[], object]) -> list[str]:
    before = len(seen)
    operation()
    return [f"{method} {path.rpartition('/')[2][:40]}" for method, path, *_ in seen[before:]]


def test_requests_of_an_operation_alone(counted: tuple[Queue, Requests]) -> None:
    queue, seen = counted
    leases: list[Lease | None] = []
    requests = {
        "publish": measured(seen, lambda: queue.publish([b"c"])),
        "lease": measured(seen, lambda: leases.append(queue.group().lease("w"))),
        "ack": measured(seen, lambda: leases[0] and leases[0].ack()),
    }
    counts = {name: len(made) for name, made in requests.items()}
    assert counts["publish"] <= 2, requests
    assert counts["ack"] <= 2, requests
    assert counts["lease"] <= 3, requests
