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
    extended, known = defaultdict[tuple[tuple[str, ...], int], list[float]](list), threading.Event()
    short, long = (("short",), 30_000), (("long", "longer"), 60_000)

    def extend(lease_ids: Sequence[str], timeout: int) -> None:
        extended[tuple(lease_ids), timeout].append(time.monotonic())
        if long in extended and len(extended[short]) > 2:
            known.set()
        if "lost" in lease_ids:
            raise LeaseLost("it holds nothing", lease_id="lost", lost=[], result=None)

    keep_alive = KeepAlive(extend)
    try:
        for lease_id in ("short", "long", "lost", "longer"):
            keep_alive.add(lease_id, 30_000 if lease_id == "short" else 60_000, 3600 * SECOND)
        assert known.wait(60)
        assert {one.daemon for one in threading.enumerate() if "keep-alive" in one.name} == {True}
    finally:
        keep_alive.stop()
    tried = [("long", "lost", "longer"), ("long",), ("lost",), ("longer",)]
    assert set(extended) == {short, long, *((lease_ids, 60_000) for lease_ids in tried)}
    times = extended[short]
    assert all(later - earlier > 0.009 for earlier, later in pairwise(times)), "a third of its time"


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
