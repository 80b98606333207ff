"""The worker that calls a handler for each message: decisions, sharing of commits, its end."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support import working as worker
from support.handles import again, lease, until
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.rule_variants import first, gets, rule_variant, then
from support.tables import group_ledger_of, ledgers_of, on_commands
from support.working import counts, drain, events

from spark_mq import Message, Queue, ReceivedMessage, Reject, Retry, Snooze, WorkSummary, errors
from spark_mq.ledger.settle import Settle
from spark_mq.testing import ManualClock

Handler = Callable[[ReceivedMessage], Any]

MICROSECOND = timedelta(microseconds=1)
"""A duration after which a lease is extended no more. Its last extension may still be under way,
and counts from the time that it finds.
"""


def working(queue: Queue, handler: Handler, **options: Any) -> Any:
    """A worker in a thread of its own. The test may look at its group before the first lease."""
    group = queue.group().ensure()
    return worker.working(group, handler, mode="message", **options)


# -- many together


@pytest.mark.parametrize("threads", [1, 8])
def test_messages_are_leased_and_settled_together(queue: Queue, threads: int) -> None:
    queue.publish([str(n) for n in range(400)])
    before = ledgers_of(queue).version()
    waits, pause = list[object](), Event()
    options: dict[str, Any] = {"max_messages": 200, "settle_linger": "1h", "poll_interval": "1h"}
    polling = rule_variant("ThreadWatch.__init__", gets(poll=3600.0))
    with polling, rule_variant("OpenTasks.wait", first(waits.append)):
        summary = drain(queue, lambda _: pause.wait(0.001), threads=threads, **options)
    assert summary.acked == 400
    assert 0 < len(waits) <= 40, "it looks at the first one and at those to settle"
    assert ledgers_of(queue).version() - before < 100, "with leases of one these are 400 or more"


# -- what a handler decides


@pytest.mark.parametrize(
    "decision", [Retry(delay="5m", error="busy"), Reject(error="never"), Snooze(delay="1m")]
)
def test_a_decision_can_be_pickled_and_shown(decision: Retry | Reject | Snooze) -> None:
    assert pickle.loads(pickle.dumps(decision)).verdict() == decision.verdict()
    assert str(decision), "a traceback shows it if nobody catches it"


def test_a_failure_blames_its_message_alone(queue: Queue) -> None:
    bad = queue.publish([str(n) for n in range(10)]).sequences[7]

    def handle(message: ReceivedMessage) -> None:
        if message.sequence == bad:
            raise ValueError("boom")

    summary = drain(queue, handle, threads=4)
    assert (summary.failed, summary.nacked) == (1, 1)
    assert counts(queue) == {"acked": 9, "delayed": 1}
    (r,) = [r for r in group_ledger_of(queue.group()).current() if r.state == "available"]
    assert (r.first, r.suspect, r.failure_count, r.error) == (bad, False, 1, "ValueError: boom")


DECISIONS: dict[str, tuple[Callable[[], Any], str, object]] = {
    "retry": (
        lambda: Retry(delay="5m", error="later"), "nacked",
        having(state="delayed", delivery_count=1, failure_count=1, error="later"),
    ),
    "retry by the policy": (
        Retry, "nacked", having(state="delayed", delivery_count=1, failure_count=1, error=None)
    ),
    "retry at once": (
        lambda: Retry(0), "nacked", having(state="ready", delivery_count=1, failure_count=1)
    ),
    "reject": (
        lambda: Reject(error=KeyError("no")), "rejected",
        having(state="dead", delivery_count=1, failure_count=0, error="KeyError: 'no'"),
    ),
    "snooze": (
        lambda: Snooze("15m"), "released",
        having(state="delayed", delivery_count=0, failure_count=0, error=None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("how", ["returned", "raised", "raised despite ack", "by a coroutine"])
def test_a_handler_decides_about_its_message(queue: Queue, name: str, how: str) -> None:
    make, counted, left = DECISIONS[name]
    queue.publish("a")
    stop = Event()

    def handle(_: ReceivedMessage) -> Any:
        stop.set()
        if how.startswith("raised"):
            raise make()
        return make()

    async def handle_in_a_loop(message: ReceivedMessage) -> Any:
        await asyncio.sleep(0)
        return handle(message)

    handler = handle_in_a_loop if how == "by a coroutine" else handle
    on_error = "ack" if how == "raised despite ack" else "nack"
    summary = drain(queue, handler, stop=stop, on_error=on_error)
    ends = {"acked": 0, "rejected": 0, "nacked": 0, "released": 0, counted: 1}
    assert summary == having(**ends, settled=int(counted == "rejected"))
    assert queue.group().peek() == [left]
    assert not queue.group().peek(state="unread")


@pytest.mark.parametrize("result", [None, 0, False, "text", {"id": 1}, [1, 2], object()])
def test_any_other_result_acks(queue: Queue, result: object) -> None:
    queue.publish("a")
    assert drain(queue, lambda _: result).settled == 1
    assert counts(queue) == {"acked": 1}


# -- coroutines


def test_an_async_method_of_an_object_runs_for_many_messages_at_once(queue: Queue) -> None:
    queue.publish([str(n) for n in range(90)])

    class Together:
        barrier: asyncio.Barrier | None = None

        async def __call__(self, _: ReceivedMessage) -> None:
            self.barrier = self.barrier or asyncio.Barrier(30)
            async with asyncio.timeout(60):
                await self.barrier.wait()

    assert drain(queue, Together(), concurrency=30).acked == 90


def test_coroutines_that_outlast_the_grace_are_cancelled(queue: Queue) -> None:
    queue.publish("hung")
    stop, closed, opened = Event(), Event(), list[Any]()

    async def connection() -> AsyncIterator[threading.Thread]:
        try:
            yield threading.current_thread()
        finally:
            await asyncio.sleep(0.1)
            closed.set()

    async def handle(_: ReceivedMessage) -> None:
        stop.set()
        opened.append(connection())
        opened.append(await anext(opened[0]))
        await asyncio.Event().wait()

    assert drain(queue, handle, stop=stop, shutdown_timeout=0) == having(leases=1, failed=0)
    _, thread = opened
    assert (closed.is_set(), thread.daemon, thread.is_alive()) == (True, True, False)
    assert counts(queue) == {"leased": 1}


# -- several groups and queues


def test_one_call_serves_groups_of_two_queues(make: Make, tmp_path: Path, limits: Limits) -> None:
    """Also what a handler publishes to an idle group, which has not heard of it at the end."""
    limits(poll_pause=0.2, looks_a_pause=1)
    (tmp_path / "name of another process").symlink_to(tmp_path / "other")
    queue, other, idle = make(), Queue.create(tmp_path / "other"), Event()
    queue.publish(["a", "b"])
    seen: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(f"own {message.text}")
        if message.text == "b":
            assert idle.wait(30)
            other.publish(["c"])

    others = {
        queue.group("audit"): lambda m: seen.append(f"audit {m.text}"),
        Queue.open(tmp_path / "name of another process").group():
            lambda m: seen.append(f"other {m.text}"),
    }  # fmt: skip
    looking = first(lambda a: "another" in a.ledger.queue.path and idle.set())
    with rule_variant("worker:has_ended", looking):
        summary = drain(queue, handle, more_groups=others, threads=2)
    assert sorted(seen) == ["audit a", "audit b", "other c", "own a", "own b"]
    assert summary.acked == 5


def test_it_does_not_end_while_one_of_its_groups_leases(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that was empty leases again, while the worker finds that the others are empty."""
    queue.publish(["held", "due"])
    limited, other = queue.group("limited"), queue.group("other", start="latest").ensure()
    limited.configure(max_in_flight=1)
    held = lease(queue, 1, "limited")
    looked, leased, judged, seen = Event(), Event(), Event(), list[str]()

    def look_at_other(run: Callable[[], Any], commands: Sequence[Any]) -> Any:
        if looked.wait(30) and not leased.is_set():
            held.ack()
            leased.wait(30)
        return run()

    def look_at_limited(run: Callable[[], Any], commands: Sequence[Any]) -> Any:
        outcomes = run()
        if not commands[0].lease_ids and outcomes[0].ranges and not leased.is_set():
            leased.set()
            assert judged.wait(30)
        looked.set()
        return outcomes

    on_commands(monkeypatch, look_at_other, "other")
    on_commands(monkeypatch, look_at_limited, "limited")
    judging = then(lambda idle, _: (leased.is_set() and judged.set()) or idle)
    options: dict[str, Any] = {"mode": "message", "until": "empty", "poll_interval": "10ms"}
    with rule_variant("WorkState.all_idle", judging):
        summary = limited.work(lambda m: seen.append(m.text), more_groups=[other], **options)
    assert (seen, summary.released) == (["due"], 0)


# -- the end


def test_workers_share_an_event_and_the_end_of_one_stops_no_others(queue: Queue) -> None:
    """One finds the limit of its group reached and ends. The other one still holds a message."""
    queue.publish([str(n) for n in range(5)])
    group, stop, ended = queue.group(), Event(), Event()
    group.configure(max_in_flight=1)
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        if not seen:
            assert drain(queue, lambda _: pytest.fail("never"), stop=stop).leases == 0
            ended.set()
        seen.append(message.sequence)

    summary = drain(queue, handle, stop=stop)
    assert (len(seen), summary.acked, ended.is_set(), stop.is_set()) == (5, 5, True, False)


def test_until_settled_waits_for_delayed_messages_and_retries(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish("retried")
    queue.publish("delayed", deliver_at=timedelta(minutes=5))
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.delivery_count)
        if message.value == b"retried" and message.delivery_count < 3:
            raise ValueError("boom")

    def step() -> bool:
        if not counts(queue).get("ready") and counts(queue).get("delayed"):
            clock.advance("10s")
        return running.done()

    with working(queue, handle, until="settled") as running:
        until(step)  # 31 steps, each of which asks a store twice
    assert sorted(seen) == [1, 1, 2, 3]
    assert counts(queue) == {"acked": 2}


def test_until_settled_waits_for_leases_of_others(queue: Queue) -> None:
    queue.publish("a")
    held, seen, looks = lease(queue, 1), list[int](), list[str]()
    looking = rule_variant("GroupLedger.stats", first(lambda a: looks.append(a.self.name)))
    options = {"until": "settled", "poll_interval": "50ms"}
    with looking, working(queue, lambda m: seen.append(m.delivery_count), **options) as running:
        until(lambda: len(looks) > 1)
        assert not running.done()
        held.nack(delay=0)
        until(running.done)
    assert seen == [2]


@pytest.mark.parametrize("how", ["event", "SIGTERM"])
def test_asked_to_stop_it_releases_what_no_handler_got(
    queue: Queue, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(n) for n in range(100)])
    stop, seen = Event(), list[int]()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.sequence)
        if len(seen) == 20:
            stop.set() if how == "event" else os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(30), "for all workers that share the event"

    assert drain(queue, handle, stop=stop, until=None).acked == len(seen) == 20
    assert counts(queue) == {"acked": 20, "ready": 80}
    assert all(m.delivery_count == 1 for m in lease(again(queue), 100).messages), "uncounted"
    assert "Ctrl-C" not in caplog.text


# -- leases and outages


def test_a_message_whose_lease_has_expired_reaches_no_handler(
    make: Make, clock: ManualClock
) -> None:
    queue = make(lanes=8, order="key")
    queue.publish([Message(str(n), key="k") for n in range(100)])
    seen, elsewhere, ended = list[int](), list[int](), set[str]()

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.sequence)
        if len(seen) == 10 and not elsewhere:
            clock.advance("62s")  # as if the process had stood still
            other = again(queue).group()
            while (taken := other.lease("other", max_messages=100)) is not None:
                elsewhere.extend(m.sequence for m in taken.messages)
                taken.ack()

    # Half of this is in hand, so it leases no more before.
    with rule_variant("HeldLeases.remove", first(lambda a: ended.add(a.lease.lease_id))):
        leases = drain(queue, handle, max_messages=100, settle_linger="1h").leases
    assert len(ended) == leases
    assert elsewhere, "the worker had more in hand"
    both = set(seen) & set(elsewhere)
    assert len(seen) + len(elsewhere) - len(both) == 100
    # Those that were finished and not settled yet, and that in the handler.
    assert both <= set(seen[:10])


@pytest.mark.usefixtures("short_leases")
@pytest.mark.parametrize("swallows", [False, True], ids=["ends", "swallows"])
def test_a_coroutine_is_cancelled_at_max_lease_duration_and_settles_nothing(
    queue: Queue, clock: ManualClock, swallows: bool
) -> None:
    (sequence,) = queue.publish("slow").sequences
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.delivery_count)
        if message.delivery_count > 1:
            assert not asyncio.current_task().cancelling(), "the next handler is not cancelled"
            return
        clock.advance("2s")
        try:
            async with asyncio.timeout(10):
                while True:
                    clock.advance(MICROSECOND)
                    await asyncio.sleep(0.002)
        except (asyncio.CancelledError, TimeoutError):
            clock.advance("2s")
            if not swallows:
                raise

    summary = drain(queue, handle, concurrency=1, max_lease_duration=MICROSECOND)
    assert seen == [1, 2]
    assert summary == WorkSummary(leases=2, failed=0, settled=1, acked=1)
    assert events(queue, sequence) == ["leased", "lease_expired", "leased", "acked"]


@pytest.mark.usefixtures("short_leases")
def test_a_thread_that_outlasts_max_lease_duration_gets_no_messages_until_it_returns(
    queue: Queue, clock: ManualClock
) -> None:
    hung, go_on, seen = Event(), Event(), list[bytes]()

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.value)
        if message.value == b"hung":
            clock.advance("500ms")  # others wait for the clock skew
            hung.set()
            assert go_on.wait(60)

    with working(queue, handle, max_lease_duration=MICROSECOND, poll_interval="10ms") as running:
        queue.publish("quick")
        until(lambda: counts(queue) == {"acked": 1})
        queue.publish(["hung", "b", "c", "d"])
        try:
            assert hung.wait(60)
            expected = {"acked": 1, "leased": 1, "ready": 3}
            until(lambda: clock.advance(MICROSECOND) or counts(queue) == expected)
            taken = lease(again(queue))
            assert [m.delivery_count for m in taken.messages] == [1, 1, 1], "uncounted"
            taken.ack()
            clock.advance("2s")
            taken = lease(again(queue))
            assert [m.delivery_count for m in taken.messages] == [2]
            taken.ack()
        finally:
            go_on.set()
        queue.publish("later")
        until(lambda: counts(queue) == {"acked": 6})
    assert seen == [b"quick", b"hung", b"later"]
    summary = running.result()
    assert (summary.leases, summary.acked, summary.released) == (3, 2, 3)


@pytest.mark.usefixtures("short_leases")
def test_a_thread_that_returns_while_its_lease_ends_takes_messages_again(
    queue: Queue, clock: ManualClock
) -> None:
    """The thread looked at its lease just before the end, so only the lock is in between."""
    go_on, returned, seen = Event(), Event(), list[bytes]()

    class GivenUp(set[Any]):
        def discard(self, task: Any) -> None:
            super().discard(task)
            returned.set()

    def return_first(given: Any) -> None:
        given.self._given_up = GivenUp()
        go_on.set()
        returned.wait(0.3)

    def seems_held(ended: bool, _: Any) -> bool:
        in_handler = threading.current_thread().name.startswith("spark_mq handler")
        return ended and not in_handler

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.value)
        if message.value == b"slow":
            clock.advance("500ms")
            while not go_on.wait(0.01):
                clock.advance(MICROSECOND)

    queue.publish("slow")
    with (
        rule_variant("Pool.give_up", first(return_first)),
        rule_variant("WorkerLease.has_ended", then(seems_held)),
        working(queue, handle, max_lease_duration=MICROSECOND, poll_interval="10ms"),
    ):
        assert go_on.wait(60)
        clock.advance("2s")
        queue.publish("next")
        until(lambda: b"next" in seen)


def test_each_lease_is_extended_by_its_own_timeout_until_its_last_message_is_done(
    queue: Queue, clock: ManualClock
) -> None:
    """What is slow delays neither settles nor leases."""
    go_on, leases = Event(), list[Any]()

    def handle(message: ReceivedMessage) -> None:
        assert message.text == "quick" or go_on.wait(60)

    def left() -> set[timedelta]:
        return {lease.expires_at - clock() for lease in leases}

    group = queue.group().ensure()
    noting = rule_variant("HeldLeases.add", first(lambda a: leases.append(a.lease)))
    with noting, working(queue, handle, threads=3, poll_interval="10ms"):
        try:
            for number, timeout in enumerate(("1s", "3s"), 1):
                group.configure(visibility_timeout=timeout)
                queue.publish(["quick", "slow"])
                until(lambda number=number: group.stats().acked == number)
            clock.advance("10ms")
            until(lambda: left() == {timedelta(seconds=1), timedelta(seconds=3)})
        finally:
            go_on.set()


@pytest.mark.parametrize("is_over", [False, True], ids=["during", "after"])
def test_max_lease_duration_ends_no_handler_during_an_outage(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """A settle of the same lease fails, so its deadline may pass. Later ones end it again."""
    queue.publish(["quick", "slow"])
    failed, passed, settled, restored = Event(), Event(), Event(), Event()
    group, seen, limit = again(queue).group(), list[int](), timedelta(seconds=1)
    limits = list[int | None]()

    def settle_or_look(run: Callable[[], Any], commands: Sequence[Any]) -> Any:
        settles = isinstance(commands[0], Settle)
        if settles and not (failed.is_set() if is_over else passed.is_set()):
            failed.set()
            raise errors.ContentionTimeout("lost", group="default", attempts=9)
        if settled.is_set() and not settles:
            restored.set()  # a feed leases more once it has done all that follows a settle
        outcomes = run()
        if settles:
            settled.set()
        return outcomes

    on_commands(monkeypatch, settle_or_look)

    def handle(message: ReceivedMessage) -> None:
        if message.value == b"slow":
            seen.append(message.delivery_count)
            assert (restored if is_over else failed).wait(60)
            if not is_over:
                group.pause()  # so that nobody leases it again
                clock.advance("10ms")
                until(lambda: [held.until - clock() for held in group.leases()] == [limit])
            if message.delivery_count == 1:
                clock.advance("31m")
            passed.set()

    options: dict[str, Any] = {"settle_linger": 0, "max_lease_duration": limit}
    with rule_variant("KeepAlive.set_limit", first(lambda a: limits.append(a.limit))):
        assert drain(queue, handle, threads=2, **options).acked == 2
    assert seen == ([1, 2] if is_over else [1])
    assert limits[-2:] == [None, 1_000_000]


async def _ack(message: ReceivedMessage) -> None:
    pass


@pytest.mark.timeout(20)
@pytest.mark.parametrize("handler", [lambda _: None, _ack], ids=["threads", "coroutines"])
def test_an_error_around_a_handler_ends_the_work(
    queue: Queue, clock: ManualClock, handler: Handler
) -> None:
    def fail_beside_handlers() -> datetime:
        if threading.current_thread().name.startswith("spark_mq handler"):
            raise RuntimeError("no clock")
        return clock()

    queue.publish("a")
    broken = again(queue, fail_beside_handlers)
    with pytest.raises(RuntimeError, match="no clock"):
        drain(broken, handler, shutdown_timeout=0)


@pytest.mark.parametrize("reason", ["404", "s", "", "took 30s", ValueError("30s"), None])
def test_a_reject_takes_text_and_exceptions_as_reasons(reason: Any) -> None:
    assert Reject(reason).error is reason
