"""Shadow replay: a handler over settled messages, with the outcomes of then and now."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import WRITES, ByteStore
from support.handles import again, until
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.rule_variants import first, rule_variant
from support.tables import parquet_bytes
from support.working import working

from spark_mq import Lease, Message, Queue, ReceivedMessage, ReplayReport, Snooze
from spark_mq.errors import InvalidOption, LeaseLost
from spark_mq.integrations.formats import Json
from spark_mq.testing import ManualClock, memory_queue


def settle_as(queue: Queue, *values: str) -> None:
    """Publish messages and settle each as its value says, before the colon, with its key."""
    queue.publish([Message(value, key=value.partition(":")[2]) for value in values])
    while (lease := queue.group("billing").lease("w", max_messages=100)) is not None:
        for message in lease.messages:
            verb, _, _ = message.text.partition(":")
            getattr(lease, verb)([message.sequence])
    queue.sweep()  # which routes what is dead


def settled(*values: str, **settings: Any) -> Queue:
    """A queue in memory whose messages are settled as their values say."""
    queue = memory_queue(**settings)
    settle_as(queue, *values)
    return queue


def replay(queue: Queue, handler: Any, **options: Any) -> ReplayReport:
    return queue.replay(handler, "billing", **{"mode": "message", **options})


def keys(queue: Queue, **options: Any) -> str:
    """The keys of the messages that a replay chooses."""
    return "".join(replay(queue, accept, **options).table["key"].to_pylist())


def outcomes(report: ReplayReport) -> list[tuple[str, str, str]]:
    names = ("outcome_then", "outcome_now", "change")
    return [tuple(row[name] for name in names) for row in report.table.to_pylist()]


def accept(given: object) -> None:
    pass


def refuse(message: ReceivedMessage) -> None:
    raise ValueError(f"no {message.text!r}")


# -- what it says


def test_outcomes_of_then_and_now(queue: Queue) -> None:
    settle_as(queue, "ack:fine", "ack:breaks", "reject:works", "reject:fails", "ack:later")

    def handler(message: ReceivedMessage) -> Any:
        if message.key in ("breaks", "fails"):
            raise KeyError(message.key)
        return Snooze(0) if message.key == "later" else None

    report = replay(queue, handler)
    assert outcomes(report) == [
        ("acked", "acked", "same"),
        ("acked", "failed", "worse"),
        ("dead_lettered", "acked", "better"),
        ("dead_lettered", "failed", "same"),
        ("acked", "released", "other"),
    ]
    assert report.summary == having(replayed=5, same=2, worse=1, better=1, other=1)
    assert report.summary == having(acked=2, failed=2, rejected=0, released=1)
    assert report.summary == having(trimmed=0, unreadable=0, without_history=0, stopped_because="")
    assert report.is_worse
    assert report.table["error"].to_pylist() == [
        None, "KeyError: 'breaks'", None, "KeyError: 'fails'", None,
    ]  # fmt: skip
    (error,) = report.errors
    assert (error.messages, error.worse, error.error) == (2, 1, "KeyError: 'breaks'")
    assert report.to_arrow() is report.table
    assert all(seconds >= 0 for seconds in report.table["seconds"].to_pylist())


@pytest.mark.parametrize(
    ("on_error", "now", "change"),
    [("nack", "failed", "worse"), ("reject", "rejected", "worse"), ("ack", "acked", "same")],
)
def test_on_error_decides_what_an_exception_means(on_error: str, now: str, change: str) -> None:
    report = replay(settled("ack:a"), refuse, on_error=on_error)
    assert outcomes(report) == [("acked", now, change)]
    assert report.summary == having(other=0, **{now: 1, change: 1})
    assert report.table["error"].to_pylist() == ["ValueError: no 'ack:a'"]


def test_a_dropped_message_is_compared_as_a_dead_letter() -> None:
    report = replay(settled("reject:a", on_reject="drop"), accept)
    assert outcomes(report) == [("dropped", "acked", "better")]


def test_the_handler_sees_the_message_as_in_its_last_delivery(make: Make, clock: Any) -> None:
    queue = make(lanes=4)
    queue.publish(Message("v", key="k", headers={"h": "1"}, message_id="id", priority=3))
    group = queue.group("billing")
    group.lease("w").nack(delay=0)
    clock.advance("1s")
    (then,) = (lease := group.lease("w")).messages
    lease.ack()
    seen = list[ReceivedMessage]()
    replay(queue, seen.append)
    assert seen == [then]
    assert (then.delivery_count, then.failure_count, then.priority) == (2, 1, 3)


def test_a_skipped_message_is_replayed_as_a_first_delivery() -> None:
    queue = memory_queue()
    queue.publish("a")
    queue.group("billing").ensure().seek("latest")
    seen = list[int]()
    report = replay(queue, lambda message: seen.append(message.delivery_count))
    assert outcomes(report) == [("skipped", "acked", "other")]
    assert seen == [1]


# -- batches


def test_a_batch_is_a_lease_that_settles_nothing(queue: Queue) -> None:
    settle_as(queue, *(f"ack:{at}" for at in range(6)))
    results = list[Any]()

    def handler(lease: Lease) -> Any:
        one = [message.sequence for message in lease.messages]
        assert lease.table()["sequence"].to_pylist() == one
        assert lease.table()["lease_id"].to_pylist() == [lease.lease_id] * len(lease)
        results.append(lease.nack(one[:1], error="first"))
        results.append(lease.reject(lease.messages[1], error="second"))
        results.append(lease.release(one[2:3]))
        results.append(lease.ack(one[:4]))
        ended_before = lease.expires_at
        results.append(lease.extend("2h"))
        assert lease.expires_at > ended_before
        results.append(lease.extend(sequences=lease.messages[0]))
        results.append(lease.ack(range(one[0] - 5, one[1] + 1)))
        assert lease.append([{"a": 1}]) is True, "but nothing is written"
        with pytest.raises(InvalidOption):
            lease.append([{"a": 1}], schema_mode="wrong")  # type: ignore[arg-type]
        return [{"sequence": one[4], "outcome": "reject", "error": "row"}]

    report = replay(queue, handler, mode="batch", max_messages=100)
    assert [(row["outcome_now"], row["error"]) for row in report.table.to_pylist()] == [
        ("failed", "first"), ("rejected", "second"), ("released", None), ("acked", None),
        ("rejected", "row"), ("acked", None),
    ]  # fmt: skip
    assert [(one.settled, one.already_settled) for one in results] == [
        (1, 0), (1, 0), (1, 0), (1, 3), (6, 0), (1, 0), (0, 2),
    ]  # fmt: skip


def test_a_failed_batch_fails_as_a_whole(queue: Queue) -> None:
    settle_as(queue, *(f"ack:{at}" for at in range(5)))
    kept = list[Lease]()

    def handler(lease: Lease) -> None:
        kept.append(lease)
        if any(message.key == "3" for message in lease.messages):
            raise ValueError("bad batch")

    report = replay(queue, handler, mode="batch", max_messages=2)
    assert [now for _, now, _ in outcomes(report)] == ["acked"] * 2 + ["failed"] * 2 + ["acked"]
    assert report.errors[0].sequences == tuple(report.table["sequence"].to_pylist()[2:4])
    with pytest.raises(LeaseLost, match="holds no messages"):
        kept[0].ack(kept[0].messages)


def test_a_batch_names_messages_that_it_lacks() -> None:
    def handler(lease: Lease) -> None:
        lease.ack([1])

    (error,) = replay(settled("ack:a"), handler, mode="batch").errors
    assert error.error.startswith("LeaseLost: lease shadow-")
    assert "1..1 which this lease never held" in error.error


def test_a_format_decodes_and_rejects() -> None:
    queue, seen = memory_queue(), list[Any]()
    queue.publish(['{"n": 1}', "no json", '{"n": 2}'])
    queue.group("billing").lease("w", max_messages=9).ack()

    def handler(lease: Lease) -> None:
        seen.extend(message.data for message in lease.messages)
        assert lease.table().num_rows == 2

    report = replay(queue, handler, mode="batch", format=Json(), max_messages=9)
    assert seen == [{"n": 1}, {"n": 2}]
    assert [now for _, now, _ in outcomes(report)] == ["acked", "rejected", "acked"]


# -- it changes nothing


def test_a_replay_beside_a_live_worker_changes_nothing(
    tmp_path: Path, byte_store: ByteStore
) -> None:
    # On a busy machine an extension or a heartbeat of the worker would come in between.
    queue = Queue.create(tmp_path / "queue", lanes=2, order="key", visibility_timeout="1h")
    settle_as(queue, *(f"ack:{at % 3}" for at in range(20)), "reject:x")
    queue.publish(["live:1", "live:2"])
    entered, go, handled = threading.Event(), threading.Event(), list[str]()

    def work(message: ReceivedMessage) -> None:
        entered.set()
        assert go.wait(30)
        handled.append(message.text)

    def settle(lease: Lease) -> None:
        with lease.keep_alive():
            lease.nack(error="no")

    live: dict[str, Any] = {"mode": "message", "until": "settled", "heartbeat": "off"}
    with working(queue.group("billing"), work, **live) as running:
        assert entered.wait(30)
        written = byte_store.paths(*WRITES)
        for handler, options in (
            (accept, {"mode": "batch"}),
            (settle, {"mode": "batch", "max_messages": 7}),
            (refuse, {"mode": "message", "threads": 2}),
        ):
            summary = replay(Queue.open(queue.path), handler, **options).summary
            assert (summary.replayed, summary.acked) == (21, 21 if handler is accept else 0)
        assert written == []
        go.set()
        running.result(60)
    assert sorted(handled) == ["live:1", "live:2"]


# -- which messages


def test_since_and_until_are_times_of_the_settle(clock: ManualClock) -> None:
    queue, at = memory_queue(clock), []
    for name in "abc":
        settle_as(queue, f"ack:{name}")
        at.append(clock())
        clock.advance("1h")
    assert keys(queue, limit=2**63 - 1) == "abc"
    for since in ("150m", "-150m", timedelta(minutes=150), at[1]):
        assert keys(queue, since=since) == "bc", "from then on"
    assert keys(queue, until=at[1]) == "a", "before then"
    assert keys(queue, since=at[1].isoformat(), until=at[2].isoformat()) == "b"
    assert keys(queue, since=9000, until="90m") == "b"
    assert keys(queue, since="1m") == ""


def test_where_selects_by_the_past(queue: Queue) -> None:
    settle_as(queue, "ack:a", "reject:b", "ack:c", "reject:d")
    for where, chosen in (
        ("outcome = 'dead_lettered'", "bd"),
        ("key IN ('a', 'b') AND delivery_count = 1", "ab"),
        ("reason = 'rejected' AND settled_at > TIMESTAMP '2020-01-01'", "bd"),
        ("CAST(value AS TEXT) LIKE 'ack:%'", "ac"),
    ):
        assert keys(queue, where=where) == chosen
    with pytest.raises(ZeroDivisionError):
        keys(queue, where=lambda _: 1 / 0)


# -- what is gone


def test_a_missing_file_is_counted(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    for name in "abc":
        settle_as(queue, f"ack:{name}")
    gone = sorted(tmp_path.glob("queue/messages/*.parquet"), key=lambda path: path.stat().st_mtime)
    gone[1].unlink()
    queue = Queue.open(queue.path)
    report = replay(queue, accept)
    assert report.table["key"].to_pylist() == ["a", "c"]
    assert (report.summary.replayed, report.summary.unreadable) == (2, 1)
    assert keys(queue, limit=2) == "c"
    assert "not replayed: 1 unreadable" in str(report)
    summary = replay(queue, accept, limit=1, where="key = 'a'").summary
    assert (summary.replayed, summary.unreadable) == (1, 1)
    no_text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    gone[0].write_bytes(parquet_bytes(pa.table({"value": [b""], "key": no_text})))
    assert keys(queue) == "c"


def test_trimmed_messages_are_counted(clock: ManualClock) -> None:
    queue = memory_queue(clock, retention="1h")
    slow = queue.group("slow").ensure()
    settle_as(queue, "ack:a", "reject:b")
    sequences = queue.publish([Message(name, key=name) for name in "cde"]).sequences
    queue.group("billing").lease("w", max_messages=3).ack()
    slow.lease("w", max_messages=4).ack()  # a trim ends with d, amid what billing acked at once
    clock.advance("2h")
    queue.sweep()
    assert queue.horizon() == sequences[1]
    report = replay(queue, accept)
    assert report.table["key"].to_pylist() == ["e"]
    assert report.summary == having(trimmed=4, without_history=0)
    assert replay(queue, accept, since="1h").summary.trimmed == 0, "settled before"
    queue.group("late", start="latest").ensure()  # its history begins with it
    assert queue.replay(accept, "late").summary.without_history == 1


def test_messages_without_history_are_counted(clock: ManualClock) -> None:
    queue = memory_queue(clock, history_retention="1d")
    queue.group("slow").ensure()  # keeps all messages
    settle_as(queue, "ack:a", "ack:b")
    clock.advance("3d")
    settle_as(queue, "ack:c")
    report = replay(queue, accept)
    assert (report.table["key"].to_pylist(), report.summary.without_history) == (["c"], 2)


# -- how it runs


def test_threads_share_the_calls_and_keep_the_order_of_keys() -> None:
    queue = settled(*(f"ack:{at // 2 % 5}" for at in range(100)), lanes=8)
    queue.group("billing").configure(order="key")
    events, numbers = list[tuple[str | None, int]](), itertools.count()
    meeting = threading.Barrier(2, timeout=30)

    def handler(message: ReceivedMessage) -> None:
        events.append((message.key, message.sequence))
        if next(numbers) < 2:
            meeting.wait()  # two calls run at a time
        events.append((message.key, message.sequence))

    assert replay(again(queue), handler, threads=4).summary.replayed == 100
    for key in "01234":
        of_key = [sequence for name, sequence in events if name == key]
        assert of_key == sorted(of_key)
        assert of_key[::2] == of_key[1::2], "one call at a time"


def test_limits_of_the_group_do_not_hold_a_replay_back() -> None:
    queue = settled(*(f"ack:{at}" for at in range(5)))
    queue.publish(["leased", "due"])
    group = queue.group("billing")
    group.configure(rate_limit="1/h", max_in_flight=1)
    assert group.lease("w") is not None
    for _ in range(2):
        assert replay(queue, accept, threads=2).summary.replayed == 5
        group.pause("repairs")
    assert group.stats().ready == 1


@pytest.fixture
def hangs() -> Iterator[Callable[[ReceivedMessage], None]]:
    """A handler that hangs with the message that is slow."""
    free = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "slow":
            free.wait(20)

    yield handler
    free.set()


def test_a_call_that_takes_too_long_fails(limits: Limits, hangs: Callable[..., None]) -> None:
    limits(replay_patience=3600.0)
    queue = settled("ack:a", "ack:slow", "ack:b")
    report = replay(queue, hangs, threads=2, timeout="50ms")
    assert [now for _, now, _ in outcomes(report)] == ["acked", "failed", "acked"]
    assert report.table["seconds"][1].as_py() > 0.04
    assert "exceeded its time limit of 0.05s" in str(report.errors[0].error)
    assert report.summary.stopped_because == ""

    async def hanging(message: ReceivedMessage) -> None:
        if message.key != "b":
            await asyncio.Event().wait()

    before = set(threading.enumerate())
    report = replay(queue, hanging, concurrency=1, timeout="50ms")
    assert [now for _, now, _ in outcomes(report)] == ["failed", "failed", "acked"]
    until(lambda: before.issuperset(threading.enumerate()))


def test_a_replay_ends_if_all_handlers_hang(limits: Limits, hangs: Callable[..., None]) -> None:
    limits(replay_patience=0.0)
    report = replay(settled("ack:a", "ack:slow", "ack:b"), hangs, timeout="50ms")
    assert [now for _, now, _ in outcomes(report)] == ["acked", "failed"]
    why = "all handlers have exceeded their time limit of 0.05s and still run"
    assert report.summary.stopped_because == why
    assert f"ended early: {why}" in str(report)


def test_an_interrupt_ends_a_replay_although_a_handler_hangs(
    hangs: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    hanging = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "a":
            hanging.wait(60)
            raise KeyboardInterrupt
        hanging.set()
        hangs(message)
        hanging.clear()

    with pytest.raises(KeyboardInterrupt):
        replay(settled("ack:slow", "ack:a"), handler, threads=2)
    assert hanging.is_set()
    assert caplog.text == ""


def test_stop_ends_the_replay_with_what_was_done(limits: Limits) -> None:
    queue = settled(*(f"ack:{at}" for at in range(10)))
    stop, selected = threading.Event(), list[object]()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "4":
            stop.set()

    report = replay(queue, handler, stop=stop)
    assert report.table["key"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert report.summary.stopped_because == "the event stop was set"
    assert replay(queue, accept, stop=stop).summary == having(replayed=0, unreadable=0)
    stop.clear()
    limits(replay_rows=1)
    with rule_variant("condition:_Sql.select", first(lambda a: selected.append(a) or stop.set())):
        replay(queue, accept, stop=stop, where="true")
    assert len(selected) == 1


def test_many_errors_are_counted_in_bounded_memory(limits: Limits) -> None:
    limits(replay_shapes=3, replay_rows=1)
    names = ["one", "two", "three", "four", "five"]
    queue = settled(*(f"ack:{name}" for name in names for _ in range(7)))

    kept, most = weakref.WeakSet[Lease](), list[int]()

    def handler(lease: Lease) -> None:
        kept.add(lease)
        most.append(len(kept))
        (message,) = lease.messages
        raise ValueError(f"{message.key} {message.sequence} " + "x" * 10_000)

    report = replay(queue, handler, mode="batch")
    assert max(most) < 10
    assert [one.messages for one in report.errors] == [14, 7, 7, 7]
    assert report.errors[0].shape == "(other errors)"
    assert all(len(one.sequences) == 5 and len(one.error) <= 500 for one in report.errors)
    assert {len(text) for text in report.table["error"].to_pylist()} == {500}


@pytest.mark.parametrize(("shapes", "more"), [(10, []), (11, ["and 1 more shape of errors"])])
def test_a_printed_report_shows_ten_shapes_of_errors(shapes: int, more: list[str]) -> None:
    queue = settled(*(f"ack:{letter}" for letter in "abcdefghijk"[:shapes]))

    def handler(message: ReceivedMessage) -> None:
        raise ValueError(message.key)

    lines = str(replay(queue, handler)).splitlines()
    assert [line for line in lines if "more shape" in line] == more
    assert sum("(such as " in line for line in lines) == 10


def test_the_report_in_a_notebook_escapes_errors() -> None:
    page = replay(settled("ack:<b>", "reject:b"), refuse)._repr_html_()
    assert "Errors by shape" in page
    assert "Acked then, and not now" in page
    assert "ack:&lt;b&gt;" in page
    assert "ack:<b>" not in page
    assert "Acked then" not in replay(settled("reject:b"), refuse)._repr_html_()


# -- against a naive replay


NAMES = ("sequence", "message_id", "key", "outcome_then", "settled_at", "outcome_now", "error")


def judge(value: bytes) -> str | None:
    """The error of a message, which a third of them have."""
    return None if int(value) % 3 else f"ValueError: {value!r}"


def naive(queue: Queue) -> list[tuple[Any, ...]]:
    """What a replay should find, from each finished message by itself."""
    return [
        (row["sequence"], row["message_id"], row["key"], row["outcome"],
         row["settled_at"].astimezone(UTC), "failed" if error else "acked", error)
        for row in queue.finished("billing", payload=True).to_pylist()
        if row["value"] is not None
        for error in [judge(row["value"])]
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_finds_what_a_naive_one_finds(make: Make, seed: int, limits: Limits) -> None:
    limits(replay_rows=7)
    chance = random.Random(seed)
    queue = make(max_delivery_attempts=2, retention="100d")
    group = queue.group("billing").ensure()
    for _ in range(25):
        match chance.randrange(8):
            case 0 | 1 | 2:
                count = chance.randrange(1, 9)
                queue.publish([Message(str(chance.randrange(50)), key="k") for _ in range(count)])
            case 3 if queue.stats()["published"]:
                group.seek(chance.choice([message.sequence for message in queue.peek(100)]))
            case 4:
                queue.sweep()
            case _:
                lease = group.lease("w", max_messages=chance.randrange(1, 12))
                for message in () if lease is None else lease.messages:
                    how = chance.choice(["ack", "ack", "nack", "reject", "release"])
                    more = {"delay": 0} if how in ("nack", "release") else {}
                    getattr(lease, how)([message.sequence], **more)
    queue.sweep()

    def rows(**options: Any) -> list[tuple[Any, ...]]:
        table = replay(queue, handler, **options).table
        return [tuple(row[name] for name in NAMES) for row in table.to_pylist()]

    def handler(message: ReceivedMessage) -> None:
        if judge(message.value):
            raise ValueError(message.value)

    expected = naive(queue)
    assert expected, "the run settles something"
    assert rows(threads=2) == expected
    limit, at = chance.randrange(1, len(expected) + 1), chance.choice(expected)[4]
    assert rows(limit=limit) == expected[-limit:]
    drawn = itertools.count()  # the condition holds when it is asked again
    assert rows(where=lambda _: next(drawn) >= len(expected), limit=limit) == expected[:limit]
    acked = [row for row in expected if row[3] == "acked"]
    assert rows(where="outcome = 'acked'", limit=limit) == acked[-limit:]
    assert rows(until=at) == [row for row in expected if row[4] < at]
    assert rows(since=at) == [row for row in expected if row[4] >= at]
