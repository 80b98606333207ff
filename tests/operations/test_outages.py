"""No outage of the store costs a message a delivery, however long it lasts.

A damaged file still makes its messages dead.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import working as worker
from support.byte_store import READS, VERBS, WRITES, ByteStore, Call, Outage
from support.drivers import Checkpoint, MultiRunner, Runner, rows
from support.handles import again, lease, leased, route, until
from support.limits import Limits
from support.marks import slow
from support.queues import Make
from support.rule_variants import first, rule_variant, then
from support.tables import as_in_a_store, group_ledger_of, ledgers_of, messages_of, on_commands

from spark_mq import Lease, Message, Queue, errors
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.commands import Command
from spark_mq.ledger.owner_commands import Expire
from spark_mq.ledger.settle import Settle
from spark_mq.testing import ManualClock, memory_queue

OF_EITHER_HANDLE = pytest.mark.parametrize(
    "handle", [again, lambda queue: queue], ids=["a new one", "the same"]
)
TRIES = 60  # in an outage of a month, one each half a day


@pytest.fixture
def outage(byte_store: ByteStore) -> Outage:
    return Outage(byte_store)


def counts(queue: Queue, group: str = "default") -> set[tuple[str, int, int]]:
    """State, deliveries and failures of what is in the ledger."""
    ledger = group_ledger_of(queue.group(group)).current()
    return {(r.state, r.delivery_count, r.failure_count) for r in ledger}


def paths(queue: Queue) -> list[str]:
    return [file.path for file in messages_of(queue).index().files]


class Seen(list[tuple[bytes, int]]):
    """A handler, and the values that it got, each with its delivery count."""

    def __call__(self, taken: Lease) -> None:
        self.extend((m.value, m.delivery_count) for m in taken.messages)


def drained(queue: Queue) -> list[tuple[bytes, int]]:
    """All that is left, with its delivery count."""
    left = Seen()
    while (taken := queue.group().lease("last", max_messages=100)) is not None:
        left(taken)
        taken.ack()
    return sorted(left)


@pytest.mark.parametrize("wrong", [pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowMemoryError])
@pytest.mark.parametrize(
    ("command", "call"),
    [
        (Acquire, lambda queue: queue.group().lease("w", wait="1h")),
        (Acquire, lambda queue: queue.group().work(lambda _: None, mode="batch", until="empty")),
        (Settle, lambda queue: queue.group().work(lambda _: None, mode="batch", until="empty")),
        (Expire, lambda queue: queue.sweep()),
    ],
    ids=["lease", "worker that leases", "worker that settles", "sweep"],
)
def test_a_bug_in_a_rule_is_no_outage(
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    command: type[Command[Any]],
    call: Callable[[Queue], object],
    wrong: type[Exception],
) -> None:
    """It is raised at once as what it is, because no retry mends it."""
    queue.publish("a")
    queue.group().ensure()

    def apply(*_: object) -> None:
        raise wrong("a bug")

    monkeypatch.setattr(command, "apply", apply)
    with pytest.raises(wrong, match="a bug"):
        call(queue)


# -- leases


@OF_EITHER_HANDLE
def test_an_outage_counts_only_the_lease_of_a_dead_worker_and_once(
    make: Make, clock: ManualClock, outage: Outage, handle: Callable[[Queue], Queue]
) -> None:
    queue = make(max_delivery_attempts=3)
    leased(queue, "a", "b", count=1)  # its worker dies without a word
    outage.error = TimeoutError  # those of the other tests are PermissionErrors
    with outage():
        for _ in range(TRIES):
            clock.advance("12h")
            with pytest.raises(errors.StorageError, match="out of reach"):
                lease(handle(queue), 10).table()
            queue.group().expire()
    assert drained(queue) == [(b"a", 2), (b"b", 1)]


def test_a_waiting_call_waits_for_the_end_of_the_outage(queue: Queue, outage: Outage) -> None:
    queue.publish("a")
    with outage(), ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.group().lease, "w", wait=60)
        until(lambda: outage.failed > 2)
        outage.on = False
        assert waiting.result(60).messages[0].delivery_count == 1


def test_one_file_out_of_reach_does_not_hold_up_the_others(
    queue: Queue, clock: ManualClock, outage: Outage
) -> None:
    for value in ("bad", "one", "two"):
        queue.publish(value)
    with outage(paths(queue)[0]):
        for _ in range(TRIES):
            clock.advance("12h")
            taken = lease(queue, 10)
            assert [m.value for m in taken.messages] == [b"one", b"two"]
            taken.release()
        lease(queue, 10).ack()
        clock.advance("1h")
        outage.failed = 0
        with pytest.raises(errors.StorageError):
            queue.group().lease("w", wait="200ms")
        assert 2 < outage.failed <= 2 * 4, "at once, and after 50, 150 and 200 ms"
    clock.advance("1h")
    assert drained(queue) == [(b"bad", 1)]


def test_a_group_with_a_filter_skips_nothing_that_is_out_of_reach(
    queue: Queue, clock: ManualClock, outage: Outage
) -> None:
    group = queue.group()
    group.configure(filter="key_prefix=eu")
    for key in ("us", "eu", "us"):
        queue.publish([Message(key, key=key)])
    first, *_ = paths(queue)
    with outage(first):
        assert [m.value for m in lease(queue, 1).messages] == [b"eu"]
        assert group.stats().skipped == 0
    with outage():
        clock.advance("1h")
        with pytest.raises(errors.StorageError, match="out of reach"):
            again(queue).group().lease("w", max_messages=10)
        assert group.stats().skipped == 0
    clock.advance("1h")
    assert drained(queue) == [(b"eu", 2)]
    assert group.stats().skipped == 2


def test_a_lease_whose_messages_cannot_be_read_any_more_is_released_uncounted(
    queue: Queue, clock: ManualClock, outage: Outage
) -> None:
    """The footers are known to be good, so nobody looks at the files before the lease."""
    leased(queue, *(str(n) for n in range(3)), count=1).ack()
    taken = lease(queue, 2)
    with outage():
        with pytest.raises(errors.StorageError, match=r"out of reach.*lease again"):
            taken.messages  # noqa: B018
        with pytest.raises(errors.StorageError, match="lease again"):
            taken.table()
        for settle in (taken.nack, taken.ack, taken.reject):
            assert settle().settled == 0
        assert counts(queue) == {("available", 0, 0)}
        with pytest.raises(errors.StorageError):
            queue.group().lease("w", max_messages=2)
    with pytest.raises(errors.StorageError, match="lease again"):
        taken.messages  # noqa: B018
    assert drained(queue) == [(b"1", 1), (b"2", 1)]


def test_a_lease_that_delivered_or_was_acked_first_keeps_its_messages(
    queue: Queue, outage: Outage
) -> None:
    taken = leased(queue, "a", "b", count=1)
    assert len(taken.messages) == 1
    with outage():
        with pytest.raises(errors.StorageError):
            taken.table()
        assert counts(queue) == {("leased", 1, 0)}
        assert taken.ack().settled == 1
    taken = queue.group().lease("w", auto_ack=True)
    with outage(), pytest.raises(errors.StorageError):
        taken.table()
    assert [m.value for m in taken.messages] == [b"b"]


def test_an_error_of_the_store_is_not_taken_for_damage(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file whose reading failed, and whose bytes are sound, is not damaged."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    real = pq.ParquetFile.__init__

    def failing(self: Any, source: Any, *args: Any, **options: Any) -> None:
        if not str(type(source)).endswith("BufferReader'>") or source.size() == 0:
            raise OSError(5, "Input/output error")
        real(self, source, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "__init__", failing)
        with pytest.raises(errors.StorageError, match="sound"):
            queue.group().lease("w")
    assert drained(queue) == [(b"a", 1), (b"b", 1)]
    assert "cannot be read" not in caplog.text


def test_a_ledger_out_of_reach_is_not_taken_for_damage(
    delta_queue: Make, byte_store: ByteStore, limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only the file has
    queue = delta_queue()
    held = leased(queue, "a", "b", count=1)

    def read(call: Call) -> Any:
        if call.path.endswith(".parquet"):
            raise PermissionError(13, "Permission denied", call.path)
        return call.run()

    byte_store.on("read", act=read, of="leases")
    with pytest.raises(errors.StorageError, match="readable and writable"):
        again(queue).group().lease("w")
    byte_store.clear()
    held.ack()
    assert drained(again(queue)) == [(b"b", 1)]


# -- ledgers and logs


OTHER_OUTAGES = [
    pytest.param((part, verbs), id=f"{name} of {part}")
    for part in ("leases", "logs", "everything")
    for name, verbs in (("reads", READS), ("writes", WRITES), ("reads and writes", VERBS))
]
PAYLOADS = pytest.param(("payloads", READS), id="reads of payloads")


@pytest.mark.parametrize("where", OTHER_OUTAGES)
@OF_EITHER_HANDLE
def test_an_outage_of_ledgers_and_logs_counts_nothing(
    delta_queue: Make, clock: ManualClock, outage: Outage, where: Any, handle: Any
) -> None:
    queue = delta_queue(visibility_timeout="60d", max_delivery_attempts=2)
    held = leased(queue, "a", "b", "c", count=1)
    with outage.of(*where):
        for _ in range(20):
            clock.advance("1d")
            with pytest.raises(errors.StorageError, match="out of reach"):
                handle(queue).group().lease("w", max_messages=10)
            for settle in (held.ack, held.nack, held.release, held.extend):
                with pytest.raises(errors.StorageError, match="out of reach"):
                    settle()
            with suppress(errors.StorageError):  # what it finds to write, it cannot
                handle(queue).sweep()
    assert outage.failed >= 4 * 20
    assert held.release().settled == 1
    assert drained(queue) == [(b"a", 1), (b"b", 1), (b"c", 1)]


@pytest.mark.parametrize("part", ["leases", slow("logs"), slow("everything")])
def test_an_outage_that_begins_at_any_call_counts_one_delivery_at_most(
    delta_queue: Make, clock: ManualClock, outage: Outage, part: str
) -> None:
    """Also of the lease that landed while nobody could read that it did."""
    queue = delta_queue(max_delivery_attempts=2)
    queue.publish(["a", "b"])
    for after in range(100):
        group, before = queue.group(f"g{after}"), outage.failed
        with outage.of(part, after=after):
            with suppress(errors.StorageError):
                taken = group.lease("w", max_messages=1)
                assert len(taken.messages) == 1
                taken.ack()
            ended = outage.failed == before
            for _ in range(0 if ended else 5):
                clock.advance("12h")
                with suppress(errors.StorageError):
                    again(queue).group(group.name).lease("w", max_messages=10)
        clock.advance("12h")
        while (left := group.lease("w", max_messages=10)) is not None:
            assert {m.delivery_count for m in left.messages} <= {1, 2}
            left.ack()
        assert (group.stats().acked, group.stats().dead) == (2, 0), f"after {after} calls"
        if ended:
            break
    assert ended, "the last one never began"
    assert after > 5


# -- the worker loop


def working(queue: Queue, handler: Callable[[Lease], Any], **options: Any) -> Any:
    """A worker in a thread, which waits out an outage."""
    return worker.working(queue.group(), handler, poll_interval="1ms", **options)


@pytest.mark.parametrize("on_error", ["reject", "raise"])
@pytest.mark.parametrize("where", [*OTHER_OUTAGES, PAYLOADS])
def test_workers_wait_out_any_outage(
    delta_queue: Make,
    clock: ManualClock,
    outage: Outage,
    limits: Limits,
    *,
    where: Any,
    on_error: str,
) -> None:
    """The first one meets a worker that leases, the second one a handler that runs, or reads."""
    limits(outage_pause=0.0)
    queue = delta_queue(visibility_timeout="30d", max_delivery_attempts=2)
    queue.publish([str(n) for n in range(8)])
    seen = Seen()

    def handle(taken: Lease) -> None:
        try:
            seen(taken)
        except OSError:
            raise RuntimeError("no luck") from None
        if len(seen) == 2:
            outage.begin(*where)

    outage.begin(*where)
    options = {"on_error": on_error, "max_lease_duration": "30d"}
    with working(queue, handle, max_messages=2, **options):
        for handled in (0, 2):
            until(lambda: clock.advance("10s") or outage.on)
            for _ in range(12):
                until(lambda: outage.failed)
                clock.advance("1d")
                outage.failed = 0
            assert len(seen) == handled
            outage.on = False
        until(lambda: clock.advance("10s") or len(seen) == 8)
    assert sorted(seen) == [(str(n).encode(), 1) for n in range(8)]
    assert queue.group().stats().acked == 8


LEDGER_WRITES = ("leases", WRITES)
REFUSALS = {
    "no right": (PermissionError(errno.EACCES, "Permission denied"), "readable and writable"),
    "a read-only disk": (OSError(errno.EROFS, "Read-only file system"), "readable and writable"),
    "no folder": (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "Correct the path"),
    "access denied": (OSError(errno.EIO, "Generic S3 error: 403 AccessDenied"), "readable and wri"),
    "no bucket": (OSError(errno.EIO, "NoSuchBucket: 404"), "create the bucket"),
    "wrong region": (OSError(errno.EIO, "PermanentRedirect: 301"), "in another region"),
}


@pytest.mark.parametrize(
    ("why", "where", "how", "mode"),
    [
        *((why, LEDGER_WRITES, None, "batch") for why in REFUSALS),
        ("no right", LEDGER_WRITES, "empty", "batch"),
        ("no right", LEDGER_WRITES, "settled", "message"),
        ("no right", ("payloads", READS), None, "batch"),
    ],
)
def test_a_worker_that_its_store_refuses_from_the_start_ends_with_the_path_and_the_fix(
    delta_queue: Make, outage: Outage, *, why: str, where: Any, how: Any, mode: Any
) -> None:
    queue, (error, fix) = delta_queue(), REFUSALS[why]
    queue.publish("a")
    queue.group().ensure()
    group = again(queue).group()
    outage.error = lambda *_: error  # type: ignore[assignment]
    with outage.of(*where), pytest.raises(errors.StorageError, match=fix) as raised:
        group.work(lambda _: None, until=how, mode=mode)
    assert raised.value.lasting
    assert queue.path in str(raised.value)
    assert drained(queue) == [(b"a", 1)]


@pytest.mark.parametrize(
    ("verbs", "error"),
    [
        pytest.param(WRITES, lambda *_: TimeoutError(errno.ETIMEDOUT, "late"), id="it is late"),
        pytest.param(WRITES, lambda *_: OSError(errno.ENOSPC, "No space left"), id="it is full"),
        pytest.param(WRITES, lambda *_: errors.ContentionTimeout("no"), id="others were first"),
        pytest.param(VERBS, PermissionError, id="nothing can be read either"),
    ],
)
def test_a_worker_that_has_not_worked_yet_waits_out_an_outage(
    delta_queue: Make, clock: ManualClock, outage: Outage, limits: Limits, *, verbs: Any, error: Any
) -> None:
    limits(outage_pause=0.0)
    queue = delta_queue(visibility_timeout="30d")
    queue.publish("a")
    queue.group().ensure()
    opened, seen, outage.error = again(queue), Seen(), error
    outage.begin("leases", verbs)
    with working(opened, seen):
        until(lambda: outage.failed > 4)
        outage.on = False
        until(lambda: clock.advance("10s") or seen)
    assert drained(queue) == []


def test_a_store_that_recovers_while_a_worker_asks_for_the_cause_has_refused_nothing(
    delta_queue: Make, outage: Outage
) -> None:
    queue, seen = delta_queue(), Seen()
    queue.publish("a")
    queue.group().ensure()

    def fail_once(*_: Any) -> OSError:
        outage.on = False
        return PermissionError(errno.EACCES, "Permission denied")

    opened, outage.error = again(queue), fail_once  # type: ignore[assignment]
    outage.begin("leases", VERBS)
    with working(opened, seen):
        until(lambda: seen)
    assert outage.failed == 1
    assert drained(queue) == []


@pytest.mark.parametrize("who", ["it has worked", "it was idle for long", "it made the queue"])
def test_a_worker_whose_rights_were_seen_waits_for_them(
    delta_queue: Make, outage: Outage, limits: Limits, *, who: str
) -> None:
    limits(outage_pause=0.0, refused_start_seconds=-1.0 if "idle" in who else 60.0)
    queue, seen, worked = delta_queue(visibility_timeout="30d"), Seen(), who == "it has worked"
    again(queue).group().ensure()
    queue.publish(["a"] * worked)
    outage.error = lambda *_: REFUSALS["no right"][0]  # type: ignore[assignment]
    with working(queue if "made" in who else again(queue), seen):
        until(lambda: queue.group().stats().acked == worked)
        outage.begin("leases", WRITES)
        queue.publish("b")
        until(lambda: outage.failed > 4)
        assert len(seen) == worked
        outage.on = False
        until(lambda: len(seen) == worked + 1)


def test_a_worker_that_was_idle_for_long_does_not_wait_for_ever(
    delta_queue: Make, outage: Outage, limits: Limits
) -> None:
    limits(outage_pause=0.0, refused_start_seconds=-1.0, refused_seconds=0.0)
    queue = delta_queue()
    queue.publish("a")
    outage.error = lambda *_: REFUSALS["no right"][0]  # type: ignore[assignment]
    with outage.of("leases", WRITES), pytest.raises(errors.StorageError, match="Permission"):
        Queue.create(queue.path, exist_ok=True).group().work(lambda _: None, mode="batch")
    assert drained(queue) == [(b"a", 1)]


def before_checks(act: Callable[[], object]) -> AbstractContextManager[None]:
    """Let something happen before each check whether a payload file can be read."""
    return rule_variant("FileCheck.run", first(lambda _: act()))


def raise_error(how: str) -> None:
    """As a handler does that publishes to another queue, or reads a file of its own."""
    if how == "own":
        own = FileNotFoundError("what the message names")
        raise own from own  # a chain without an end
    error = errors.StorageError("publishing failed", path="/other", landed=False)
    if how == "plain":
        raise error
    try:
        raise error
    except errors.StorageError as cause:
        if how == "from":
            raise ValueError("no") from cause
        raise ValueError("no")  # noqa: B904


@pytest.mark.parametrize("mode", ["batch", "message"])
@pytest.mark.parametrize("how", ["plain", "from", "while handling", "own"])
@pytest.mark.parametrize("reachable", [True, False])
def test_an_error_of_any_store_counts_unless_the_queues_own_store_fails_too(
    make: Make, limits: Limits, *, how: str, mode: Any, reachable: bool
) -> None:
    limits(outage_pause=2e-4)
    queue = make(max_delivery_attempts=3, retry_delay=0)
    queue.publish("a")
    tries, looks, pauses, end = list[int](), list[int](), list[float](), threading.Event()

    def hang_after_a_try() -> None:
        if not reachable and len(looks) < len(tries):
            looks.append(1)
            end.wait(60)

    def handle(given: Any) -> None:
        tries.extend(m.delivery_count for m in getattr(given, "messages", [given]))
        if len(tries) < 10:
            raise_error(how)

    if not reachable:
        limits(reach_seconds=0.0)
        as_in_a_store(queue)
    pausing = rule_variant("WorkState.pause", then(lambda *_: pauses.append(time.monotonic())))
    with before_checks(hang_after_a_try), pausing:
        summary = queue.group().work(handle, mode=mode, until="empty")
    end.set()
    stats = queue.group().stats()
    counts = reachable or how == "own"
    assert tries == ([1, 2, 3] if counts else [1] * 10)
    # The failure may be the store's for a thread that does not look at it.
    suspected = how != "own" and (not counts or mode == "message")
    until(lambda: len(pauses) == suspected * min(9, len(tries)), pauses)
    assert counts or pauses[8] - pauses[7] > 2e-4 * 2**8
    assert (summary.failed, stats.dead, stats.acked) == ((3, 1, 0) if counts else (0, 0, 1))


@pytest.mark.parametrize("error", [errors.StorageError, errors.ContentionTimeout])
def test_a_settle_of_the_handler_that_fails_counts_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, limits: Limits, error: type[errors.SparkMQError]
) -> None:
    """The store works again before anybody looks. Rows in a sink count for the whole lease."""
    limits(outage_pause=0.0)
    queue = make(max_delivery_attempts=2)
    queue.publish("a")
    tries, handling, whole = list[int](), threading.Event(), list[bool]()

    def failing(run: Callable[[], Any], commands: Any) -> Any:
        if handling.is_set() and isinstance(commands[0], Settle) and len(tries) < 10:
            raise error("no", path="p", landed=False, group="default", attempts=9)
        whole.extend(part.whole for part in getattr(commands[0], "parts", ()))
        return run()

    on_commands(monkeypatch, failing)

    def handle(taken: Lease) -> None:
        tries.append(taken.messages[0].delivery_count)
        handling.set()
        try:
            taken.ack()
        finally:
            handling.clear()

    queue.group().work(handle, mode="batch", ack="manual", until="empty")
    assert (tries, whole[:9]) == ([1] * 10, [True] * 9)
    assert queue.group().stats().acked == 1


@pytest.mark.parametrize("ack", ["on_success", "on_receive"])
def test_a_worker_that_cannot_settle_ends_after_its_grace(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    queue.publish("a")
    stop, handled = threading.Event(), list[Lease]()

    def failing(run: Callable[[], Any], commands: Any) -> Any:
        if commands[0].lease_ids:
            stop.set()
            raise errors.StorageError("no", path="p", landed=False)
        return run()

    on_commands(monkeypatch, failing)
    before = time.monotonic()
    queue.group().work(handled.append, mode="batch", stop=stop, ack=ack, shutdown_timeout="200ms")
    assert time.monotonic() - before < 20
    assert len(handled) == (ack == "on_success")
    assert counts(queue) == {("leased", 1, 0)}


def test_a_worker_ends_although_nobody_can_count_what_is_left(queue: Queue) -> None:
    def out_of_reach(*_: object) -> None:
        raise errors.StorageError("no", path="p")

    queue.publish("a")
    with rule_variant("GroupLedger.stats", lambda _: out_of_reach):
        summary = queue.group().work(lambda _: None, mode="batch", until="empty")
    assert summary.acked == 1


# -- streams


def restarted(queue: Queue, checkpoint: Checkpoint) -> Any:
    """What a new runner plans after a crash: first what is logged, then what is new."""
    runner = Runner(queue, checkpoint, group="default")
    plan = runner.plan() if runner.replays else None
    if plan is None or not plan.slices:
        runner.commit()
        plan = runner.begun()
    return plan


@pytest.mark.parametrize("where", [*OTHER_OUTAGES, PAYLOADS])
def test_a_stream_restarted_in_an_outage_counts_nothing(
    delta_queue: Make, clock: ManualClock, outage: Outage, where: Any
) -> None:
    queue, checkpoint = delta_queue(visibility_timeout="60d", max_delivery_attempts=3), Checkpoint()
    queue.publish(["a", "b"])
    for count in (1, 2):  # a new batch, and its replay
        with outage.of(*where):
            for _ in range(TRIES):
                clock.advance("1h")
                with pytest.raises(errors.StorageError, match="out of reach"):
                    restarted(queue, checkpoint)
        plan = restarted(queue, checkpoint)
        assert [(r.message_count, r.delivery_count) for _, r in plan.slices] == [(2, count)]


def test_what_spark_has_committed_is_acked_in_an_outage(queue: Queue, outage: Outage) -> None:
    queue.publish("a")
    runner = Runner(queue, group="default")
    assert runner.batch().slices
    queue.publish("b")
    with outage(), pytest.raises(errors.StorageError):
        runner.begun()
    assert queue.group().stats().acked == 1
    assert drained(queue) == [(b"b", 1)]


def test_a_stream_of_two_queues_reads_the_one_in_reach(clock: ManualClock, outage: Outage) -> None:
    near, far = memory_queue(clock), memory_queue(clock)
    for queue in (near, far):
        queue.publish("a")
    runner = MultiRunner([near, far])
    with outage(*paths(far)):
        assert {path for path, _ in rows(runner.begun())} == {near.path}
    assert counts(far, "g") == set()
    with outage(*paths(near)):
        for _ in range(20):
            with pytest.raises(errors.StorageError):
                MultiRunner([near, far], runner.checkpoint).plan()
    assert counts(near, "g") == {("leased", 1, 0)}


# -- dead letters


def test_dead_letters_are_routed_and_redriven_only_once_they_can_be_read(
    queue: Queue, clock: ManualClock, outage: Outage
) -> None:
    leased(queue, "a", "b").reject(error="no")
    with outage():
        for _ in range(20):
            clock.advance("1h")
            with pytest.raises(OSError, match="out of reach"):
                route(queue.group())
    assert queue.dead_letters.stats()["published"] == 0
    assert queue.sweep().routed == 2
    with outage():
        for _ in range(20):
            with pytest.raises(OSError, match="out of reach"):
                queue.redrive()
    assert queue.redrive().messages == 2
    assert drained(queue) == [(b"a", 1), (b"b", 1)]


# -- damage


def damage(queue: Queue, *files: str) -> None:
    """Damage some payload files of a queue, or all."""
    for path in files or paths(queue):
        messages_of(queue).files.delete(path)
        messages_of(queue).files.write(path, b"garbage")


def test_a_lease_whose_messages_are_all_damaged_can_be_kept_alive(queue: Queue) -> None:
    found = leased(queue, "a")
    damage(queue, paths(queue)[0])
    assert found.table().num_rows == 0
    with found.keep_alive():
        assert found.messages == []
    assert queue.group().stats().dead == 1


def test_delayed_messages_of_a_damaged_file_wait(queue: Queue, clock: ManualClock) -> None:
    queue.publish([Message("late", deliver_at="1h"), "now"])
    damage(queue)
    for dead, delayed in ((1, 1), (2, 0)):
        assert queue.group().lease("w") is None
        stats = queue.group().stats()
        assert (stats.dead, stats.delayed) == (dead, delayed)
        clock.advance("2h")


def test_few_commits_bury_all_messages_of_many_damaged_files(queue: Queue) -> None:
    queue.publish([str(n) for n in range(300)])
    for n in range(39):
        queue.publish(str(n))
    queue.publish(Message("good", key="good"))
    damage(queue, *paths(queue)[:-1])
    queue.group().ensure()
    before = ledgers_of(queue).version()
    assert [m.value for m in lease(queue, 1).messages] == [b"good"]
    assert ledgers_of(queue).version() - before < 20
    assert queue.group().discard(key="good", force=True) == 1
    dead = [r for r in group_ledger_of(queue.group()).current() if r.state == "dead"]
    assert {(r.delivery_count, r.reason) for r in dead} == {(0, "payload unreadable")}
    assert all("not readable" in (r.error or "") for r in dead)
    assert queue.sweep().routed == 339


def test_a_stop_ends_the_search_through_damaged_files(queue: Queue, limits: Limits) -> None:
    limits(check_seconds=0.0)
    for n in range(30):
        queue.publish(str(n))
    damage(queue)
    stop, runs = threading.Event(), list[int]()

    def stop_third() -> None:
        runs.append(1)
        if len(runs) == 3:
            stop.set()

    with before_checks(stop_third):
        summary = queue.group().work(lambda _: None, mode="batch", stop=stop)
    assert summary.leases == 0
    assert len(runs) <= 4


def test_a_slow_check_does_not_hold_up_the_settles_of_others(delta_queue: Make) -> None:
    """Over a store, a file may take minutes to fail: an extension must not wait for that."""
    queue = as_in_a_store(delta_queue())
    held = leased(queue, "a")
    queue.publish("b")
    slow, checks = threading.Event(), list[threading.Thread]()

    def wait() -> None:
        checks.append(threading.current_thread())
        slow.wait(60)

    with before_checks(wait), ThreadPoolExecutor() as pool:
        taking = pool.submit(queue.group().lease, "w", wait=60)
        until(lambda: checks)
        assert held.extend().settled == 1
        assert held.ack().settled == 1
        slow.set()
        assert taking.result(60) is not None
    assert [check.daemon for check in checks] == [True]
