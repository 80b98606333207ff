"""What every storage of a queue must do: one suite over the queue in memory and the queue on Delta
tables.
"""

from __future__ import annotations

import doctest
import io
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from support.handles import again, once
from support.tables import context_of, messages_of, on_write

from spark_mq import (
    GroupStats,
    Lease,
    Message,
    Queue,
    ReceivedMessage,
    SettleResult,
    errors,
    testing,
)
from spark_mq.ledger.message_index import sequence
from spark_mq.parquet.schema import DELIVERY_SCHEMA, MESSAGE_SCHEMA
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.clock import to_datetime

Make = Callable[..., Queue]


def take(
    queue: Queue, count: int = 1000, *, group: str = "default", worker: str = "w", **options: Any
) -> Lease:
    """A lease that is expected to hold something."""
    lease = queue.group(group).lease(worker, max_messages=count, **options)
    assert lease is not None
    return lease


def values(lease: Lease) -> list[bytes]:
    return [message.value for message in lease.messages]


def stats(queue: Queue, group: str = "default") -> GroupStats:
    return queue.group(group).ensure().stats()


# -- publishing


def test_sequences_are_the_commit_and_the_place_in_it(queue: Queue) -> None:
    first, second = queue.publish(["a", "b", "c"]), queue.publish("d")
    assert list(first.sequences) == [sequence(first.version, n) for n in range(3)]
    assert list(second.sequences) == [sequence(first.version + 1, 0)]
    assert [m.sequence for m in take(queue).messages] == [*first.sequences, *second.sequences]


def test_what_is_published_is_delivered(queue: Queue, clock: ManualClock) -> None:
    queue.publish(
        [
            Message("größe", key="k", headers={"a": "1", "b": ""}, message_id="id-1"),
            Message(b"\x00\xff"),
            Message(b""),
        ]
    )
    first, second, third = take(queue).messages
    receipt_at = sequence(1, 0)
    assert first == ReceivedMessage(
        receipt_at, "id-1", "k", "größe".encode(), {"a": "1", "b": ""}, clock(), 1,
        first_leased_at=clock(),
    )  # fmt: skip
    assert (second.key, second.value, second.headers) == (None, b"\x00\xff", {})
    assert third.value == b""
    assert len({first.message_id, second.message_id, third.message_id}) == 3


def test_a_message_has_what_its_ledger_knows(make: Make, clock: ManualClock) -> None:
    queue = make(lanes=4, retry_delay=0)
    begun = clock()
    due = begun.replace(microsecond=0) + timedelta(seconds=1)  # a publish rounds it up to that
    timed = {"deliver_at": due, "expires_at": begun + timedelta(hours=1)}
    given = [Message("a", priority=9, key="k"), Message("b", key="l"), Message("c", **timed)]
    queue.publish([*given, Message("d", priority=3, expires_at="2h")])
    queue.publish(["e"])
    clock.advance("2s")
    leased_at = clock()
    lease = take(queue, 100)
    assert {message.failure_count for message in lease.messages} == {0}
    lease.nack([lease.messages[0].sequence])
    lease.release()
    clock.advance("2s")
    found = {message.text: message for message in take(queue, 100).messages}
    named = lease.messages[0].text
    assert {text: one.priority for text, one in found.items()} == {
        "a": 9, "b": 0, "c": 0, "d": 3, "e": 0,
    }  # fmt: skip
    assert {text: one.failure_count for text, one in found.items()} == {
        text: int(text == named) for text in found
    }
    assert {text for text, one in found.items() if one.first_leased_at == leased_at} == {named}
    assert (found["c"].deliver_at, found["c"].expires_at) == (
        timed["deliver_at"],
        timed["expires_at"],
    )
    assert found["d"].deliver_at is None
    assert found["d"].expires_at == begun + timedelta(hours=2)
    assert (found["e"].deliver_at, found["e"].expires_at) == (None, None)


def test_a_table_keeps_its_ids_and_times_and_gets_those_it_lacks(
    queue: Queue, clock: ManualClock
) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    queue.publish(
        pa.table(
            {
                "value": ["x", "y"],
                "message_id": ["mine", None],
                "published_at": pa.array([at, at], pa.timestamp("ms", "UTC")),
            }
        )
    )
    queue.publish(pa.table({"value": pa.array(["z"], pa.large_string())}))
    mine, yours, latest = take(queue).messages
    assert (mine.message_id, mine.published_at, yours.published_at) == ("mine", at, at)
    assert yours.message_id not in (None, "", "mine")
    assert (latest.value, latest.published_at) == (b"z", clock())


def test_a_lease_hands_out_one_schema(queue: Queue) -> None:
    queue.publish([Message("a", headers={"h": "1"}), "b"])
    table = take(queue).table()
    assert table.schema == DELIVERY_SCHEMA
    assert table.num_rows == 2


def test_a_million_sequences_apart_is_as_near_as_one(queue: Queue) -> None:
    """Files of many rows are read by slice, across row groups."""
    receipt = queue.publish(pa.table({"value": [str(n) for n in range(45_000)]}))
    lease = take(queue, 19_990)
    assert values(lease) == [str(n).encode() for n in range(19_990)]
    across = take(queue, 20)
    assert values(across) == [str(n).encode() for n in range(19_990, 20_010)]
    assert across.messages[0].sequence == receipt.sequences[19_990]


def test_a_producer_that_repeats_itself_publishes_once(queue: Queue) -> None:
    queue.publish("one", producer_id="p", producer_sequence=1)
    queue.publish("three", producer_id="p", producer_sequence=3)
    for handle in (queue, again(queue)):
        for number in (3, 2):
            with pytest.raises(errors.DuplicatePublish) as caught:
                handle.publish("again", producer_id="p", producer_sequence=number)
            assert (caught.value.producer_id, caught.value.last_sequence) == ("p", 3)
    again(queue).publish("other", producer_id="q", producer_sequence=0)
    assert values(take(queue)) == [b"one", b"three", b"other"]


def test_two_handles_see_what_the_other_published(queue: Queue) -> None:
    other = again(queue)
    queue.publish("a")
    assert stats(other).ready == 1
    other.publish("b")
    assert stats(queue).ready == 2


# -- leasing and settling


def test_acked_is_never_delivered_again(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b"])
    lease = take(queue)
    assert lease.ack() == SettleResult(2)
    clock.advance("1d")
    assert queue.group().lease("w") is None
    assert (stats(queue).acked, stats(queue).ready, stats(queue).start_sequence) == (
        2,
        0,
        lease.messages[-1].sequence,
    )


def test_no_two_leases_hold_a_message(queue: Queue) -> None:
    queue.publish([str(n) for n in range(10)])
    other = again(queue)
    leases = [take(queue, 4, worker="a"), take(other, 4, worker="b"), take(queue, 4, worker="a")]
    assert [len(lease) for lease in leases] == [4, 4, 2]
    assert sorted(v for lease in leases for v in values(lease)) == [
        str(n).encode() for n in range(10)
    ]
    assert other.group().lease("b") is None


def test_some_of_a_lease_is_acked_by_name(queue: Queue) -> None:
    queue.publish(["a", "b", "c", "d"])
    lease = take(queue)
    sequences = [m.sequence for m in lease.messages]
    assert lease.ack([sequences[2], sequences[0]]) == SettleResult(2)
    assert lease.ack(sequences[:2]) == SettleResult(1, already_settled=1)
    assert lease.ack() == SettleResult(1)
    assert lease.ack() == SettleResult(0)
    assert stats(queue).acked == 4


def test_a_repeat_by_id_is_known_from_the_past(queue: Queue, clock: ManualClock) -> None:
    queue.publish([str(n) for n in range(60)])
    first, lost = take(queue, 1), take(queue, 1)
    first.nack(delay="1d", error="later")
    clock.advance("62s")
    for _ in range(25):  # more commits than one read of the past
        take(queue, 1).ack()
    for _ in range(2):
        other = again(queue).group()
        assert other.ack(first.lease_id) == SettleResult(0)
        with pytest.raises(errors.LeaseLost) as caught:
            other.ack("no-such-lease")
        assert caught.value.data["lease_id"] == "no-such-lease"
        queue.sweep()
        take(queue, 1).ack()
    assert other.ack(lost.lease_id) == SettleResult(0, already_settled=1)


def test_a_range_across_commits_is_one_interval(queue: Queue) -> None:
    first = queue.publish(["a", "b"]).sequences[0]
    queue.publish(["c"])
    last = queue.publish(["d", "e"]).sequences[0]
    lease = take(queue)
    assert last - first > 2**32
    assert lease.ack(range(first, last + 1)) == SettleResult(4)
    assert queue.group().ack({lease.lease_id: range(last, last + 2)}) == SettleResult(
        1, already_settled=1
    )
    assert stats(queue).acked == 5


def test_a_receipts_sequences_equal_a_list(queue: Queue) -> None:
    receipt = queue.publish(["a", "b"])
    assert receipt.sequences == [m.sequence for m in take(queue).messages]
    assert receipt.sequences != [receipt.sequences[0]]
    assert pickle.loads(pickle.dumps(receipt)) == receipt


def test_expire_folds_now(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b"])
    take(queue)
    assert queue.group().expire() == 0
    clock.advance("62s")
    assert queue.group().expire() == 2
    assert queue.group().expire() == 0
    assert (stats(queue).leased, stats(queue).ready) == (0, 2)


def test_the_verbs_work_by_lease_id_from_another_handle(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b", "c", "d"])
    lease, elsewhere = take(queue), again(queue).group()
    first, second, third, _ = (m.sequence for m in lease.messages)
    assert elsewhere.ack(lease.lease_id, [first]) == SettleResult(1)
    assert elsewhere.nack(lease.lease_id, [second], delay=0) == SettleResult(1)
    assert elsewhere.reject(lease.lease_id, [third]) == SettleResult(1)
    assert elsewhere.extend(lease.lease_id, "5m") == SettleResult(1)
    assert elsewhere.release(lease.lease_id) == SettleResult(1)
    assert (stats(queue).acked, stats(queue).dead, stats(queue).ready, stats(queue).leased) == (
        1,
        1,
        2,
        0,
    )


# -- late


def test_a_settle_of_what_another_holds_is_refused_and_the_rest_is_done(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish([str(n) for n in range(3)])
    slow = take(queue)
    sequences = [m.sequence for m in slow.messages]
    slow.ack(sequences[:1])
    clock.advance("1h")
    other = take(queue, 1, worker="other")
    assert other.messages[0].sequence == sequences[1]
    with pytest.raises(errors.LeaseLost) as caught:
        slow.ack(sequences)
    assert caught.value.lease_id == slow.lease_id
    assert caught.value.lost == [(sequences[1], sequences[1], f"leased by {other.lease_id}")]
    assert caught.value.result == SettleResult(1, already_settled=1)
    assert other.ack() == SettleResult(1)
    assert stats(queue).acked == 3


def test_settling_in_a_group_that_is_not_there_says_so(queue: Queue) -> None:
    with pytest.raises(errors.GroupNotFound) as caught:
        queue.group("nobody").ack("x")
    assert caught.value.group == "nobody"
    assert queue.groups() == []


# -- groups


def test_groups_are_independent(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["a", "b"])
    one, two = take(queue, group="one"), take(queue, group="two")
    assert values(one) == values(two) == [b"a", b"b"]
    one.ack()
    with pytest.raises(errors.LeaseLost):
        queue.group("two").ack(one.lease_id)
    two.nack(delay=0)
    assert take(queue, group="two").messages[0].delivery_count == 2
    assert (stats(queue, "one").acked, stats(queue, "two").acked) == (2, 0)
    assert queue.groups() == ["one", "two"]


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
    times = [to_datetime(file.committed_at) for file in messages_of(queue).index().files]

    def read(name: str, start: Any) -> list[bytes]:
        lease = queue.group(name, start=start).lease("w", max_messages=10)
        return values(lease) if lease else []

    assert read("earliest", "earliest") == [b"a", b"b", b"c"]
    assert read("sequence", receipts[1].sequences[0]) == [b"b", b"c"]
    assert read("between", receipts[0].sequences[0] + 1) == [b"b", b"c"]
    assert read("time", times[1]) == [b"b", b"c"]
    assert read("text", times[1].isoformat()) == [
        b"b",
        b"c",
    ]  # as the option startingPosition has it
    assert read("zulu", f"{times[1]:%Y-%m-%dT%H:%M:%S.%fZ}") == [b"b", b"c"]
    assert read("digits", str(receipts[1].sequences[0])) == [b"b", b"c"]
    assert read("late", times[2] + timedelta(hours=1)) == []
    assert read("latest", "latest") == []
    queue.publish("d")
    assert (
        read("late", "earliest") == read("latest", "earliest") == [b"d"]
    )  # the group is there: its start is past


def test_seek_replays_and_skips(queue: Queue) -> None:
    receipt = queue.publish([str(n) for n in range(6)])
    group = queue.group()
    held = take(queue, 2)
    take(queue, 2).ack()
    group.seek(receipt.sequences[1])
    with pytest.raises(errors.LeaseLost):
        group.ack(held.lease_id)
    again_read = take(queue)
    assert values(again_read) == [b"1", b"2", b"3", b"4", b"5"]
    group.seek("latest")
    assert group.lease("w") is None
    assert stats(queue).ready == 0
    group.seek("earliest")
    assert len(take(queue)) == 6


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


def test_a_group_keeps_the_settings_it_was_made_with(make: Make, clock: ManualClock) -> None:
    queue = make(visibility_timeout="10s")
    queue.publish("a")
    assert take(queue).expires_at == clock() + timedelta(seconds=10)
    assert take(queue, group="g", visibility_timeout="20s").expires_at == clock() + timedelta(
        seconds=20
    )


# -- caps


def test_max_tracked_ranges_stops_unread_but_not_what_waits(make: Make) -> None:
    queue = make(max_tracked_ranges=3)
    queue.publish([str(n) for n in range(10)])
    lease = take(queue, 4)
    lease.nack([lease.messages[1].sequence], delay=0)
    assert take(queue, 1).messages[0].delivery_count == 2
    with pytest.raises(errors.GroupBlocked) as caught:
        queue.group().lease("w")
    assert caught.value.blocked_because == "max_tracked_ranges"
    lease.ack()
    assert len(take(queue, 1)) == 1


# -- looking


def test_stats_tell_every_message_once(queue: Queue, clock: ManualClock) -> None:
    receipt = queue.publish([str(n) for n in range(10)])
    lease = take(queue, 5)
    sequences = [m.sequence for m in lease.messages]
    lease.ack(sequences[:1])
    lease.nack(sequences[1:2], delay="1h")
    lease.nack(sequences[2:3], delay=0)
    lease.reject(sequences[3:4])
    reported = stats(queue)
    assert (
        reported.ready,
        reported.unread,
        reported.delayed,
        reported.leased,
        reported.dead,
        reported.acked,
    ) == (
        6,
        5,
        1,
        1,
        1,
        1,
    )
    assert (reported.start_sequence, reported.latest_sequence) == (
        sequences[0],
        receipt.sequences[-1],
    )
    whole = queue.stats()
    assert (whole["published"], whole["latest_sequence"], whole["horizon"], whole["groups"]) == (
        10,
        reported.latest_sequence,
        -1,
        {"default": reported},
    )


def test_an_empty_queue_has_nothing_to_lease(queue: Queue) -> None:
    assert queue.group().lease("w") is None
    assert queue.stats()["published"] == 0
    with pytest.raises(errors.GroupNotFound, match=r"'other'.*has default"):
        queue.group("other").stats()
    assert queue.groups() == ["default"]


def test_an_unreadable_file_makes_its_messages_dead_and_the_rest_go_on(queue: Queue) -> None:
    queue.publish("bad")
    queue.publish("good")
    queue.publish("gone")
    bad, _, gone = (file.path for file in messages_of(queue).index().files)
    messages_of(queue).files.delete(bad)
    messages_of(queue).files.write(bad, b"garbage")
    messages_of(queue).files.delete(gone)
    assert values(take(queue)) == [b"good"]
    assert stats(queue).dead == 2


# -- across processes


def test_a_queue_and_its_group_can_be_pickled(delta_queue: Make, clock: ManualClock) -> None:
    queue = delta_queue(visibility_timeout="10s")
    queue.publish(["a", "b"])
    lease = take(queue, 1)
    copy, group = pickle.loads(pickle.dumps((queue, queue.group())))
    assert (copy.path, copy.settings, context_of(copy).clock()) == (
        queue.path,
        queue.settings,
        context_of(queue).clock(),
    )
    assert group.ack(lease.lease_id) == SettleResult(1)
    assert values(take(copy)) == [b"b"]


def test_a_queue_in_memory_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="memory"):
        pickle.dumps(memory_queue())


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_errors_survive_pickling_with_their_data(kind: type[errors.SparkMQError]) -> None:
    error = kind("what happened", group="g", lost=[(1, 2, "why")], result=SettleResult(1, 2))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.data) == (kind, "what happened", error.data)
    assert (copy.group, copy.lost, copy.result) == ("g", [(1, 2, "why")], SettleResult(1, 2))


def test_the_examples_of_the_testing_module_hold() -> None:
    assert doctest.testmod(testing).failed == 0


# -- other writers of messages/ (Delta only)


def append(queue: Queue, table: pa.Table) -> None:
    write_deltalake(DeltaTable(messages_of(queue).path), table, mode="append", schema_mode="merge")


def test_a_foreign_append_of_values_alone_is_a_publish(delta_queue: Make) -> None:
    queue = delta_queue()
    append(queue, pa.table({"value": pa.array([b"a", b"b"])}))
    file = messages_of(queue).index().files[0]
    messages = take(queue).messages
    assert [(m.value, m.message_id) for m in messages] == [
        (b"a", str(sequence(1, 0))),
        (b"b", str(sequence(1, 1))),
    ]
    assert {m.published_at for m in messages} == {to_datetime(file.committed_at)}
    assert abs(messages[0].published_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert [(m.key, m.headers) for m in messages] == [(None, {}), (None, {})]


def test_a_foreign_append_may_have_nulls_between(delta_queue: Make) -> None:
    queue = delta_queue()
    at = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [
        {"value": b"a", "message_id": "x", "published_at": at},
        {"value": b"b"},
        {"value": b"c", "key": "k"},
    ]
    append(queue, pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA))
    found = sorted(take(queue).messages, key=lambda m: m.value)
    assert [m.message_id for m in found] == ["x", str(found[1].sequence), str(found[2].sequence)]
    assert found[0].published_at == at
    assert found[1].published_at == found[2].published_at != at
    assert len({m.sequence for m in found}) == 3


def test_compaction_publishes_nothing_and_reading_goes_on(delta_queue: Make) -> None:
    queue = delta_queue()
    for n in range(5):
        queue.publish(str(n))
    half = take(queue, 2)
    metrics = DeltaTable(messages_of(queue).path).optimize.compact()
    assert metrics["numFilesRemoved"] == 5
    DeltaTable(messages_of(queue).path).vacuum(dry_run=False)
    queue.publish("5")
    assert values(half) == [b"0", b"1"]
    assert values(take(again(queue))) == [b"2", b"3", b"4", b"5"]
    assert queue.stats()["published"] == 6


def test_restore_publishes_nothing(delta_queue: Make) -> None:
    queue = delta_queue()
    first = queue.publish("a")
    queue.publish("b")
    DeltaTable(messages_of(queue).path).restore(first.version)
    DeltaTable(messages_of(queue).path).restore(first.version + 1)
    queue.publish("c")
    for handle in (queue, again(queue)):
        assert handle.stats()["published"] == 3
    assert values(take(queue)) == [b"a", b"b", b"c"]


def test_a_path_added_twice_counts_once(delta_queue: Make) -> None:
    """As a writer does whose commit landed while its reply got lost."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    file = messages_of(queue).index().files[0]
    add = AddAction(file.path, file.size, {}, 0, True, "{}")
    DeltaTable(messages_of(queue).path).create_write_transaction(
        [add], "append", MESSAGE_SCHEMA, []
    )
    for handle in (queue, again(queue)):
        assert handle.stats()["published"] == 2
    assert values(take(queue)) == [b"a", b"b"]


def test_files_without_statistics_are_counted_by_their_footer(delta_queue: Make) -> None:
    queue = delta_queue()
    path = "a folder/foreign file.parquet"  # and a name that the log writes in percent signs
    sink = io.BytesIO()
    pq.write_table(pa.table({"value": [b"a", b"b", b"c"]}), sink)
    messages_of(queue).files.write(path, sink.getvalue())
    add = AddAction(path, len(sink.getvalue()), {}, 0, True, "{}")
    DeltaTable(messages_of(queue).path).create_write_transaction(
        [add], "append", MESSAGE_SCHEMA, []
    )
    assert values(take(queue)) == [b"a", b"b", b"c"]


def test_a_rewrite_is_reported_and_publishes_nothing(
    delta_queue: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = delta_queue()
    queue.publish(["a", "b"])
    table = DeltaTable(messages_of(queue).path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.delete("value = 'a'")
    assert queue.stats()["published"] == 2
    assert "rewrites messages" in caplog.text


def test_the_tables_refuse_what_would_break_the_log(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish("a")
    with pytest.raises(Exception, match=r"(?i)append"):
        DeltaTable(messages_of(queue).path).delete()
