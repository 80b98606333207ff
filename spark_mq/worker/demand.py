"""Decide how many messages a worker leases."""

from __future__ import annotations

import time
from typing import Final

from spark_mq.worker.pools import Pool

__all__ = ["MessageDemand"]

PREFETCH_SECONDS: Final = 1.0  # a feed leases no more than its handlers need for this time
_SMOOTHING: Final = 0.2  # share of the newest duration in the average


class MessageDemand:
    """Decides how many messages a feed leases. It holds `most` of them at most."""

    def __init__(self, pool: Pool, most: int, poll: float, *, may_prefetch: bool) -> None:
        self._pool, self._most, self._poll = pool, most, poll
        # Messages that were acked first are lost with their process.
        self._may_prefetch = may_prefetch
        self._duration: float | None = None  # the average time of a handler in seconds
        self._look_at = 0.0  # when to look for other lanes again
        self._failed = False  # the last handler has failed
        self._dry = False  # the last look found nothing to lease

    def note_end(self, seconds: float, *, failed: bool) -> None:
        """Note how long a handler took, and whether it failed."""
        known = seconds if self._duration is None else self._duration
        self._duration = known + _SMOOTHING * (seconds - known)
        self._failed = failed

    def note_look(self, found: bool) -> None:
        self._dry, self._look_at = not found, time.monotonic() + self._poll

    def wanted(self, held: int, in_lanes: int, lanes: int) -> int:
        """Return how many messages to lease now, with `held` in hand, some of them in lanes."""
        return self._room(held) or self._room_for_lanes(held, in_lanes, lanes)

    def _room(self, held: int) -> int:
        """Return how many messages to lease: 0 as long as enough are in hand."""
        slots = self._pool.slots
        wanted = slots
        # After a failure, small leases open the breaker before many messages have failed.
        if self._duration is not None and self._may_prefetch and not self._failed:
            wanted += round(slots * PREFETCH_SECONDS / max(self._duration, 1e-6))
        wanted = min(wanted, self._most)
        enough = slots + (wanted - slots) // 2
        return max(0, wanted - held) if held < min(enough, wanted) else 0

    def _room_for_lanes(self, held: int, in_lanes: int, lanes: int) -> int:
        """Return how many messages to lease for handlers that the lanes in hand leave idle."""
        if not in_lanes or (self._dry and time.monotonic() < self._look_at):
            return 0
        # No lease gets the lanes that another one holds, so these are messages of other lanes.
        busy = lanes + max(0, held - in_lanes)
        return max(0, min(self._pool.slots - busy, self._most - held))
