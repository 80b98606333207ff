"""The worker loop: policies, verdicts on single messages, keep-alive, and its end."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.handles import again, lease, trim, until
from support.tables import context_of, group_ledger_of, on_commands
from support.working import working

from spark_mq import Lease, Message, Queue, Reject, Retry, SettleResult, Snooze, WorkSummary
from spark_mq.errors import DataLossError, GroupBlocked, InvalidHandlerResult, LeaseLost
from spark_mq.ledger.acquire import Grant
from spark_mq.testing import ManualClock

MODES = pytest.mark.parametrize("mode", ["batch", "message"])
Make = Callable[..., Queue]


def drain(queue: Queue, handler: Callable[[Lease], Any], **options: Any) -> WorkSummary:
    return queue.group().work(handler, **{"mode": "batch", "until": "empty", **options})


def counts(queue: Queue) -> dict[str, int]:
    stats = queue.group().stats()
    names = ("ready", "delayed", "leased", "dead", "acked")
    return {name: value for name in names if (value := getattr(stats, name))}


def test_what_a_handler_leaves_is_acked_when_it_returns(queue: Queue) -> None:
    queue.publish([str(n) for n in range(10)])
    seen: list[bytes] = []
    summary = drain(
        queue, lambda taken: seen.extend(m.value for m in taken.messages), max_messages=4
    )
    assert seen == [str(n).encode() for n in range(10)]
    assert summary == WorkSummary(leases=3, failed=0, settled=10, acked=10)
    assert counts(queue) == {"acked": 10}


@pytest.mark.parametrize(("on_error", "left"), [("nack", {"delayed": 2}), ("reject", {"dead": 2})])
def test_a_failed_handlers_lease_is_settled_by_the_policy_with_its_error(
    queue: Queue, on_error: str, left: dict[str, int]
) -> None:
    queue.publish(["a", "b"])

    def fail(_: Lease) -> None:
        raise ValueError("boom " + "x" * 5_000)

    settled = 2 if on_error == "reject" else 0
    summary = WorkSummary(leases=1, failed=1, settled=settled, **{f"{on_error}ed": 2})
    assert drain(queue, fail, max_messages=2, on_error=on_error) == summary
    assert counts(queue) == left
    errors = {r.error for r in group_ledger_of(queue.group()).current()}
    assert all(
        error and error.startswith("ValueError: boom") and len(error) == 2_000 for error in errors
    )


def test_the_log_tells_what_failed_and_what_has_become_of_it(
    make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_mq")
    queue = make(max_delivery_attempts=2, retry_delay="10s", retry_jitter=0)
    due = f"{clock() + timedelta(seconds=10):%Y-%m-%d %H:%M:%S}Z"

    def fail(_: Lease) -> None:
        raise ValueError("boom")

    def logged(values: list[str], **options: Any) -> str:
        caplog.clear()
        queue.publish(values)
        drain(queue, fail, **options)
        return caplog.text

    text = logged(["a", "b"], max_messages=2)
    assert "2 unsettled messages (delivery 1 of 2)" in text
    assert f"2 messages nacked: 2 due again from {due}" in text
    clock.advance("10s")
    text = logged([])
    for part in ("isolating 1 suspect", "(delivery 2 of 2)", "1 message nacked: 1 dead"):
        assert part in text
    assert "1 message rejected: 1 dead" in logged(["c"], on_error="reject")
    assert "1 message nacked: 1 due again" in logged(["d"], ack="manual")


@MODES
def test_with_raise_the_loop_ends_with_the_error_and_the_lease_is_left(
    queue: Queue, mode: str
) -> None:
    queue.publish(["a", "b"])

    def fail(_: Any) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        drain(queue, fail, mode=mode, on_error="raise")
    assert counts(queue) == {"leased": 1, "ready": 1}


def test_what_the_handler_settled_itself_stands(queue: Queue) -> None:
    receipt = queue.publish([str(n) for n in range(4)])

    def handle(taken: Lease) -> None:
        taken.reject([receipt.sequences[0]], error="no")
        taken.ack([receipt.sequences[1]])
        raise ValueError("the rest")

    summary = drain(queue, handle, max_messages=4)
    assert (summary.acked, summary.rejected, summary.settled) == (1, 1, 2)
    assert summary.nacked == 2, "the loop gave back the rest"
    assert counts(queue) == {"dead": 1, "acked": 1, "delayed": 2}


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("by_group", [False, True], ids=["lease", "group"])
def test_the_summary_and_the_log_count_what_the_handler_settles_itself(
    queue: Queue, caplog: pytest.LogCaptureFixture, verb: str, by_group: bool
) -> None:
    group, receipt = queue.group(), queue.publish([str(n) for n in range(4)])
    named, options = receipt.sequences[:2], {} if verb == "ack" else {"delay": "1h"}
    if verb == "reject":
        options = {"error": "no"}

    def handle(taken: Lease) -> None:
        settle = getattr(group if by_group else taken, verb)
        settle(*([{taken: named}] if by_group else [named]), **options)
        with contextlib.suppress(LeaseLost):  # once more
            settle(*([{taken: named}] if by_group else [named]), **options)

    with caplog.at_level(logging.INFO, "spark_mq.verdicts"):
        summary = drain(queue, handle, max_messages=4)
    counted = {"ack": "acked", "nack": "nacked", "reject": "rejected", "release": "released"}
    found = {name: getattr(summary, name) for name in counted.values()}
    expected = {**dict.fromkeys(found, 0), "acked": 2}
    expected[counted[verb]] += 2
    assert found == expected
    assert summary.settled == summary.acked + summary.rejected
    line = {"ack": "", "release": "", "nack": "nacked 2", "reject": "rejected 2 (no x2), dead 2"}
    assert line[verb] in caplog.text


@MODES
def test_acked_first_a_message_is_lost_with_its_handler(queue: Queue, mode: str) -> None:
    queue.publish(["a", "b", "c"])
    during: list[dict[str, int]] = []

    def fail(_: Any) -> None:
        during.append(counts(queue))
        raise ValueError("boom")

    assert drain(queue, fail, mode=mode, ack="on_receive").failed == 3
    assert during == [{"acked": 1, "ready": 2}, {"acked": 2, "ready": 1}, {"acked": 3}]
    assert counts(queue) == {"acked": 3}


def test_manual_settles_nothing_but_what_the_handler_says(queue: Queue, clock: ManualClock) -> None:
    receipt = queue.publish(["a", "b", "c"])
    drain(
        queue,
        lambda taken: [{"sequence": receipt.sequences[1], "outcome": "ack"}],
        ack="manual",
        max_messages=3,
    )
    assert counts(queue) == {"leased": 2, "acked": 1}
    clock.advance("62s")
    assert counts(queue) == {"ready": 2, "acked": 1}


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist], ids=["list", "table"])
def test_a_handler_says_what_becomes_of_single_messages(
    queue: Queue, clock: ManualClock, form: Callable[[list[Any]], Any]
) -> None:
    s = queue.publish([str(n) for n in range(6)]).sequences
    rows = [
        {"sequence": s[0], "outcome": "reject", "delay": None, "error": "never"},
        {"sequence": s[1], "outcome": "nack", "delay": "0s", "error": None},
        {"sequence": s[2], "outcome": None, "delay": "5m", "error": "later"},
        {"sequence": s[3], "outcome": "ack", "delay": None, "error": None},
    ]
    stop = threading.Event()

    def handle(taken: Lease) -> Any:
        stop.set()
        return form(rows)

    queue.group().work(handle, mode="batch", max_messages=6, stop=stop)
    assert counts(queue) == {"dead": 1, "ready": 1, "delayed": 1, "acked": 3}
    reported = {
        (
            r.state,
            r.error,
            r.available_at and (r.available_at - context_of(queue).now()) // 1_000_000,
        )
        for r in group_ledger_of(queue.group()).current()
    }
    assert {
        ("dead", "never", None),
        ("available", None, 0),
        ("available", "later", 300),
    } <= reported


@pytest.mark.parametrize(
    ("settle", "left"),
    [
        (lambda taken: taken.ack(), {"acked": 2}),
        (lambda taken: taken.nack(delay="5m"), {"delayed": 2}),
        (lambda taken: taken.extend(), {"acked": 2}),
        (
            lambda taken: [
                taken.reject([taken.messages[0].sequence]),
                taken.ack([taken.messages[1].sequence]),
            ],
            {"dead": 1, "acked": 1},
        ),
    ],
)
def test_a_handler_may_return_what_its_own_settles_return(
    queue: Queue, settle: Callable[[Lease], Any], left: dict[str, int]
) -> None:
    queue.publish(["a", "b"])
    assert drain(queue, settle, max_messages=2).failed == 0
    assert counts(queue) == left


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        (),
        lambda s: [SettleResult(1), {"sequence": s}],
        [1],
        [{"outcome": "ack"}],
        [{"sequence": 1, "outcom": "ack"}],
        [{"sequence": "1"}],
        [{"sequence": 1 << 40}],
        [{"sequence": None}],
        lambda s: [{"sequence": s, "outcome": "later"}],
        lambda s: [{"sequence": s, "delay": -1}],
        lambda s: [{"sequence": s, "delay": "soon"}],
        lambda s: [{"sequence": s, "outcome": "reject"}, {"sequence": s, "outcome": "ack"}],
    ],
)
def test_what_says_nothing_of_messages_ends_the_loop_and_settles_nothing(
    queue: Queue, wrong: Any
) -> None:
    receipt = queue.publish(["a"])
    with pytest.raises(InvalidHandlerResult):
        drain(queue, lambda _: wrong(receipt.sequences[0]) if callable(wrong) else wrong)
    assert counts(queue) == {"leased": 1}


def _reject(_: object) -> None:
    raise Reject("no customer")


@pytest.mark.parametrize("handler", [_reject, lambda _: Snooze("1m"), lambda _: Retry])
def test_a_decision_about_one_message_ends_a_loop_of_leases(queue: Queue, handler: Any) -> None:
    queue.publish(["a"])
    with pytest.raises(InvalidHandlerResult, match="use mode='message'"):
        drain(queue, handler)
    assert counts(queue) == {"leased": 1}


def test_threads_handle_leases_side_by_side(queue: Queue) -> None:
    queue.publish([str(n) for n in range(6)])
    together = threading.Barrier(3)

    def handle(_: Lease) -> None:
        together.wait(30)

    assert drain(queue, handle, threads=3).settled == 6


def test_the_lease_is_extended_while_its_handler_runs(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", visibility_timeout="1s", clock_skew=0)
    queue.publish(["slow"])

    def handle(taken: Lease) -> None:
        first = taken.expires_at
        until(
            lambda: (
                context_of(queue).clock() > first and taken.expires_at > context_of(queue).clock()
            )
        )
        assert again(queue).group().lease("other") is None

    assert drain(queue, handle) == WorkSummary(leases=1, failed=0, settled=1, acked=1)


def test_extensions_end_with_the_longest_duration(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue", visibility_timeout="1s", clock_skew=0)
    queue.publish(["hung"])
    others: list[Lease | None] = []

    def handle(_: Lease) -> None:
        if not others:  # on a busy machine, this worker can get the message once more
            others.append(again(queue).group().lease("other", wait="30s"))

    drain(queue, handle, max_lease_duration="2s")
    assert others[0] is not None


@pytest.mark.parametrize(
    ("ack", "how"),
    [
        ("on_success", "returns"),
        ("on_success", "raises"),
        ("manual", "settles"),
        ("manual", "settles by sequence"),
    ],
)
def test_a_verdict_after_max_lease_duration_is_refused(
    queue: Queue, clock: ManualClock, ack: str, how: str
) -> None:
    (sequence,) = queue.publish("slow").sequences
    seen: list[int] = []

    def handle(taken: Lease) -> None:
        seen.append(taken.messages[0].delivery_count)
        if len(seen) > 1:
            taken.ack()
            return
        clock.advance("31m")
        if how == "raises":
            raise ValueError("late")
        if how.startswith("settles"):
            with pytest.raises(LeaseLost, match="max_lease_duration"):
                taken.ack([sequence] if "sequence" in how else None)

    summary = drain(queue, handle, ack=ack)
    assert seen == [1, 2]
    assert (summary.nacked, summary.released, counts(queue)) == (0, 0, {"acked": 1})
    events = [event.event for event in queue.trace(sequence).events]
    assert events == ["leased", "lease_expired", "leased", "acked"]


def test_after_max_lease_duration_a_settle_of_several_leases_settles_the_others(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(["a", "b", "c"])
    kept, other = lease(queue, 2), lease(queue, 1)
    kept.ack([kept.messages[0].sequence])
    with kept.keep_alive(max_lease_duration="30m"):
        clock.advance("29m")
        clock.advance("2m")
        with pytest.raises(LeaseLost, match="max_lease_duration") as lost:
            queue.group().ack([kept, other])
    assert lost.value.lease_id == kept.lease_id
    assert lost.value.result == SettleResult(1)
    assert counts(queue) == {"acked": 2, "ready": 1}


@pytest.mark.usefixtures("short_leases")
def test_a_thread_that_outlasts_max_lease_duration_keeps_no_other_lease(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A settle of the ended lease must lease nothing, because no thread is free for it."""
    hung, go_on, stop, seen = threading.Event(), threading.Event(), threading.Event(), list[int]()
    done, moment = list[WorkSummary](), timedelta(microseconds=1)
    group = queue.group().ensure()

    def handle(taken: Lease) -> None:
        seen.append(taken.messages[0].sequence)
        if len(seen) == 1:
            clock.advance("500ms")  # others wait for the clock skew
            hung.set()
            assert go_on.wait(60)

    def run() -> None:
        given = {
            "max_lease_duration": moment,
            "poll_interval": "10ms",
            "stop": stop,
            "mode": "batch",
        }
        done.append(group.work(handle, **given))  # type: ignore[arg-type]

    queue.publish(["hung", "next"])
    worker = threading.Thread(target=run)
    worker.start()
    try:
        assert hung.wait(60)
        until(lambda: clock.advance(moment) or "reached max_lease_duration" in caplog.text)
        until(lambda: clock.advance(moment) or counts(queue) == {"leased": 1, "ready": 1})
        clock.advance("2s")
        taken = lease(again(queue), 2)
        assert sorted(m.delivery_count for m in taken.messages) == [1, 2]
        taken.ack()
    finally:
        stop.set()
        go_on.set()
        worker.join(60)
    assert (len(seen), done[0].leases) == (1, 1)


def test_an_own_extension_outlasts_max_lease_duration(queue: Queue, clock: ManualClock) -> None:
    queue.publish("a")
    taken = lease(queue)
    with taken.keep_alive(max_lease_duration="30m"):
        clock.advance("29m")
        taken.extend("10m")
        clock.advance("5m")
        assert taken.ack().settled == 1


def test_a_worker_leases_for_max_lease_duration_at_most(queue: Queue, clock: ManualClock) -> None:
    queue.publish("a")
    seen: list[timedelta] = []
    drain(queue, lambda taken: seen.append(taken.expires_at - clock()), max_lease_duration="10s")
    assert seen == [timedelta(seconds=10)]


def test_asked_to_stop_it_leases_nothing_more_and_lets_the_running_handler_finish(
    queue: Queue,
) -> None:
    queue.publish(["a", "b"])
    stop = threading.Event()

    def handle(_: Lease) -> None:
        stop.set()

    assert queue.group().work(handle, mode="batch", stop=stop) == WorkSummary(
        leases=1, failed=0, settled=1, acked=1
    )
    assert counts(queue) == {"acked": 1, "ready": 1}


def test_a_lease_that_came_too_late_for_a_handler_is_given_back_uncounted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a"])
    stop = threading.Event()

    def take(run: Callable[[], Any], _: object) -> Any:
        found = run()
        if any(isinstance(one, Grant) and one.ranges for one in found):
            stop.set()
        return found

    on_commands(monkeypatch, take)
    assert (
        queue.group().work(lambda _: pytest.fail("never"), mode="batch", stop=stop) == WorkSummary()
    )
    assert stop.is_set()
    assert lease(again(queue)).messages[0].delivery_count == 1, (
        "available to others at once, and not counted"
    )


@MODES
def test_what_outlasts_the_grace_keeps_its_count_and_is_left_to_expire(
    queue: Queue, clock: ManualClock, mode: str
) -> None:
    queue.publish(["hung"])
    stop, release = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        stop.set()
        release.wait(30)
        raise SystemExit

    assert queue.group().work(handle, mode=mode, stop=stop, shutdown_timeout=0).settled == 0
    assert counts(queue) == {"leased": 1}
    clock.advance("62s")
    assert lease(again(queue)).messages[0].delivery_count == 2
    release.set()


def test_a_store_that_fails_for_a_moment_does_not_end_the_loop(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a"])
    failures = [OSError("reset")]

    def take(run: Callable[[], Any], _: object) -> Any:
        if failures:
            raise failures.pop()
        return run()

    on_commands(monkeypatch, take)
    assert drain(queue, lambda _: None, poll_interval="10ms").settled == 1
    assert not failures


def test_a_blocked_group_is_waited_out(make: Make) -> None:
    queue = make(on_max_deliveries="block", max_failures=1)
    s = queue.publish(["a", "b"]).sequences
    lease(queue, 2).nack([s[0]])
    with pytest.raises(GroupBlocked):
        queue.group().lease("w")
    seen = list[bytes]()
    with working(queue.group(), lambda taken: seen.extend(m.value for m in taken.messages)):
        queue.group().unblock("retry")
        until(lambda: seen)
    assert seen[0] == b"a"


def test_lost_data_ends_the_loop(make: Make, clock: ManualClock) -> None:
    queue = make(hard_retention="1h")
    queue.group().ensure()
    queue.publish(["a"])
    clock.advance("2h")
    trim(queue)
    with pytest.raises(DataLossError):
        drain(queue, lambda _: None)
    drain(queue, lambda _: None, fail_on_data_loss=False)
    assert queue.group().stats().lost == 1


# -- a process of its own


def _worker(path: str, started: Any, go_on: Any) -> None:
    """Handle the first lease until the signal has arrived and the handler may go on."""
    stop = threading.Event()

    def handle(_: Lease) -> None:
        started.set()
        go_on.wait(60)
        assert stop.wait(60)

    work = Queue.open(path).group().work
    summary = work(handle, mode="batch", worker_id="w", shutdown_timeout="30s", stop=stop)
    os._exit(10 + summary.settled)


@pytest.mark.slow
def test_on_sigterm_a_worker_process_finishes_what_it_has_in_hand(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    queue.publish([Message("a"), Message("b")])
    spawn = multiprocessing.get_context("spawn")
    started, go_on = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_worker, args=(queue.path, started, go_on))
    process.start()
    assert started.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    go_on.set()
    process.join(60)
    assert process.exitcode == 11, "one message settled, and it ended by itself"
    assert counts(queue) == {"acked": 1, "ready": 1}
