"""Leases are extended together if they have one timeout, and each in time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from queue import SimpleQueue

from support.clocks import SECOND

from spark_mq.errors import LeaseLost
from spark_mq.operations.keep_alive import KeepAlive


def test_leases_of_one_timeout_are_extended_together_but_for_a_lost_one() -> None:
    idle, known = defaultdict[tuple[tuple[str, ...], int], list[float]](list), threading.Event()
    short, long = (("short",), 90_000), (("long", "longer"), 180_000)
    idle[short], threads = [time.monotonic()], set[threading.Thread]()

    def extend(lease_ids: Sequence[str], timeout: int) -> None:
        idle[tuple(lease_ids), timeout].append(time.monotonic() - time.thread_time())
        threads.add(threading.current_thread())
        if long in idle and len(idle[short]) > 3:
            known.set()
        if "lost" in lease_ids:
            raise LeaseLost("it holds nothing", lease_id="lost", lost=[], result=None)

    keep_alive = KeepAlive(extend)
    try:
        for lease_id in ("short", "long", "lost", "longer"):
            keep_alive.add(lease_id, 90_000 if lease_id == "short" else 180_000, 3600 * SECOND)
        assert known.wait(60)
    finally:
        keep_alive.stop()
    assert [(one.daemon, one.is_alive()) for one in threads] == [(True, False)]
    tried = [("long", "lost", "longer"), ("long",), ("lost",), ("longer",)]
    assert set(idle) == {short, long, *((lease_ids, 180_000) for lease_ids in tried)}
    pauses = [later - earlier for earlier, later in pairwise(idle[short])]
    assert min(pauses) > 0.025, "it sleeps for a third of its time"


def test_a_short_lease_is_extended_while_a_long_one_waits() -> None:
    extended: SimpleQueue[str] = SimpleQueue()

    def extend(lease_ids: Sequence[str], _: int) -> None:
        keep_alive.remove(lease_ids[0])
        extended.put(lease_ids[0])

    keep_alive = KeepAlive(extend)
    try:
        keep_alive.add("long", 3600 * SECOND, 3600 * SECOND)
        for short in ("one", "two", "three"):
            keep_alive.add(short, 3_000, 3600 * SECOND)
            assert extended.get(timeout=30) == short
    finally:
        keep_alive.stop()
