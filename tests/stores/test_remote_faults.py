"""Over an object store that is slow, fails, or loses its replies: no false LeaseLost, no second
publish, nothing lost.
"""

from __future__ import annotations

import pytest
from faulty_store import AFTER, BEFORE, CONFLICT, REFUSED, RESET, SLOW, FaultyStore
from support.readers import opened, reads_beside_a_writer
from support.stores import RemoteStore
from support.tables import group_ledger_of, ledgers_of, messages_of

from spark_mq import Queue
from spark_mq.errors import StorageError
from spark_mq.testing import ManualClock

FAULTS = [BEFORE, AFTER, RESET, SLOW, CONFLICT]


@pytest.fixture
def path(remote: RemoteStore) -> str:
    return remote.new_path()


@pytest.fixture
def queue(proxy: FaultyStore, remote: RemoteStore, path: str, clock: ManualClock) -> Queue:
    """A queue that is reached through the proxy."""
    return Queue.create(path, storage_options=proxy.options, clock=clock)


@pytest.fixture
def other(queue: Queue, remote: RemoteStore, clock: ManualClock) -> Queue:
    """The same queue, reached directly: what it sees is true."""
    return Queue.open(queue.path, storage_options=remote.options, clock=clock)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["messages/_delta_log", "messages/part-"])
def test_a_publish_lands_once(
    queue: Queue, other: Queue, proxy: FaultyStore, fault: str, part: str
) -> None:
    proxy.once(fault, "PUT", part)
    receipt = queue.publish(["a", "b"])
    assert proxy.met() == 1
    lease = other.group().lease("w", max_messages=10)
    assert [(m.sequence, m.value) for m in lease.messages] == list(
        zip(receipt.sequences, (b"a", b"b"), strict=True)
    )


@pytest.mark.parametrize("fault", [BEFORE, REFUSED])
def test_only_a_refused_publish_says_that_nothing_was_changed(
    other: Queue, proxy: FaultyStore, fault: str
) -> None:
    options = {**proxy.options, "max_retries": "1", "backoff_config.init_backoff": "1ms"}
    queue = Queue.open(other.path, storage_options=options)
    proxy.always(fault, "PUT", "messages/_delta_log")
    with pytest.raises(StorageError) as raised:
        queue.publish("a")
    assert raised.value.landed is (False if fault == REFUSED else None)


def test_a_store_that_is_busy_with_a_name_for_ever_is_not_out_of_reach(
    queue: Queue, proxy: FaultyStore
) -> None:
    proxy.always(CONFLICT, "PUT", "messages/part-")
    with pytest.raises(StorageError, match=r"Other requests .* were in the way") as raised:
        queue.publish("a")
    assert raised.value.landed is False
    assert proxy.met() > 2


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["leases/_delta_log", "leases/consumer_group"])
def test_a_lease_whose_reply_is_lost_is_taken_once(
    queue: Queue, other: Queue, proxy: FaultyStore, fault: str, part: str
) -> None:
    queue.publish(["a", "b"])
    queue.group().ensure()
    proxy.once(fault, "PUT", part)
    lease = queue.group().lease("w", max_messages=1)
    assert proxy.met() == 1
    assert lease.messages[0].delivery_count == 1
    assert other.group().stats().leased == 1


def states(other: Queue) -> list[str]:
    """What SQL sees of the ledgers."""
    table = opened(ledgers_of(other)).to_pyarrow_table(columns=["state"])
    return table["state"].to_pylist()


def test_a_file_that_a_store_refuses_after_the_commit_is_left_to_the_sweep(
    queue: Queue, other: Queue, proxy: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its rows, so nothing is lost but what SQL sees until then."""
    queue.publish(["a", "b"])
    queue.group().lease("w", max_messages=1)
    proxy.always(REFUSED, "PUT", "leases/consumer_group")
    lease = queue.group().lease("w", max_messages=1)
    assert [m.value for m in lease.messages] == [b"b"]
    assert "is left to the next sweep" in caplog.text
    assert other.group().stats().leased == 2
    with pytest.raises(OSError, match="not found"):
        states(other)
    other.sweep()
    assert states(other).count("leased") == 2


def test_a_process_that_may_not_write_files_changes_nothing(
    other: Queue, proxy: FaultyStore
) -> None:
    other.publish(["a", "b"])
    other.group().ensure()
    proxy.always(REFUSED, "PUT", "leases/consumer_group")
    with pytest.raises(StorageError) as raised:
        Queue.open(other.path, storage_options=proxy.options).group().lease("w")
    assert raised.value.landed is False
    assert other.group().stats().leased == 0


@pytest.mark.slow
def test_a_reader_beside_a_busy_writer_never_misses_a_file(other: Queue) -> None:
    """Although the file and the log entry that names it are put at the same time."""
    other.publish(["a", "b"])
    reads_beside_a_writer(other, 500)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "extend"])
def test_a_settle_whose_reply_is_lost_is_no_lease_lost(
    queue: Queue, other: Queue, proxy: FaultyStore, fault: str, verb: str
) -> None:
    queue.publish(["a", "b"])
    lease = queue.group().lease("w", max_messages=2)
    proxy.once(fault, "PUT", "leases/_delta_log")
    assert getattr(lease, verb)().settled == 2
    assert proxy.met() == 1
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
    queue: Queue, other: Queue, proxy: FaultyStore, seed: int
) -> None:
    proxy.often(0.03, seed)
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
    assert proxy.met() > 3
    assert acked == published
    assert other.group().stats().acked == len(published) == messages_of(other).index().total


def test_a_refused_secret_is_in_no_error(remote: RemoteStore, path: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (delta-rs has several errors)
        Queue.open(path, storage_options=remote.options_at("http://127.0.0.1:1"))
    assert "127.0.0.1:1" in str(caught.value)
    assert remote.secret not in repr(caught.value)
    assert remote.secret not in str(caught.value.__cause__)
