"""A queue under processes of all kinds, each of its own.

What came of it is read from the tables afterwards, not from their words.
"""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
from support import processes
from support.checker import check_queue
from support.handles import until
from support.processes import SHORT, SPAWN, idle, start
from support.queues import Place

from spark_mq import Message, Queue

pytestmark = pytest.mark.slow


def test_every_message_ends_once_and_no_two_leases_overlap(place: Place) -> None:
    given = place()
    where = path, options = given["path"], given.get("storage_options", {})
    queue = Queue.create(**given, **SHORT)
    stop, enough = SPAWN.Event(), SPAWN.Event()
    publishers = [start(processes.publish, *where, size, enough) for size in (5, 10)]
    others = [start(target, *where, stop) for target in (processes.consume, processes.chores)]
    bad = [start(processes.never_ack, *where, 4)]
    bad += [start(processes.crash, *where) for _ in range(3)]
    try:
        for process in bad:
            process.join(120)
        enough.set()
        for process in publishers:
            process.join(60)
        assert [process.exitcode for process in publishers] == [0, 0]
        assert {process.exitcode for process in bad[1:]} == {-signal.SIGKILL}
        until(lambda: idle(queue), "all is settled")
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


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "batch", "max_messages": 30},
        {"mode": "batch", "max_messages": 1, "threads": 4},
        {"mode": "message", "max_messages": 30, "threads": 4},
    ],
    ids=["leases", "leases in threads", "messages in threads"],
)
def test_a_poison_that_kills_its_worker_is_dead_lettered_alone(
    place: Place, how: dict[str, Any]
) -> None:
    given = place()
    path, options = given["path"], given.get("storage_options", {})
    settings = {**SHORT, "max_delivery_attempts": 4}
    if options:
        # A lease that ran out before the poison is handed over counts as dead while its worker
        # still lives: a slow store needs more time.
        settings["visibility_timeout"] = "3s"
    # An open breaker finds the poison, too, only more slowly.
    queue = Queue.create(**given, **settings, breaker_threshold=None)
    receipt = queue.publish([Message("poison" if n == 17 else f"{n}") for n in range(60)])
    deaths = 0

    def restart() -> bool:
        nonlocal deaths
        worker, group = start(processes.work, path, options, how), queue.group().ensure()
        until(lambda: not worker.is_alive() or idle(queue) or group.stats().dead, "it has an end")
        deaths += worker.exitcode is not None
        # it settles what it works on: that may be another message's last attempt
        worker.terminate()
        worker.join()
        return bool(group.stats().dead)

    until(restart, "the poison is dead")
    queue.sweep()
    queue.group().work(processes.handle, mode="batch", max_messages=30, until="empty")
    until(lambda: idle(queue), "all is settled")
    queue.sweep()
    found = check_queue(path, options, skew=timedelta(seconds=0.1), drained=["default"])
    assert found.wrong == []
    died = queue.finished(outcome="dead_lettered")["sequence"].to_pylist()
    assert died == [receipt.sequences[17]]
    assert deaths == 4
