"""A queue under processes of all kinds, each of its own.

What came of it is read from the tables afterwards, not from their words.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.checker import check_queue
from support.processes import (
    SKEW,
    SPAWN,
    chores,
    consume,
    crash,
    handle,
    idle,
    never_ack,
    publish,
    start,
    until,
    work,
    work_in_threads,
    work_on_messages,
)

from spark_mq import Message, Queue

pytestmark = pytest.mark.slow


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Where a queue may be made: a path and storage options. With --store in an object store."""
    if request.config.getoption("--store"):
        store = request.getfixturevalue("remote")
        return store.new_path(), store.options
    return str(tmp_path / "queue"), {}


def test_every_message_ends_once_and_no_two_leases_overlap(
    place: tuple[str, dict[str, str]],
) -> None:
    path, options = place
    queue = Queue.create(
        path,
        storage_options=options,
        visibility_timeout="1s",
        clock_skew=SKEW,
        max_delivery_attempts=20,
    )
    stop, enough = SPAWN.Event(), SPAWN.Event()
    publishers = [start(publish, path, options, size, enough) for size in (5, 10)]
    others = [start(consume, path, options, stop), start(chores, path, options, stop)]
    bad = [start(never_ack, path, options, 4), *(start(crash, path, options) for _ in range(3))]
    try:
        for process in bad:
            process.join(120)
        enough.set()
        for process in publishers:
            process.join(60)
        assert [process.exitcode for process in publishers] == [0, 0]
        assert {process.exitcode for process in bad[1:]} == {-signal.SIGKILL}
        until(lambda: idle(queue))
    finally:
        enough.set()
        stop.set()
        for process in others:
            process.join(60)
    queue.sweep()
    found = check_queue(path, options, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    assert found.counts["lease_expired"] > 4, "what was never acked came again"
    print(dict(found.counts))


@pytest.mark.parametrize("work", [work, work_in_threads, work_on_messages])
def test_a_poison_that_kills_its_worker_is_dead_lettered_alone(
    place: tuple[str, dict[str, str]], work: Callable[..., None]
) -> None:
    path, options = place
    # A lease that ran out before the poison is handed over counts as dead while its worker still
    # lives: a slow store needs more time.
    timeout = "3s" if options else "1s"
    queue = Queue.create(
        path,
        storage_options=options,
        visibility_timeout=timeout,
        clock_skew=SKEW,
        max_delivery_attempts=4,
        breaker_threshold=None,  # an open breaker finds the poison, too, only more slowly
    )
    receipt = queue.publish([Message("poison" if n == 17 else f"{n}") for n in range(60)])
    deaths = 0

    def restart() -> bool:
        nonlocal deaths
        worker = start(work, path, options)
        until(
            lambda: (
                not worker.is_alive() or idle(queue) or bool(queue.group().ensure().stats().dead)
            )
        )
        deaths += worker.exitcode is not None
        # it settles what it works on: that may be another message's last attempt
        worker.terminate()
        worker.join()
        return bool(queue.group().ensure().stats().dead)

    until(restart)
    queue.sweep()
    queue.group().work(handle, mode="batch", max_messages=30, until="empty")
    until(lambda: idle(queue))
    queue.sweep()
    found = check_queue(path, options, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    assert queue.finished(outcome="dead_lettered")["sequence"].to_pylist() == [
        receipt.sequences[17]
    ]
    assert deaths == 4
