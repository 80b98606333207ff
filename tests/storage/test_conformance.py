"""What every storage of a queue must do: one suite over the queue in memory and the queue on Delta
tables.
"""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.clocks import instant
from support.handles import again, once
from support.handles import lease as take
from support.queues import Make
from support.tables import add_file, context_of, messages_of, on_write

from spark_mq import Lease, Message, Queue, SettleResult, errors
from spark_mq.ledger.message_index import sequence
from spark_mq.testing import ManualClock


def values(lease: Lease) -> list[bytes]:
    return [message.value for message in lease.messages]


# -- publishing


def test_sequences_are_the_commit_and_the_place_in_it(queue: Queue) -> None:
    first, second = queue.publish(["a", "b", "c"]), queue.publish("d")
    assert list(first.sequences) == [sequence(first.version, n) for n in range(3)]
    assert list(second.sequences) == [sequence(first.version + 1, 0)]
    assert [m.sequence for m in take(queue).messages] == [*first.sequences, *second.sequences]


def test_a_message_has_what_its_ledger_knows(make: Make, clock: ManualClock) -> None:
    queue = make(lanes=4, retry_delay=0)
    begun = clock()
    due = begun.replace(microsecond=0) + timedelta(seconds=1)  # a publish rounds it up to that
    late = begun + timedelta(hours=1)
    timed = Message("c", deliver_at=due, expires_at=late)
    queue.publish([Message("a", priority=9, key="k"), Message("b", key="l"), timed])
    queue.publish([Message("d", priority=3, expires_at="1h"), "e"])
    clock.advance("2s")
    leased_at = clock()
    lease = take(queue, 100)
    assert {message.failure_count for message in lease.messages} == {0}
    failed = lease.messages[0]
    lease.nack([failed.sequence])
    lease.release()
    clock.advance("2s")
    again = take(queue, 100).messages
    assert {m.text: (m.priority, m.deliver_at, m.expires_at) for m in again} == {
        "a": (9, None, None),
        "b": (0, None, None),
        "c": (0, due, late),
        "d": (3, None, late),
        "e": (0, None, None),
    }
    assert {m.text: m.failure_count for m in again} == {
        m.text: m.text == failed.text for m in again
    }
    assert [m.text for m in again if m.first_leased_at == leased_at] == [failed.text]


def test_a_table_keeps_its_ids_and_times_and_gets_those_it_lacks(
    queue: Queue, clock: ManualClock
) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    times = pa.array([at, at], pa.timestamp("ms", "UTC"))
    rows = {"value": ["x", "y"], "message_id": ["mine", None], "published_at": times}
    queue.publish(pa.table(rows))
    queue.publish(pa.table({"value": pa.array(["z"], pa.large_string())}))
    mine, yours, latest = take(queue).messages
    assert (mine.message_id, mine.published_at, yours.published_at) == ("mine", at, at)
    assert UUID(yours.message_id).version == 4
    assert (latest.value, latest.published_at) == (b"z", clock())


# -- leasing, settling, groups


def test_a_repeat_by_id_is_known_from_the_past(queue: Queue, clock: ManualClock) -> None:
    queue.publish([str(n) for n in range(60)])
    first, lost = take(queue, 1), take(queue, 1)
    first.nack(delay="1d", error="later")
    clock.advance("62s")
    for _ in range(2):
        other = again(queue).group()
        assert other.ack(first.lease_id) == SettleResult(0)
        with pytest.raises(errors.LeaseLost) as caught:
            other.ack("no-such-lease")
        assert caught.value.data["lease_id"] == "no-such-lease"
        queue.sweep()
        take(queue, 1).ack()
    assert other.ack(lost.lease_id) == SettleResult(0, already_settled=1)


def test_a_message_without_headers_has_null_in_tables_and_an_empty_dict_in_python(
    queue: Queue,
) -> None:
    queue.publish([b"a", "b", Message("c"), Message("d", headers={"h": "1"})])
    with queue.publisher() as publisher:
        publisher.publish(Message("e"))
    queue.publish(pa.table({"value": ["f"]}))
    taken = queue.group().lease("w", max_messages=9)
    assert taken.table()["headers"].to_pylist() == [None, None, None, [("h", "1")], None, None]
    assert [m.headers for m in taken.messages] == [{}, {}, {}, {"h": "1"}, {}, {}]


def test_a_group_starts_where_it_is_asked_to(queue: Queue, clock: ManualClock) -> None:
    receipts = []
    for value in "abc":
        receipts.append(queue.publish(value))
        clock.advance("1m")
    times = [instant(file.committed_at) for file in messages_of(queue).index().files]

    def read(name: str, start: Any) -> list[bytes]:
        lease = queue.group(name, start=start).lease("w", max_messages=10)
        return values(lease) if lease else []

    second = receipts[1].sequences[0]
    assert read("earliest", "earliest") == [b"a", b"b", b"c"]
    for name, start in {
        "sequence": second,
        "between": receipts[0].sequences[0] + 1,
        "time": times[1],
        "text": times[1].isoformat(),  # as the option startingPosition has it
        "zulu": f"{times[1]:%Y-%m-%dT%H:%M:%S.%fZ}",
        "digits": str(second),
    }.items():
        assert read(name, start) == [b"b", b"c"]
    assert read("late", times[2] + timedelta(hours=1)) == read("latest", "latest") == []
    queue.publish("d")
    for name in ("late", "latest"):
        assert read(name, "earliest") == [b"d"], "the group is there: its start is past"


def test_of_two_that_make_a_group_one_decides_its_start(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a", "b"])
    other = again(queue)
    beaten = once(before=lambda: other.group("g", start="latest").ensure())
    on_write(monkeypatch, queue, beaten)
    group = queue.group("g", start="earliest").ensure()
    assert group.lease("w") is None
    assert group.stats().ready == 0
    assert queue.groups() == ["g"]


# -- across processes


def test_a_queue_and_its_group_can_be_pickled(delta_queue: Make) -> None:
    queue = delta_queue(visibility_timeout="10s")
    receipt = queue.publish(["a", "b"])
    lease = take(queue, 1)
    copy, group, copied = pickle.loads(pickle.dumps((queue, queue.group(), receipt)))
    assert copied == receipt
    assert (copy.path, copy.settings, context_of(copy).clock()) == (
        queue.path,
        queue.settings,
        context_of(queue).clock(),
    )
    assert group.ack(lease.lease_id) == SettleResult(1)
    assert values(take(copy)) == [b"b"]


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_errors_survive_pickling_with_their_data(kind: type[errors.SparkMQError]) -> None:
    error = kind("what happened", group="g", lost=[(1, 2, "why")], result=SettleResult(1, 2))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.data) == (kind, "what happened", error.data)
    assert (copy.group, copy.lost, copy.result) == ("g", [(1, 2, "why")], SettleResult(1, 2))


# -- other writers of messages/ (Delta only)


def test_a_path_added_twice_counts_once(delta_queue: Make) -> None:
    """As a writer does whose commit landed while its reply got lost."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    file = messages_of(queue).index().files[0]
    add_file(queue, file.path, file.size)
    for handle in (queue, again(queue)):
        assert handle.stats()["published"] == 2
    assert values(take(queue)) == [b"a", b"b"]
