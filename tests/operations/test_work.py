"""The worker loop: policies, verdicts on single messages, keep-alive, and its end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import re
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from support import working as worker
from support.clocks import SECOND
from support.handles import lease, trim, until
from support.having import having
from support.queues import Make
from support.rule_variants import first, rule_variant, then
from support.tables import context_of, group_ledger_of, on_commands
from support.working import counts, events, fail, working

from spark_mq import Lease, Queue, Reject, Retry, SettleResult, Snooze, WorkSummary
from spark_mq.errors import DataLossError, GroupBlocked, InvalidHandlerResult, LeaseLost
from spark_mq.testing import ManualClock

MODES = pytest.mark.parametrize("mode", ["batch", "message"])


drain = partial(worker.drain, mode="batch")


@MODES
@pytest.mark.parametrize(("on_error", "left"), [("nack", "delayed"), ("reject", "dead")])
def test_the_policy_settles_what_a_handler_fails_with_its_error(
    queue: Queue, mode: str, on_error: str, left: str
) -> None:
    queue.publish("a")

    def fail_at_length(_: object) -> None:
        raise ValueError("boom " + "x" * 5_000)

    with rule_variant("outage_pause", lambda _: fail):  # its error is none of a store
        summary = drain(queue, fail_at_length, mode=mode, on_error=on_error)
    settled = int(on_error == "reject")
    assert summary == WorkSummary(leases=1, failed=1, settled=settled, **{f"{on_error}ed": 1})
    assert counts(queue) == {left: 1}
    (error,) = [r.error for r in group_ledger_of(queue.group()).current()]
    assert error.startswith("ValueError: boom")
    assert len(error) == 2_000


def test_the_log_tells_what_failed_and_what_has_become_of_it(
    make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_mq")
    queue = make(max_delivery_attempts=2, retry_delay="10s", retry_jitter=0)
    due = f"{clock() + timedelta(seconds=10):%Y-%m-%d %H:%M:%S}Z"

    def logged(values: list[str], **options: Any) -> str:
        caplog.clear()
        queue.publish(values)
        drain(queue, fail, **options)
        return caplog.text

    text = logged(["a", "b"], max_messages=2)
    assert "failed with 2 unsettled messages (delivery 1 of 2)" in text
    assert f"2 messages nacked: 2 due again from {due}" in text
    clock.advance("10s")
    text = logged([])
    for part in ("isolating 1 suspect", "(delivery 2 of 2)", "1 message nacked: 1 dead"):
        assert part in text
    assert "1 message rejected: 1 dead" in logged(["c"], on_error="reject")
    assert re.search(r"message \d+ \(delivery 1 of 2\)", logged(["c"], mode="message"))
    assert "1 message nacked: 1 due again" in logged(["d"], ack="manual")


@MODES
def test_with_raise_the_loop_ends_with_the_error_and_the_lease_is_left(
    queue: Queue, mode: str
) -> None:
    queue.publish(["a", "b"])

    with pytest.raises(ValueError, match="boom"):
        drain(queue, fail, mode=mode, on_error="raise")
    assert counts(queue) == {"leased": 1, "ready": 1}


OWN_SETTLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ack": ({}, "acked", ""),
    "nack": ({"delay": "1h"}, "nacked", "nacked 2"),
    "reject": ({"error": "no"}, "rejected", "rejected 2 (no x2), dead 2"),
    "release": ({"delay": "1h"}, "released", ""),
}


@pytest.mark.parametrize("verb", OWN_SETTLES)
@pytest.mark.parametrize("by_group", [False, True], ids=["lease", "group"])
def test_the_summary_and_the_log_count_what_the_handler_settles_itself(
    queue: Queue, caplog: pytest.LogCaptureFixture, verb: str, by_group: bool
) -> None:
    options, counted, logged = OWN_SETTLES[verb]
    group, named = queue.group(), queue.publish([str(n) for n in range(4)]).sequences[:2]

    def handle(taken: Lease) -> None:
        settle = getattr(group if by_group else taken, verb)
        for _ in range(2):
            with contextlib.suppress(LeaseLost):  # the second time
                settle({taken: named} if by_group else named, **options)

    with caplog.at_level(logging.INFO, "spark_mq.verdicts"):
        summary = drain(queue, handle, max_messages=4)
    expected = {"acked": 2, "nacked": 0, "rejected": 0, "released": 0}
    expected[counted] += 2
    assert summary == having(**expected, settled=expected["acked"] + expected["rejected"])
    assert logged in caplog.text


@MODES
@pytest.mark.parametrize("lost", [[0], [1], [0, 2], [0, 1, 2]])
def test_acked_first_a_handler_gets_what_its_lease_still_has(
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    lost: list[int],
) -> None:
    """What another worker may have is not delivered twice, and the rest not lost."""
    group, sequences = queue.group().ensure(), queue.publish(["a", "b", "c"]).sequences
    calls, leases = list[list[str]](), list[Any]()

    def release(run: Callable[[], list[Any]], _: Any) -> list[Any]:
        for taken in [] if leases else group.leases():
            leases.append(taken)
            group.release(taken.lease_id, [sequences[at] for at in lost])
        return run()

    def handle(taken: Any) -> None:
        calls.append([message.text for message in getattr(taken, "messages", [taken])])

    on_commands(monkeypatch, release)
    limit = {"max_messages": 3} if mode == "batch" else {}
    summary = drain(queue, handle, mode=mode, ack="on_receive", threads=3, **limit)
    assert sorted(itertools.chain(*calls)) == ["a", "b", "c"]
    assert all(calls), "no lease without messages"
    assert summary.acked == 3
    assert counts(queue) == {"acked": 3}
    assert "some leases lost messages, which are redelivered" in caplog.text


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist], ids=["list", "table"])
@pytest.mark.parametrize(
    ("ack", "others"), [("on_success", {"acked": 3}), ("manual", {"acked": 1, "leased": 2})]
)
def test_a_handler_says_what_becomes_of_single_messages(
    queue: Queue, form: Callable[[list[Any]], Any], ack: str, others: dict[str, int]
) -> None:
    s = queue.publish([str(n) for n in range(6)]).sequences
    rows = [
        {"sequence": s[0], "outcome": "reject", "delay": None, "error": "never"},
        {"sequence": s[1], "outcome": "nack", "delay": "0s", "error": None},
        {"sequence": s[2], "outcome": None, "delay": "5m", "error": "later"},
        {"sequence": s[3], "outcome": "ack", "delay": None, "error": None},
    ]
    stop = threading.Event()

    def handle(_: Lease) -> Any:
        stop.set()
        return form(rows)

    drain(queue, handle, ack=ack, max_messages=6, stop=stop)
    assert counts(queue) == {"dead": 1, "ready": 1, "delayed": 1, **others}
    ranges, now = group_ledger_of(queue.group()).current(), context_of(queue).now()
    assert {(r.state, r.error, r.available_at and r.available_at - now) for r in ranges} >= {
        ("dead", "never", None), ("available", None, 0), ("available", "later", 300 * SECOND),
    }  # fmt: skip


@pytest.mark.parametrize("in_a_list", [False, True])
@pytest.mark.parametrize(
    ("verb", "left"), [("ack", "acked"), ("nack", "delayed"), ("reject", "dead")]
)
def test_a_handler_may_return_what_its_own_settles_return(
    queue: Queue, verb: str, left: str, in_a_list: bool
) -> None:
    queue.publish(["a", "b"])

    def handle(taken: Lease) -> Any:
        result = getattr(taken, verb)()
        return [result] if in_a_list else result

    assert drain(queue, handle, max_messages=2).failed == 0
    assert counts(queue) == {left: 2}


def _reject(_: object) -> None:
    raise Reject("no customer")


async def _nothing() -> None:
    pass


WRONG: dict[str, list[Any]] = {
    "batch": [
        "text",
        lambda s: [SettleResult(1), {"sequence": s}],
        [1],
        [{"outcome": "ack"}],
        [{"sequence": 1, "outcom": "ack"}],
        [{"sequence": "1"}],
        [{"sequence": 1 << 40}],
        lambda s: [{"sequence": s, "outcome": "later"}],
        lambda s: [{"sequence": s, "delay": "soon"}],
        lambda s: [{"sequence": s, "outcome": "reject"}, {"sequence": s, "outcome": "ack"}],
    ],
    "message": [
        lambda _: _nothing(),  # a coroutine that nobody runs
        {"sequence": 1, "outcome": "nack"},
        (n for n in "a"),
        "nack",
    ],
    "batch, as it is for one message": [_reject, lambda _: Snooze("1m"), lambda _: Retry],
}


@pytest.mark.parametrize(("what", "wrong"), [(what, w) for what in WRONG for w in WRONG[what]])
def test_a_wrong_result_ends_the_loop_and_settles_nothing(
    queue: Queue, what: str, wrong: Any
) -> None:
    (sequence,) = queue.publish("a").sequences
    mode, _, is_decision = what.partition(",")
    match = "use mode='message'" if is_decision else None
    with pytest.raises(InvalidHandlerResult, match=match):
        drain(queue, lambda _: wrong(sequence) if callable(wrong) else wrong, mode=mode)
    assert counts(queue) == {"leased": 1}


def test_a_worker_forgets_the_leases_that_it_has_settled(queue: Queue, clock: ManualClock) -> None:
    """So that it doesn't grow, although it runs for months. Nor do threads stay."""
    before = set(threading.enumerate())
    queue.publish([str(number) for number in range(20)])
    leases = list[weakref.ref[Lease]]()
    alive, extended, tries = list[bool](), set[str](), list[bool]()

    def handle(lease: Lease) -> None:
        leases.append(weakref.ref(lease))
        extended.add(lease.lease_id)
        assert lease.expires_at - clock() == timedelta(seconds=10)
        assert all(thread.daemon for thread in set(threading.enumerate()) - before)
        if len(leases) == 20:
            gc.collect()
            alive.extend(ref() is not None for ref in leases)

    noting = rule_variant("Demand.note_try", first(lambda a: tries.append(a.leased)))
    with noting, rule_variant("KeepAlive.remove", first(lambda a: extended.discard(a.lease_id))):
        drain(queue, handle, max_messages=1, poll_interval="1h", max_lease_duration="10s")
    assert 1 <= sum(alive) <= 5
    assert not extended
    assert tries.count(True) == 20
    until(lambda: before.issuperset(threading.enumerate()))


LATE = {
    "a batch returns": ("batch", "on_success", None),
    "a batch fails": ("batch", "on_success", ValueError("late")),
    "a batch acks": ("batch", "manual", lambda taken: taken.ack()),
    "a batch acks a message": ("batch", "manual", lambda taken: taken.ack(taken.messages)),
    **{
        f"a message gets {verdict}": ("message", "on_success", verdict)
        for verdict in (None, Retry(0), Reject("late"), Snooze(0), ValueError("late"))
    },
}


@pytest.mark.parametrize("what", LATE)
def test_a_verdict_after_max_lease_duration_is_refused(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    mode, ack, verdict = LATE[what]
    (sequence,) = queue.publish("slow").sequences
    seen: list[int] = []

    def handle(given: Any) -> Any:
        seen.append((given.messages[0] if mode == "batch" else given).delivery_count)
        if len(seen) > 1:
            return given.ack() if mode == "batch" else None
        clock.advance("31m")
        if isinstance(verdict, ValueError):
            raise verdict
        if not callable(verdict):
            return verdict
        with pytest.raises(LeaseLost, match="max_lease_duration"):
            verdict(given)

    summary = drain(queue, handle, mode=mode, ack=ack)
    assert seen == [1, 2]
    assert summary == WorkSummary(leases=2, failed=0, settled=1, acked=1)
    assert events(queue, sequence) == ["leased", "lease_expired", "leased", "acked"]
    assert caplog.text.count("max_lease_duration during 1 handler. The verdicts are refused") == 1


def test_after_max_lease_duration_a_settle_of_several_leases_settles_the_others(
    queue: Queue, clock: ManualClock
) -> None:
    """Also one that its own extension lets outlast that."""
    queue.publish(["a", "b", "c", "d"])
    kept, other, extended = lease(queue, 2), lease(queue, 1), lease(queue, 1)
    acked, left = (message.sequence for message in kept.messages)
    kept.ack([acked])
    with kept.keep_alive(max_lease_duration="30m"), extended.keep_alive("30m"):
        clock.advance("29m")
        extended.extend("10m")
        clock.advance("10m")
        with pytest.raises(LeaseLost, match="max_lease_duration") as lost:
            queue.group().ack([kept, other, extended])
    assert lost.value.lease_id == kept.lease_id
    assert [(first, last) for first, last, _ in lost.value.lost] == [(left, left)]
    assert lost.value.result == SettleResult(2)
    assert counts(queue) == {"acked": 3, "ready": 1}


def test_a_store_that_fails_for_a_moment_does_not_end_the_loop(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a"])
    failures, pauses = [OSError("reset")] * 2, list[float]()

    def take(run: Callable[[], Any], commands: Any) -> Any:
        if failures and not commands[0].lease_ids:
            raise failures.pop()
        return run()

    on_commands(monkeypatch, take)
    with rule_variant("outage_pause", then(lambda pause, _: pauses.append(pause) or 0.0)):
        assert drain(queue, lambda _: failures.append(OSError("again"))).settled == 1
    assert pauses == [0.05, 0.1, 0.05]


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


def test_lost_data_ends_the_loop(
    make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make(hard_retention="1h")
    queue.group().ensure()
    queue.publish(["a"])
    clock.advance("2h")
    trim(queue)
    with pytest.raises(DataLossError):
        drain(queue, lambda _: None)
    drain(queue, lambda _: None, fail_on_data_loss=False)
    assert queue.group().stats().lost == 1
    assert "group default: lost 1 message up to" in caplog.text
