"""Shadow replay: a handler over settled messages, with the outcomes of then and now."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import ByteStore
from support.limits import Limits
from support.tables import context_of, ledgers_of, messages_of

from spark_mq import Lease, Message, Queue, ReceivedMessage, Reject, ReplayReport, Retry, Snooze
from spark_mq.errors import InvalidHandlerResult
from spark_mq.integrations.formats import Json
from spark_mq.testing import ManualClock, memory_queue

Make = Callable[..., Queue]


def settle_as(queue: Queue, *values: str, group: str = "billing") -> None:
    """Publish messages and settle each as its value says, before the colon."""
    queue.publish([Message(value, key=value.partition(":")[2] or None) for value in values])
    worker = queue.group(group)
    while (lease := worker.lease("w", max_messages=100)) is not None:
        for message in lease.messages:
            verb = message.text.partition(":")[0]
            settle = {"ack": lease.ack, "reject": lease.reject, "nack": lease.nack}[verb]
            settle([message.sequence])
    queue.sweep()  # which routes what is dead


def outcomes(report: ReplayReport) -> list[tuple[str, str, str]]:
    names = ("outcome_then", "outcome_now", "change")
    return [tuple(row[name] for name in names) for row in report.table.to_pylist()]


def accept(given: object) -> None:
    pass


def refuse(message: ReceivedMessage) -> None:
    raise ValueError(f"no {message.text!r}")


# -- what it says


def test_outcomes_of_then_and_now(make: Make) -> None:
    queue = make()
    settle_as(queue, "ack:fine", "ack:breaks", "reject:works", "reject:fails", "ack:later")

    def handler(message: ReceivedMessage) -> Any:
        if message.key in ("breaks", "fails"):
            raise KeyError(message.key)
        return Snooze("1s") if message.key == "later" else None

    report = queue.replay(handler, "billing", mode="message")
    assert outcomes(report) == [
        ("acked", "acked", "same"),
        ("acked", "failed", "worse"),
        ("dead_lettered", "acked", "better"),
        ("dead_lettered", "failed", "same"),
        ("acked", "released", "other"),
    ]
    one = report.summary
    assert (one.replayed, one.same, one.worse, one.better, one.other) == (5, 2, 1, 1, 1)
    assert (one.acked, one.failed, one.rejected, one.released) == (2, 2, 0, 1)
    assert (one.trimmed, one.unreadable, one.without_history, one.stopped_because) == (0, 0, 0, "")
    assert report.is_worse
    assert report.table["error"].to_pylist() == [
        None, "KeyError: 'breaks'", None, "KeyError: 'fails'", None,
    ]  # fmt: skip
    (error,) = report.errors
    assert (error.messages, error.worse, error.error) == (2, 1, "KeyError: 'breaks'")
    finished = queue.finished("billing")
    assert report.table["settled_at"].to_pylist() == finished["settled_at"].to_pylist()
    assert report.table["sequence"].to_pylist() == finished["sequence"].to_pylist()
    assert report.to_arrow() is report.table
    assert all(seconds >= 0 for seconds in report.table["seconds"].to_pylist())


@pytest.mark.parametrize(
    ("verdict", "now", "error"),
    [
        (Retry(error="busy"), "failed", "busy"),
        (Reject("never"), "rejected", "never"),
        (Reject, "rejected", None),
        (Snooze("5s"), "released", None),
        (17, "acked", None),
    ],
)
def test_a_decision_counts_as_in_a_worker(verdict: Any, now: str, error: str | None) -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a")

    def raising(_: object) -> None:
        raise verdict

    handlers = [lambda _: verdict, *([raising] if now != "acked" else [])]
    for handler in handlers:
        (row,) = queue.replay(handler, "billing", mode="message").table.to_pylist()
        assert (row["outcome_now"], row["error"]) == (now, error)


@pytest.mark.parametrize(
    ("on_error", "now", "change"),
    [("nack", "failed", "worse"), ("reject", "rejected", "worse"), ("ack", "acked", "same")],
)
def test_on_error_decides_what_an_exception_means(on_error: str, now: str, change: str) -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a")
    report = queue.replay(refuse, "billing", mode="message", on_error=on_error)
    assert outcomes(report) == [("acked", now, change)]
    assert report.table["error"].to_pylist() == ["ValueError: no 'ack:a'"]


@pytest.mark.parametrize(
    ("handler", "change"), [(accept, "better"), (refuse, "same"), (lambda _: Reject("no"), "same")]
)
def test_a_dropped_message_is_compared_as_a_dead_letter(handler: Any, change: str) -> None:
    queue = memory_queue(on_reject="drop")
    settle_as(queue, "reject:a")
    (row,) = queue.replay(handler, "billing", mode="message").table.to_pylist()
    assert (row["outcome_then"], row["change"]) == ("dropped", change)


def test_the_handler_sees_the_message_as_in_its_last_delivery(make: Make, clock: Any) -> None:
    queue = make(lanes=4)
    published = Message("v", key="k", headers={"h": "1"}, message_id="id", priority=3)
    queue.publish(published)
    group = queue.group("billing")
    group.lease("w").nack(delay=0)
    clock.advance("1s")
    (then,) = (lease := group.lease("w")).messages
    lease.ack()
    seen = list[ReceivedMessage]()
    queue.replay(seen.append, "billing", mode="message")
    assert seen == [then]
    assert (then.delivery_count, then.failure_count, then.priority) == (2, 1, 3)


def test_a_skipped_message_is_replayed_as_a_first_delivery() -> None:
    queue = memory_queue()
    queue.publish("a")
    queue.group("billing").ensure().seek("latest")
    seen = list[int]()
    report = queue.replay(
        lambda message: seen.append(message.delivery_count), "billing", mode="message"
    )
    assert outcomes(report) == [("skipped", "acked", "other")]
    assert seen == [1]
    report = queue.replay(refuse, "billing", mode="message")
    assert outcomes(report) == [("skipped", "failed", "other")]


# -- batches


def test_a_batch_is_a_lease_that_settles_nothing(make: Make) -> None:
    queue = make()
    settle_as(queue, *(f"ack:{at}" for at in range(6)))
    results = list[Any]()

    def handler(lease: Lease) -> Any:
        one = [message.sequence for message in lease.messages]
        assert lease.table()["sequence"].to_pylist() == one
        assert lease.table()["lease_id"].unique().to_pylist() == [lease.lease_id]
        if len(one) < 6:
            raise AssertionError("all of them fit")
        results.append(lease.nack(one[:1], error="first"))
        results.append(lease.reject(lease.messages[1], error="second"))
        results.append(lease.release(one[2:3]))
        results.append(lease.ack(one[:4]))
        results.append(lease.extend())
        results.append(lease.extend(sequences=lease.messages[0]))
        results.append(lease.ack(range(one[0] - 5, one[1] + 1)))
        assert lease.append([{"a": 1}]) is True, "but nothing is written"
        return [{"sequence": one[4], "outcome": "reject", "error": "row"}]

    report = queue.replay(handler, "billing", mode="batch", max_messages=100)
    assert [(row["outcome_now"], row["error"]) for row in report.table.to_pylist()] == [
        ("failed", "first"), ("rejected", "second"), ("released", None), ("acked", None),
        ("rejected", "row"), ("acked", None),
    ]  # fmt: skip
    assert [(one.settled, one.already_settled) for one in results] == [
        (1, 0), (1, 0), (1, 0), (1, 3), (6, 0), (1, 0), (0, 2),
    ]  # fmt: skip


def test_a_failed_batch_fails_as_a_whole(make: Make) -> None:
    queue = make()
    settle_as(queue, *(f"ack:{at}" for at in range(5)))

    def handler(lease: Lease) -> None:
        if any(message.key == "3" for message in lease.messages):
            raise ValueError("bad batch")

    report = queue.replay(handler, "billing", mode="batch", max_messages=2)
    assert [now for _, now, _ in outcomes(report)] == ["acked"] * 2 + ["failed"] * 2 + ["acked"]
    assert report.errors[0].sequences == tuple(report.table["sequence"].to_pylist()[2:4])


def test_a_batch_names_messages_that_it_lacks() -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a")

    def handler(lease: Lease) -> None:
        lease.ack([1])

    (error,) = queue.replay(handler, "billing", mode="batch").errors
    assert error.error.startswith("LeaseLost: lease shadow-")

    def wrong(lease: Lease) -> Any:
        return [{"sequence": 1, "outcome": "ack"}]

    with pytest.raises(InvalidHandlerResult, match="message 1 does not belong to this lease"):
        queue.replay(wrong, "billing", mode="batch")


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_format_decodes_and_rejects(mode: str) -> None:
    queue = memory_queue()
    queue.publish(['{"n": 1}', "no json", '{"n": 2}'])
    queue.group("billing").lease("w", max_messages=9).ack()
    seen = list[Any]()

    def handler(given: Any) -> None:
        seen.extend(one.data for one in (given.messages if mode == "batch" else [given]))

    report = queue.replay(handler, "billing", mode=mode, format=Json(), max_messages=9)
    assert seen == [{"n": 1}, {"n": 2}]
    assert [now for _, now, _ in outcomes(report)] == ["acked", "rejected", "acked"]
    assert report.summary.worse == 1


# -- it changes nothing


def fingerprint(folder: Path) -> dict[str, str]:
    """The bytes of all files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def counts(queue: Queue) -> list[int]:
    stats = queue.group("billing").stats()
    return [stats.ready, stats.delayed, stats.leased, stats.dead, stats.acked, stats.dead_lettered]


def test_a_replay_beside_a_live_worker_changes_nothing(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", lanes=2, order="key")
    settle_as(queue, *(f"ack:{at % 3}" for at in range(20)), "reject:x")
    queue.publish(["live:1", "live:2"])
    entered, go, handled = threading.Event(), threading.Event(), list[str]()

    def work(message: ReceivedMessage) -> None:
        entered.set()
        assert go.wait(30)
        handled.append(message.text)

    worker = threading.Thread(
        target=lambda: queue.group("billing").work(work, mode="message", until="settled")
    )
    worker.start()
    assert entered.wait(30)
    before, stats = fingerprint(tmp_path), counts(queue)
    versions = messages_of(queue).log.state.version, ledgers_of(queue).version()
    leases = [lease.lease_id for lease in queue.group("billing").leases()]
    try:
        for options in (
            {"mode": "batch"},
            {"mode": "message", "threads": 2},
            {"mode": "batch", "max_messages": 7},
        ):
            handler = refuse if options["mode"] == "message" else accept
            report = Queue.open(queue.path).replay(handler, "billing", **options)
            assert report.summary.replayed == 21
        assert fingerprint(tmp_path) == before
        assert counts(queue) == stats
        assert [lease.lease_id for lease in queue.group("billing").leases()] == leases
        assert (messages_of(queue).log.refresh().version, ledgers_of(queue).version()) == versions
    finally:
        go.set()
        worker.join(30)
    assert sorted(handled) == ["live:1", "live:2"]


def test_settles_of_a_batch_change_nothing_in_any_store(make: Make, byte_store: ByteStore) -> None:
    queue = make()
    settle_as(queue, "ack:a", "ack:b")
    queue.publish("open")
    queue.group("billing").lease("w")
    before, version = queue.stats(), ledgers_of(queue).version()
    written = byte_store.paths("write", "create", "sync", "delete", "delete_many")

    def handler(lease: Lease) -> None:
        with lease.keep_alive():
            lease.nack(error="no")

    assert queue.replay(handler, "billing", mode="batch", max_messages=5).summary.failed == 2
    assert written == []
    assert (queue.stats(), ledgers_of(queue).version()) == (before, version)
    assert context_of(queue).history.progress()[0] <= version


# -- which messages


def test_since_and_until_are_times_of_the_settle(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    at = []
    for name in "abc":
        settle_as(queue, f"ack:{name}")
        at.append(clock())
        clock.advance("1h")

    def keys(**options: Any) -> str:
        return "".join(
            queue.replay(accept, "billing", mode="batch", **options).table["key"].to_pylist()
        )

    assert keys() == "abc"
    assert keys(since="150m") == keys(since="-150m") == keys(since=timedelta(minutes=150)) == "bc"
    assert keys(since=at[1]) == "bc", "from then on"
    assert keys(until=at[1]) == "a", "before then"
    assert keys(since=at[1].isoformat(), until=at[2].isoformat()) == "b"
    assert keys(since=9000, until="90m") == "b"
    assert keys(since="1m") == ""


def test_where_selects_by_the_past(make: Make) -> None:
    queue = make()
    settle_as(queue, "ack:a", "reject:b", "ack:c", "reject:d")

    def keys(where: str, **options: Any) -> str:
        table = queue.replay(accept, "billing", mode="batch", where=where, **options).table
        return "".join(table["key"].to_pylist())

    assert keys("outcome = 'dead_lettered'") == "bd"
    assert keys("key IN ('a', 'b') AND delivery_count = 1") == "ab"
    assert keys("reason = 'rejected' AND settled_at > TIMESTAMP '2020-01-01'") == "bd"
    assert keys("CAST(value AS TEXT) LIKE 'ack:%'") == "ac"
    assert keys("outcome = 'acked'", limit=1) == "c"
    assert keys("outcome = 'acked'", limit=2) == "ac"


def test_a_result_of_the_other_mode_ends_the_replay() -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a")
    with pytest.raises(InvalidHandlerResult):
        queue.replay(lambda _: {"outcome": "ack"}, "billing", mode="message")


# -- what is gone


def test_a_missing_file_is_counted(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    for name in "abc":
        settle_as(queue, f"ack:{name}", f"ack:{name}")
    gone = sorted(tmp_path.glob("queue/messages/*.parquet"), key=lambda path: path.stat().st_mtime)
    gone[1].unlink()
    report = Queue.open(queue.path).replay(accept, "billing", mode="batch")
    assert report.table["key"].to_pylist() == ["a", "a", "c", "c"]
    assert (report.summary.replayed, report.summary.unreadable) == (4, 2)
    assert "not replayed: 2 unreadable" in str(report)
    report = Queue.open(queue.path).replay(
        accept, "billing", mode="batch", limit=1, where="key = 'a'"
    )
    assert (report.summary.replayed, report.summary.unreadable) == (1, 2)


def test_trimmed_messages_are_counted(clock: ManualClock) -> None:
    queue = memory_queue(clock, retention="1h")
    settle_as(queue, "ack:a", "reject:b")
    clock.advance("2h")
    settle_as(queue, "ack:c")
    assert queue.horizon() >= 0
    report = queue.replay(accept, "billing", mode="batch")
    assert (report.table["key"].to_pylist(), report.summary.trimmed) == (["c"], 2)
    assert queue.replay(accept, "billing", mode="batch", since="1h").summary.trimmed == 0, (
        "settled before"
    )


def test_messages_without_history_are_counted(clock: ManualClock) -> None:
    queue = memory_queue(clock, history_retention="1d")
    queue.group("slow").ensure()  # keeps all messages
    settle_as(queue, "ack:a", "ack:b")
    clock.advance("3d")
    settle_as(queue, "ack:c")
    report = queue.replay(accept, "billing", mode="batch")
    assert (report.table["key"].to_pylist(), report.summary.without_history) == (["c"], 2)
    late = queue.group("late", start="latest")
    late.ensure()
    assert queue.replay(accept, "late", mode="batch").summary.without_history == 3, (
        "before its time"
    )


# -- how it runs


def test_threads_share_the_calls_and_keep_the_order_of_keys() -> None:
    queue = memory_queue(lanes=8, order="key")
    settle_as(queue, *(f"ack:{at % 5}" for at in range(100)))
    lock, seen, busy, most = threading.Lock(), dict[str, list[int]](), Counter[str](), 0
    meeting = threading.Barrier(2, timeout=30)

    def handler(message: ReceivedMessage) -> None:
        nonlocal most
        key = str(message.key)
        with lock:
            busy[key] += 1
            most = max(most, busy[key])
            seen.setdefault(key, []).append(message.sequence)
            is_early = sum(map(len, seen.values())) <= 2
        if is_early:
            meeting.wait()  # two calls run at a time
        with lock:
            busy[key] -= 1

    report = queue.replay(handler, "billing", mode="message", threads=4)
    assert report.summary.replayed == 100
    assert most == 1
    assert all(found == sorted(found) for found in seen.values())
    assert report.table["sequence"].to_pylist() == sorted(report.table["sequence"].to_pylist())


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_limits_of_the_group_do_not_hold_a_replay_back(mode: str) -> None:
    queue = memory_queue()
    settle_as(queue, *(f"ack:{at}" for at in range(5)))
    queue.publish(["leased", "due"])
    group = queue.group("billing")
    group.configure(rate_limit="1/h", max_in_flight=1)
    assert group.lease("w") is not None
    for _ in range(2):
        assert queue.replay(accept, "billing", mode=mode, threads=2).summary.replayed == 5
        group.pause("repairs")
    assert group.stats().ready == 1


def test_coroutines_run_at_the_same_time() -> None:
    queue = memory_queue()
    settle_as(queue, *(f"ack:{at}" for at in range(10)))
    running = most = 0
    full = asyncio.Event()

    async def handler(message: ReceivedMessage) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 5:
            full.set()
        await full.wait()
        running -= 1
        return Reject("seven") if message.key == "7" else None

    report = queue.replay(handler, "billing", mode="message", concurrency=5)
    assert most == 5
    assert [row["key"] for row in report.table.to_pylist() if row["error"]] == ["7"]


def test_a_call_that_takes_too_long_fails() -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a", "ack:slow", "ack:b")
    free = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "slow":
            free.wait(60)

    try:
        report = queue.replay(handler, "billing", mode="message", threads=2, timeout="50ms")
    finally:
        free.set()
    assert [now for _, now, _ in outcomes(report)] == ["acked", "failed", "acked"]
    assert "exceeded its time limit of 0.05s" in str(report.errors[0].error)
    assert report.summary.stopped_because == ""

    async def hanging(message: ReceivedMessage) -> None:
        if message.key == "slow":
            await asyncio.Event().wait()

    report = queue.replay(hanging, "billing", mode="message", concurrency=1, timeout="50ms")
    assert [now for _, now, _ in outcomes(report)] == ["acked", "failed", "acked"]


def test_a_replay_ends_if_all_handlers_hang(limits: Limits) -> None:
    limits(replay_patience=0.0)
    queue = memory_queue()
    settle_as(queue, "ack:a", "ack:slow", "ack:b")
    free = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "slow":
            free.wait(60)

    try:
        report = queue.replay(handler, "billing", mode="message", timeout="50ms")
    finally:
        free.set()
    assert [now for _, now, _ in outcomes(report)] == ["acked", "failed"]
    why = "all handlers have exceeded their time limit of 0.05s and still run"
    assert report.summary.stopped_because == why
    assert f"ended early: {why}" in str(report)


def test_stop_ends_the_replay_with_what_was_done() -> None:
    queue = memory_queue()
    settle_as(queue, *(f"ack:{at}" for at in range(10)))
    stop = threading.Event()

    def handler(message: ReceivedMessage) -> None:
        if message.key == "4":
            stop.set()

    report = queue.replay(handler, "billing", mode="message", stop=stop)
    assert report.table["key"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert report.summary.stopped_because == "the event stop was set"


@pytest.mark.parametrize("error", [KeyboardInterrupt, InvalidHandlerResult])
def test_what_ends_a_worker_ends_a_replay(error: type[BaseException]) -> None:
    queue = memory_queue()
    settle_as(queue, "ack:a")

    def handler(_: Lease) -> None:
        raise error("over")

    with pytest.raises(error, match="over"):
        queue.replay(handler, "billing", mode="batch")


def test_many_errors_are_counted_in_bounded_memory(limits: Limits) -> None:
    limits(replay_shapes=3)
    queue = memory_queue()
    names = ["one", "two", "three", "four", "five"]
    settle_as(queue, *(f"ack:{name}" for name in names for _ in range(7)))

    def handler(message: ReceivedMessage) -> None:
        raise ValueError(f"{message.key} {message.sequence} " + "x" * 10_000)

    report = queue.replay(handler, "billing", mode="message")
    assert [one.messages for one in report.errors] == [14, 7, 7, 7]
    assert report.errors[0].shape == "(other errors)"
    assert all(len(one.sequences) == 5 and len(one.error) <= 500 for one in report.errors)
    assert {len(text) for text in report.table["error"].to_pylist()} == {500}


def test_the_report_in_a_notebook_escapes_errors() -> None:
    queue = memory_queue()
    settle_as(queue, "ack:<b>", "reject:b")
    page = queue.replay(refuse, "billing", mode="message")._repr_html_()
    assert "Errors by shape" in page
    assert "ack:&lt;b&gt;" in page
    assert "ack:<b>" not in page


# -- against a naive replay


@dataclass
class Naive:
    """Calls the handler for each finished message by itself."""

    queue: Queue

    def rows(self, handler: Callable[[bytes], str | None]) -> list[tuple[Any, ...]]:
        found = []
        for row in self.queue.finished("billing", payload=True).to_pylist():
            if row["value"] is None:
                continue
            error = handler(row["value"])
            now = "acked" if error is None else "failed"
            found.append(
                (row["sequence"], row["message_id"], row["key"], row["outcome"],
                 row["settled_at"].astimezone(UTC), now, error)
            )  # fmt: skip
        return found


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

    def judge(value: bytes) -> str | None:
        return f"ValueError: {value!r}" if int(value) % 3 == 0 else None

    def handler(message: ReceivedMessage) -> None:
        if int(message.value) % 3 == 0:
            raise ValueError(message.value)

    names = [
        "sequence", "message_id", "key", "outcome_then", "settled_at", "outcome_now", "error",
    ]  # fmt: skip
    expected = Naive(queue).rows(judge)
    report = queue.replay(handler, "billing", mode="message", threads=2)
    assert expected, "the run settles something"
    assert tuples(report.table, names) == expected
    limit = chance.randrange(1, len(expected) + 1)
    newest = queue.replay(handler, "billing", mode="message", limit=limit)
    assert tuples(newest.table, names) == expected[-limit:]
    acked = [row for row in expected if row[3] == "acked"]
    where = queue.replay(handler, "billing", mode="message", where="outcome = 'acked'", limit=limit)
    assert tuples(where.table, names) == acked[-limit:]
    at = chance.choice(expected)[4]
    parts = [
        queue.replay(handler, "billing", mode="message", **{name: at})
        for name in ("until", "since")
    ]
    assert tuples(parts[0].table, names) == [row for row in expected if row[4] < at]
    assert tuples(parts[1].table, names) == [row for row in expected if row[4] >= at]


def tuples(table: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]
