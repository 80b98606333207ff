"""The line of a group on a local disk: its holder commits for everybody who waits.

Handles of one process act here as if each were a process of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.forks import in_a_fork
from support.handles import again, lease, notes, on_commit, sequences, until
from support.limits import Limits
from support.machines import pool, processes, without_locks
from support.people import as_visitor
from support.rule_variants import first, instead, returns, rule_variant
from support.tables import checkpoint, commit_file, ledgers_of

from spark_mq import Queue, errors
from spark_mq.delta.actions import Change
from spark_mq.storage.commit_turn import PAUSE, SERVED

MINUTE = 60.0
LEASE = [["default", {"lease": {"worker_id": "waiter", "max_messages": 5}}]]
__all__ = ["pool", "processes"]

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def queue(delta_queue: Callable[..., Queue]) -> Queue:
    queue = delta_queue(visibility_timeout="1m")
    queue.publish([str(n) for n in range(20)])
    queue.group().ensure()
    return queue


def turn_of(queue: Queue, commands: Any = None) -> Any:
    ledgers = ledgers_of(queue)
    ledgers.version()
    return ledgers.turn(lambda: commands, lambda: False, lost=False)


def holder_of(queue: Queue) -> Any:
    """Hold the line, as a process does that commits."""
    turn = turn_of(queue)
    turn.wait(time.monotonic())
    assert turn.is_first
    return turn


def waiter_of(queue: Queue) -> Any:
    """Delegate a lease, and wait. The line is free again."""
    holder, waiter = holder_of(queue), turn_of(queue, LEASE)
    waiter.wait(0.0)
    holder.close()
    return waiter


def requests(queue: Queue) -> list[Path]:
    return sorted(Path(queue.path, "_locks").glob("*.requests/*"))


def waiting(queue: Queue, pool: ThreadPoolExecutor, *calls: Callable[[], Any]) -> list[Future[Any]]:
    """Let calls wait, each with a request. One write completes it."""
    futures = list[Future[Any]]()
    for call in calls:
        futures.append(pool.submit(call))
        until(lambda: sum(one.stat().st_size > 0 for one in requests(queue)) >= len(futures))
    return futures


def test_a_lone_writer_delegates_nothing_and_waits_for_nobody(queue: Queue, limits: Limits) -> None:
    limits(line_gather=3600.0)
    before = ledgers_of(queue).version()
    lease(queue, 3).ack()
    assert not Path(queue.path, "_locks", "leases.requests").exists()
    assert [note.keys() & {SERVED, PAUSE} for note in notes(queue)[before:]] == [set(), set()]


def test_the_first_in_line_commits_for_all_that_wait(
    queue: Queue, pool: ThreadPoolExecutor, limits: Limits
) -> None:
    limits(line_patience=MINUTE)
    held = lease(queue, 3)
    holder, before = holder_of(queue), ledgers_of(queue).version()
    handles = [again(queue) for _ in range(3)]
    for handle in (queue, *handles):
        ledgers_of(handle).backoff.take_over(2e-6)
    calls = (partial(lease, handle, 4) for handle in handles)
    acked, *leases = waiting(queue, pool, held.ack, *calls)
    once = instead(lambda real, given: len(requests(queue)) == 4 and real(given.self))
    with rule_variant("LocalTurn._step_up", once):  # who is served needs no place in the line
        holder.close()
        assert acked.result(20).settled == 3
        assert len({seq for leased in leases for seq in sequences(leased.result(20))}) == 12
    assert len(notes(queue)[before:]) == 1
    pauses = [ledgers_of(handle).backoff.pause for handle in (queue, *handles)]
    assert sorted(pauses) == [0.0, *[1e-6] * 3], "the commit shortens them"
    assert all(ledgers_of(handle).was_changed for handle in handles)
    assert requests(queue) == []
    stats = again(queue).group().stats()
    assert (stats.leased, stats.acked) == (12, 3)


def test_what_a_holder_ran_that_died_before_its_answers_is_not_run_again(queue: Queue) -> None:
    waiter = waiter_of(queue)
    with rule_variant("LocalTurn.leave", returns(None)):  # it has not deleted the request
        assert len(sequences(lease(again(queue), 2))) == 2
    assert len(requests(queue)) == 1
    assert len(sequences(lease(again(queue), 2))) == 2
    assert requests(queue) == [], "its writer must learn that it was run"
    assert again(queue).group().stats().leased == 5 + 2 + 2
    waiter.close()


def test_the_request_of_a_dead_writer_is_not_run(queue: Queue) -> None:
    waiter_of(queue)._file.close()  # as the system does
    assert len(requests(queue)) == 1
    lease(queue, 2)
    assert requests(queue) == []
    assert again(queue).group().stats().leased == 2


def test_a_frozen_holder_is_passed_once(queue: Queue, limits: Limits) -> None:
    """Those that come later stand in a new line."""
    limits(line_patience=0.2)
    frozen, started = holder_of(queue), time.monotonic()
    assert len(sequences(lease(again(queue), 5))) == 5
    limits(line_patience=MINUTE)
    assert len(sequences(lease(again(queue), 5))) == 5
    frozen.close()
    assert 0.2 <= time.monotonic() - started < 30


def test_a_writer_looks_often_for_its_turn_and_for_requests(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """A commit takes 2 ms, so a longer pause would leave the line free for most of the time."""
    limits(line_patience=0.0, line_gather=5.0)
    holder, turn, log = holder_of(queue), turn_of(queue), ledgers_of(again(queue)).log
    served = {"own": None, "a": ["done"], "b": ["done"]}
    log.commit(Change("by the holder", {SERVED: served}), log.refresh().version)
    others, pauses = list[Any](), list[float]()

    def nap(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.close()
        elif len(pauses) > 3:
            others.append(turn_of(again(queue), []))
            others[-1].wait(0.0)

    monkeypatch.setattr(time, "sleep", nap)
    with rule_variant("LocalTurn._others_commit", first(lambda _: limits(line_patience=MINUTE))):
        turn.wait(time.monotonic() + MINUTE)
    assert len(turn.requests_to_run()) == 2, "as many as the last commit ran"
    assert pauses == [0.001] * 3 + [0.0003] * 2, "it passes no busy holder"
    turn.close()


@pytest.mark.parametrize("is_visitor", [False, True], ids=["discard", "lease of a visitor"])
def test_a_commit_by_a_person_runs_no_requests(queue: Queue, is_visitor: bool) -> None:
    """Its note has a person's name and reason, which must not stand beside what others did."""
    last, waiter = queue.publish("x").sequences[0], waiter_of(queue)
    if is_visitor:
        as_visitor("ann", lambda: lease(again(queue), 1))
    else:
        assert again(queue).group().discard([last], reason="a mistake") == 1
    assert SERVED not in notes(queue)[-1]
    lease(again(queue), 1)
    assert SERVED in notes(queue)[-1], "another one runs them"
    waiter.close()


def test_a_request_that_is_not_complete_yet_is_none(queue: Queue) -> None:
    waiter = waiter_of(queue)
    requests(queue)[0].write_bytes(b"")
    assert len(sequences(lease(queue, 5))) == 5
    assert again(queue).group().stats().leased == 5
    waiter.close()


def test_a_request_from_before_what_the_log_has_is_not_run(queue: Queue) -> None:
    lease(queue, 1)
    checkpoint(ledgers_of(queue))
    commit_file(ledgers_of(queue).path, 1).unlink()
    folder = Path(queue.path, "_locks", "leases.requests")
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as files:
        for base in (0, 1):
            file = files.enter_context((folder / f"{base:020d}-{base:032d}.json").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps({"format": 2, "commands": LEASE}).encode())
            file.flush()
        turn = turn_of(again(queue))
        turn.wait(0.0)
        found = turn.requests_to_run()
        assert len(found) == 2
        assert [one.base for one in turn.not_run(found)] == [1]


@pytest.mark.parametrize("kind", ["a file in the way", "no locks"])
def test_where_nobody_can_stand_in_line_a_writer_commits(
    queue: Queue, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a file in the way":
        Path(queue.path, "_locks").rename(Path(queue.path, "old"))
        Path(queue.path, "_locks").write_text("")
    else:
        without_locks(monkeypatch)
    assert lease(queue, 5).ack().settled == 5


def test_without_space_for_a_request_a_writer_still_waits_for_the_line(queue: Queue) -> None:
    holder, turn = holder_of(queue), turn_of(queue, [])

    def full(given: Any) -> None:
        if given.mode == "xb":
            holder.close()
            raise OSError(28, "no space left on device")

    with rule_variant("local_turn:_open", first(full)):
        turn.wait(time.monotonic() + MINUTE)
    assert turn.is_first
    turn.close()


def test_a_failed_commit_does_not_claim_that_nobody_ran_a_delegated_command(
    queue: Queue, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = holder_of(queue)
    (asked,) = waiting(queue, pool, lambda: lease(again(queue), 5))
    fault = on_commit(monkeypatch, "leases", fail=PermissionError(13, "no"), at=1)
    fault.real = lambda *_, **__: None  # nothing is written
    holder.close()
    match = r"failed: \[Errno 13\] no\. It was delegated, so other workers may still run it"
    with pytest.raises(errors.StorageError, match=match) as caught:
        asked.result(30)
    assert caught.value.data["landed"] is None
    assert len(list(Path(queue.path, "leases").rglob("part-*"))) == 1, "its file is gone"
    assert requests(queue) == []


# -- files


def open_files() -> set[str]:
    """The files of lines that this process has open."""
    paths = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return {os.path.basename(path) for path in paths if "/_locks/" in path}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system lists no open files")
def test_files_are_open_only_while_a_writer_waits_or_commits(queue: Queue) -> None:
    lease(queue, 1)
    assert open_files() == set()
    holder = holder_of(queue)
    assert open_files() == {"leases.lock"}
    waiter = turn_of(queue, [])
    waiter.wait(time.monotonic() - 1)
    assert open_files() == {"leases.lock", *(one.name for one in requests(queue))}
    waiter.close()
    assert open_files() == {"leases.lock"}
    holder.close()
    assert open_files() == set()
    assert requests(queue) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_a_fork_keeps_no_lock(queue: Queue) -> None:
    """A child that lives on would hold the line after the death of its parent."""
    holder = holder_of(queue)
    assert in_a_fork(open_files) == set()
    assert not turn_of(queue)._step_up(), "the parent still holds it"
    holder.close()


def _hold(path: str, taken: Any) -> None:
    holder = holder_of(Queue.open(path))
    taken.set()
    assert holder.is_first
    threading.Event().wait()  # until it is killed


def test_the_line_is_taken_from_a_process_that_is_killed(queue: Queue) -> None:
    context = multiprocessing.get_context("spawn")
    taken = context.Event()
    process = context.Process(target=_hold, args=(queue.path, taken))
    process.start()
    try:
        assert taken.wait(60)
        assert not turn_of(queue)._step_up()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        started = time.monotonic()
        lease(queue, 5)
        assert time.monotonic() - started < 2.0, "nobody's patience had to end"
    finally:
        process.kill()
        process.join()
