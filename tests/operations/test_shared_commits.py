"""Leases and settles of several threads share commits.

Each operation keeps its own result and error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import Injected
from support.handles import again, lease, leased, notes, once, until
from support.limits import Limits
from support.queues import Make
from support.rule_variants import first, instead, rule_variant, then
from support.steps import Step
from support.tables import (
    as_in_a_store,
    context_of,
    group_ledger_of,
    ledgers_of,
    messages_of,
    on_commands,
    on_write,
)

from spark_mq import Lease, Queue, SettleResult
from spark_mq.errors import CommitConflict, ContentionTimeout, CorruptLog, StorageError
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.commands import Change, View
from spark_mq.ledger.settle import ACK, RELEASE, Settle, SettlePart

pytestmark = pytest.mark.on_both_storages

Submit = Callable[..., Future[Any]]


def version(queue: Queue) -> int:
    return ledgers_of(queue).version()


def operations(queue: Queue, since: int) -> list[str | None]:
    """The operations of the commits after a version."""
    commits = ledgers_of(queue).commits(since + 1, version(queue))
    return [change.operation for commit in commits for change in commit.changes]


def stocked(queue: Queue, *values: str) -> int:
    """Publish messages to a group that is there. Return the version of the ledgers."""
    queue.publish(values)
    queue.group().ensure()
    return version(queue)


def ack(lease: Lease) -> Settle:
    return Settle((SettlePart(ACK, lease.lease_id),))


@contextmanager
def piled_up(queue: Queue) -> Iterator[Submit]:
    """What is submitted in the block waits in its order, and runs together at the block's end."""
    entered, opened = threading.Event(), threading.Event()
    group, calls = group_ledger_of(queue.group()), list[Future[Any]]()
    batcher = group.queue.committer.batcher
    real = batcher._run

    def run(units: Any) -> Any:
        if not entered.is_set():
            entered.set()
            assert opened.wait(30)
        return real(units)

    def submit(call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        calls.append(pool.submit(call, *args, **options))
        until(lambda: len(batcher.calls) == len(calls) + 1)
        return calls[-1]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(16) as pool:
        patch.setattr(batcher, "_run", run)
        first = pool.submit(group.run, Step(lambda view: Change(None, None)))
        assert entered.wait(30)
        try:
            yield submit
        finally:
            opened.set()
        first.exception(30)


def results_of(calls: list[Future[Any]]) -> list[Any]:
    return [call.result(30) for call in calls]


def values(lease: Lease) -> list[bytes]:
    return [message.value for message in lease.messages]


def test_leases_of_several_threads_become_one_commit(queue: Queue) -> None:
    before = stocked(queue, *"abcdefgh")
    with piled_up(queue) as submit:
        calls = [submit(queue.group().lease, f"w{n}") for n in range(8)]
    leases = results_of(calls)
    assert sorted(m.text for taken in leases for m in taken.messages) == list("abcdefgh")
    assert len({taken.lease_id for taken in leases}) == 8
    assert operations(queue, before) == ["lease"]
    assert [again(queue).group().ack(taken.lease_id) for taken in leases] == [SettleResult(1)] * 8


def test_a_broken_ledger_fails_only_its_own_group(delta_queue: Make, limits: Limits) -> None:
    limits(tag_bytes=0)
    queue = delta_queue()
    queue.publish("a")
    for name in ("default", "broken"):
        queue.group(name).ensure()
    (path,) = Path(queue.path, "leases").glob("consumer_group=broken/*.parquet")
    path.write_bytes(b"no ledger")
    fresh = again(queue)
    with piled_up(fresh) as submit:
        run, command = group_ledger_of(fresh.group("broken")).run, Acquire("w", 1)
        failed = [submit(run, command) for _ in range(2)]
        wanted = submit(fresh.group().lease, "w")
    assert len(wanted.result(30).messages) == 1
    first_error, second_error = (one.exception(30) for one in failed)
    assert type(first_error) is type(second_error) is CorruptLog
    assert first_error is not second_error, "threads add to the traceback of what they raise"


def test_changes_by_a_person_and_of_single_messages_are_commits_of_their_own(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces would show the person, and the reason, for what other threads did beside them."""
    first, second = queue.publish(["a", "b"]).sequences
    queue.group().ensure()
    before = version(queue)
    with piled_up(queue) as submit:
        asked = submit(queue.group().lease, "w")
        queue.group().configure(max_in_flight=9)
        monkeypatch.setattr("spark_mq.operations.committer.current_user", lambda: None)
        assert queue.group().discard([second], reason="a mistake") == 1
    assert [m.sequence for m in asked.result(30).messages] == [first]
    assert operations(queue, before) == ["configure", "discard", "lease"]
    assert [(event.event, event.user) for event in queue.trace(first).events] == [("leased", None)]


def test_settles_come_before_leases(make: Make) -> None:
    """The cap leaves room for a lease only after the settle, which came later."""
    queue = make(max_in_flight=1)
    held, before = leased(queue, "a", "b", count=1), version(queue)
    with piled_up(queue) as submit:
        wanted = submit(queue.group().lease, "w")
        acked = submit(held.ack)
    assert acked.result(30) == SettleResult(1)
    assert values(wanted.result(30)) == [b"b"]
    assert operations(queue, before) == ["ack+lease"]


def test_no_settle_expires_a_lease_that_its_commit_extends(make: Make, clock: Any) -> None:
    """Its messages have no attempt left: they would be dead."""
    queue = make(max_delivery_attempts=1)
    late, other = leased(queue, "a", "b", count=1), lease(queue, 1)
    clock.advance("1h")
    with piled_up(queue) as submit:
        calls = [submit(queue.group().lease, "w"), submit(other.ack), submit(late.extend)]
    assert results_of(calls) == [None, SettleResult(1), SettleResult(1)]
    stats = queue.group().stats()
    assert (stats.leased, stats.dead) == (1, 0)
    assert notes(queue)[-1]["messages"] == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_is_that_of_its_own_operation(queue: Queue, error: type[BaseException]) -> None:
    """An interrupt, too, although its thread is the one that commits."""
    held, before = leased(queue, "a", "b", count=1), version(queue)

    def fail(view: View) -> Change[None]:
        raise error

    with piled_up(queue) as submit:
        failed = submit(group_ledger_of(queue.group()).run, Step(fail))
        acked, wanted = submit(held.ack), submit(queue.group().lease, "w")
    assert isinstance(failed.exception(30), error)
    assert acked.result(30) == SettleResult(1)
    assert values(wanted.result(30)) == [b"b"]
    assert operations(queue, before) == ["ack+lease"]


def test_what_fails_for_several_calls_is_tried_for_each(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sizes = leased(queue, "a", "b", count=1), list[int]()
    batcher = context_of(queue).committer.batcher
    real = batcher._run

    def run(units: Any) -> Any:
        sizes.append(len(units))
        if len(units) > 1:
            raise ValueError("a bug")
        return real(units)

    monkeypatch.setattr(batcher, "_run", run)
    with piled_up(queue) as submit:
        calls = [submit(held.ack), submit(queue.group().lease, "w")]
    assert [one.exception(30) for one in calls] == [None, None]
    assert sizes == [1, 2, 1, 1]


def test_a_call_that_is_interrupted_while_it_waits_changes_nothing(queue: Queue) -> None:
    held = leased(queue, "a")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with piled_up(queue) as submit:
        interrupted = rule_variant("Hold.acquire", first(interrupt))
        with interrupted, pytest.raises(KeyboardInterrupt):
            held.ack()
        extended = submit(held.extend)
    assert extended.result(30) == SettleResult(1)
    assert queue.group().stats().leased == 1


# -- application transactions


def numbered(queue: Queue, app: str, number: int, group: str = "default") -> int | None:
    """Commits a number of an application. Returns the number that was the last one before."""

    def step(view: View) -> Change[int | None]:
        note = {"operation": "number"}
        return Change(view.ledger, view.numbers[app], note, (app, number))

    before: int | None = group_ledger_of(queue.group(group)).run(Step(step, (app,)))
    return before


def last_number(queue: Queue, app: str) -> int | None:
    store = ledgers_of(again(queue))
    return store.txn_number(store.read("default"), app)


def test_a_commit_keeps_the_transactions_of_all_its_operations(queue: Queue) -> None:
    held, before = leased(queue, "a"), version(queue)
    with piled_up(queue) as submit:
        calls = [submit(numbered, queue, "one", 3), submit(held.ack)]
        calls.append(submit(numbered, queue, "two", 5))
    assert results_of(calls) == [None, SettleResult(1), None]
    assert version(queue) == before + 1
    assert [last_number(queue, app) for app in ("one", "two", "three")] == [3, 5, None]


@pytest.mark.parametrize("group", ["default", "another"])
def test_an_operation_sees_the_transaction_of_one_before_it(queue: Queue, group: str) -> None:
    for name in ("default", group):
        queue.group(name).ensure()
    numbered(queue, "app", 1)
    before = version(queue)
    with piled_up(queue) as submit:
        calls = [submit(numbered, queue, "app", 2), submit(numbered, queue, "app", 3, group)]
    assert results_of(calls) == [1, 2]
    assert version(queue) == before + 1
    assert last_number(queue, "app") == 3


# -- races and errors of the store


FAILURES = [
    StorageError("the store", path="leases", landed=None),
    ContentionTimeout("lost", group="default", attempts=3),
    OSError(5, "reset"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failed_commit_is_an_error_of_each_caller(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    held = leased(queue, "a", "b", count=1)
    write = Injected(lambda run: None, fail=error)
    with piled_up(queue) as submit:
        on_write(monkeypatch, queue, write)
        calls = [submit(held.ack), submit(queue.group().lease, "w"), submit(held.extend)]
    errors = [one.exception(30) for one in calls]
    assert [(type(one), str(one)) for one in errors] == [(type(error), str(error))] * 3
    assert [getattr(one, "data", None) for one in errors] == [getattr(error, "data", None)] * 3
    assert len({id(one) for one in errors}) == 3, "threads add to the traceback of what they raise"
    assert write.calls == 1, "it may have landed, so nothing runs again"


def test_a_transaction_of_a_lost_attempt_is_not_committed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, before = leased(queue, "a"), version(queue)
    ledger, attempts = group_ledger_of(queue.group()), list[int]()

    def lose() -> None:
        raise CommitConflict("lost")

    def first_only(view: View) -> Change[int]:
        attempts.append(1)
        if len(attempts) > 1:
            return Change(None, len(attempts))
        return Change(view.ledger, 1, {"operation": "number"}, ("app", 1))

    on_write(monkeypatch, queue, once(before=lose))
    results = ledger.committer.run([ack(held), Step(first_only)])
    assert (results[0][0].settled, results[1]) == (1, 2)
    assert operations(queue, before) == ["ack"]
    assert last_number(queue, "app") is None


@pytest.mark.parametrize("fails", [False, True])
def test_without_a_look_what_changes_nothing_is_run_again(delta_queue: Make, fails: bool) -> None:
    """A store whose writer is alone starts from the last known state. It may be out of date."""
    queue = delta_queue()
    queue.publish("a")
    held, before, looks = lease(queue, 1), version(queue), list[bool]()
    as_in_a_store(queue)

    def look(view: View) -> Change[str]:
        looks.append(view.fresh)
        if fails:
            raise ValueError("no")
        return Change(None, "nothing")

    settled, result = group_ledger_of(queue.group()).committer.run([ack(held), Step(look)])
    assert looks == [False, True]
    assert settled[0].settled == 1
    assert isinstance(result, ValueError) if fails else result == "nothing"
    assert operations(queue, before) == ["ack"]


def test_without_a_look_a_lease_gets_what_another_process_has_released(delta_queue: Make) -> None:
    queue = delta_queue()
    held, rival = leased(queue, "a", "b", count=1), again(queue)
    theirs = lease(rival, 1)
    assert ledgers_of(as_in_a_store(queue)).delegates
    assert queue.group().stats().ready == 0, "the state that this handle knows"
    for _ in range(2):
        held.extend()  # so this handle seems to be alone
    theirs.release()
    settled, acquired = group_ledger_of(queue.group()).committer.run([ack(held), Acquire("w", 1)])
    assert settled[0].settled == 1
    assert sum(r.message_count for r in acquired.ranges) == 1


def test_without_a_look_a_worker_gets_only_what_its_commit_leases(delta_queue: Make) -> None:
    """A file that cannot be read may have been trimmed meanwhile. The ack waits for the look."""
    queue = delta_queue()
    for value in "abc":
        queue.publish(value)
    queue.group().ensure()
    as_in_a_store(queue)
    Path(messages_of(queue).path, messages_of(queue).index().files[1].path).unlink()
    before, got = version(queue), list[str]()
    summary = queue.group().work(
        lambda taken: got.append(taken.messages[0].text), mode="batch", until="empty"
    )
    assert (got, summary.acked) == (["a", "c"], 2)
    assert operations(queue, before) == ["lease", "ack+reject+lease", "ack"]
    stats = again(queue).group().stats()
    assert (stats.acked, stats.dead, stats.ready, stats.leased) == (2, 1, 0, 0)


# -- the worker loop


def test_a_worker_that_stops_settles_only(queue: Queue) -> None:
    stop, before = threading.Event(), stocked(queue, "a", "b")
    queue.group().work(lambda taken: stop.set(), mode="batch", stop=stop)
    assert operations(queue, before) == ["lease", "ack"]


@pytest.mark.parametrize(
    ("commands", "done"),
    [(1, ["lease", "release"]), (2, ["lease", "ack+lease", "release"])],
    ids=["by itself", "with a settle"],
)
def test_a_lease_that_comes_after_the_end_is_released_uncounted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, commands: int, done: list[str]
) -> None:
    before = stocked(queue, "a", "b")
    stop, handled = threading.Event(), list[bytes]()

    def stop_after(run: Callable[[], list[Any]], given: Any) -> list[Any]:
        results = run()
        if len(given) == commands:
            stop.set()
        return results

    on_commands(monkeypatch, stop_after)
    queue.group().work(lambda taken: handled.extend(values(taken)), mode="batch", stop=stop)
    assert operations(queue, before) == done
    assert handled == ([] if commands == 1 else [b"a"])
    assert {m.delivery_count for m in lease(again(queue)).messages} == {1}


def test_a_lease_that_comes_with_a_failed_settle_is_released(queue: Queue) -> None:
    queue.publish(["a", "b"])
    verbs, during = list[str](), list[Any]()

    def settle_all(right: Callable[..., Any], a: Any) -> Any:
        verbs.append(a.parts[0].verb)
        # Acks fail until one after the release. Over a store a commit tries each twice.
        if verbs[-1] == ACK and not during and len(verbs) < 10:
            if RELEASE in verbs:
                during.append(a.view.ledger)
            raise StorageError("the index", path="messages", landed=False)
        return right(**vars(a))

    counts, pauses = list[int](), list[float]()

    def handle(taken: Lease) -> None:
        counts.extend(m.delivery_count for m in taken.messages)

    pausing = rule_variant("outage_pause", then(lambda pause, _: pauses.append(pause) or 0.0))
    with pausing, rule_variant("settle_all", instead(settle_all)):
        assert queue.group().work(handle, mode="batch", until="empty").settled == 2
    assert counts == [1, 1], "neither delivery is counted twice"
    assert pauses == [0.05, 0.1]
    # The one in hand stays, and the next is released.
    assert [(r.state, r.delivery_count) for r in during[0]] == [("leased", 1), ("available", 0)]


def test_a_lease_that_fails_beside_a_settle_is_asked_for_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, failing, together = stocked(queue, "a", "b"), threading.Event(), list[int]()
    store = type(messages_of(queue))
    real_index = store.index_to_lease

    def index(self: Any, *args: Any) -> Any:
        if failing.is_set():
            raise OSError("reset")
        return real_index(self, *args)

    def fail_first_of_two(run: Callable[[], list[Any]], commands: Any) -> list[Any]:
        together.append(len(commands))
        if together.count(2) == 1 and together[-1] == 2:
            failing.set()
        try:
            return run()
        finally:
            failing.clear()

    monkeypatch.setattr(store, "index_to_lease", index)
    on_commands(monkeypatch, fail_first_of_two)
    assert queue.group().work(lambda taken: None, mode="batch", until="empty").settled == 2
    assert operations(queue, before) == ["lease", "ack", "lease", "ack"]


BESIDE, APART = ["lease", "ack+lease", "ack"], ["lease", "ack"] * 3


@pytest.mark.parametrize(
    ("mode", "ack", "threads", "texts", "done"),
    [
        ("batch", "on_receive", 2, "ab", BESIDE),
        ("batch", "on_receive", 1, "abc", APART),
        ("message", "on_receive", 1, "abc", APART),
        ("message", "on_success", 1, "ab", BESIDE),
    ],
)
def test_an_ack_leases_for_a_handler_that_is_idle(
    queue: Queue, *, mode: str, ack: str, threads: int, texts: str, done: list[str]
) -> None:
    before, all_together = stocked(queue, *texts), threading.Barrier(threads, timeout=60)

    def handle(_: object) -> None:
        all_together.wait()

    options = {"mode": mode, "threads": threads, "ack": ack, "until": "empty"}
    assert queue.group().work(handle, **options).settled == len(texts)
    assert operations(queue, before) == done
