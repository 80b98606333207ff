"""Over an object store that is slow, fails, or loses its replies: no false LeaseLost, no second
publish, nothing lost. Only with --s3.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from support.faulty_s3 import AFTER, BEFORE, REFUSED, RESET, SLOW, FaultyS3
from support.tables import context_of, group_ledger_of, messages_of

from spark_mq import Queue
from spark_mq.errors import StorageError
from spark_mq.testing import ManualClock

FAULTS = [BEFORE, AFTER, RESET, SLOW]


@pytest.fixture
def faulty(s3: dict[str, str]) -> Iterator[FaultyS3]:
    with FaultyS3(s3["AWS_ENDPOINT_URL"]) as proxy:
        yield proxy


@pytest.fixture
def path() -> str:
    return f"s3://queues/{uuid.uuid4().hex}/queue"


@pytest.fixture
def queue(faulty: FaultyS3, s3: dict[str, str], path: str, clock: ManualClock) -> Queue:
    """A queue that is reached through the proxy."""
    return Queue.create(path, storage_options={**s3, "AWS_ENDPOINT_URL": faulty.url}, clock=clock)


@pytest.fixture
def other(queue: Queue, s3: dict[str, str], clock: ManualClock) -> Queue:
    """The same queue, reached directly: what it sees is true."""
    return Queue.open(queue.path, storage_options=s3, clock=clock)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["messages/_delta_log", "messages/part-"])
def test_a_publish_lands_once(
    queue: Queue, other: Queue, faulty: FaultyS3, fault: str, part: str
) -> None:
    faulty.once(fault, "PUT", part)
    receipt = queue.publish(["a", "b"])
    assert faulty.met() == 1
    lease = other.group().lease("w", max_messages=10)
    assert lease is not None
    assert [(m.sequence, m.value) for m in lease.messages] == list(
        zip(receipt.sequences, (b"a", b"b"), strict=True)
    )


@pytest.mark.parametrize("fault", [BEFORE, REFUSED])
def test_only_a_refused_publish_says_that_nothing_was_changed(
    other: Queue, faulty: FaultyS3, fault: str
) -> None:
    options = {
        **context_of(other).storage_options,
        "AWS_ENDPOINT_URL": faulty.url,
        "max_retries": "1",
        "backoff_config.init_backoff": "1ms",
    }
    queue = Queue.open(other.path, storage_options=options)
    faulty.always(fault, "PUT", "messages/_delta_log")
    with pytest.raises(StorageError) as raised:
        queue.publish("a")
    assert raised.value.landed is (False if fault == REFUSED else None)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["leases/_delta_log", "leases/consumer_group"])
def test_a_lease_whose_reply_is_lost_is_taken_once(
    queue: Queue, other: Queue, faulty: FaultyS3, fault: str, part: str
) -> None:
    queue.publish(["a", "b"])
    queue.group().ensure()
    faulty.once(fault, "PUT", part)
    lease = queue.group().lease("w", max_messages=1)
    assert faulty.met() == 1
    assert lease is not None
    assert lease.messages[0].delivery_count == 1
    assert other.group().stats().leased == 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "extend"])
def test_a_settle_whose_reply_is_lost_is_no_lease_lost(
    queue: Queue, other: Queue, faulty: FaultyS3, fault: str, verb: str
) -> None:
    queue.publish(["a", "b"])
    lease = queue.group().lease("w", max_messages=2)
    assert lease is not None
    faulty.once(fault, "PUT", "leases/_delta_log")
    assert getattr(lease, verb)().settled == 2
    assert faulty.met() == 1
    (reported,) = {
        (r.state, r.delivery_count) for r in group_ledger_of(other.group()).current()
    } or {("settled", 1)}
    expected = {
        "ack": ("settled", 1),
        "nack": ("available", 1),
        "reject": ("dead", 1),
        "release": ("available", 0),
        "extend": ("leased", 1),
    }
    assert reported == expected[verb]


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_all_the_time_loses_and_doubles_nothing(
    queue: Queue, other: Queue, faulty: FaultyS3, seed: int
) -> None:
    faulty.often(0.03, seed)
    published, acked = set(), set()
    for _ in range(4):
        published |= set(queue.publish([str(n) for n in range(5)]).sequences)
        lease = queue.group().lease("w", max_messages=7)
        if lease is not None:
            assert lease.ack().settled == len(lease)
            acked |= {m.sequence for m in lease.messages}
    queue.sweep()
    while (lease := queue.group().lease("w", max_messages=7)) is not None:
        assert lease.ack().settled == len(lease)
        acked |= {m.sequence for m in lease.messages}
    assert faulty.met() > 3
    assert acked == published
    assert other.group().stats().acked == len(published) == messages_of(other).index().total


def test_credentials_may_come_from_the_environment(
    s3: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    queue = Queue.create(path)
    queue.publish(["a"])
    assert Queue.open(path).group().lease("w") is not None


def test_a_refused_secret_is_in_no_error(s3: dict[str, str], path: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (delta-rs has several errors)
        Queue.open(
            path,
            storage_options={
                **s3,
                "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
                "AWS_SECRET_ACCESS_KEY": "hunter2",
            },
        )
    assert "hunter2" not in repr(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)
