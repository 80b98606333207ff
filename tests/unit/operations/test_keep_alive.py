"""Leases are extended together if they have one timeout, and each in time."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Event

from support.clocks import SECOND

from spark_mq.operations.keep_alive import KeepAlive


def test_leases_of_one_timeout_are_extended_together() -> None:
    extended, known = set[tuple[tuple[str, ...], int]](), Event()

    def extend(lease_ids: Sequence[str], timeout: int) -> None:
        extended.add((tuple(lease_ids), timeout))
        if len(extended) > 1:
            known.set()

    keep_alive = KeepAlive(extend)
    try:
        for lease_id, timeout in (("short", 3_000), ("long", 6_000), ("longer", 6_000)):
            keep_alive.add(lease_id, timeout, 3600 * SECOND)
        assert known.wait(60)
    finally:
        keep_alive.stop()
    assert extended == {(("short",), 3_000), (("long", "longer"), 6_000)}


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
