"""Decide how many messages a feed leases."""

from __future__ import annotations

import time
from typing import Any, Final

from spark_mq.per_message.lanes import LaneChains
from spark_mq.per_message.pool import Pool
from spark_mq.per_message.state import FeedOptions

__all__ = ["LeaseDemand"]

PREFETCH_SECONDS: Final = 1.0  # a feed leases no more than its handlers need for this time
_SMOOTHING: Final = 0.2  # share of the newest duration in the average


class LeaseDemand:
    """Decides how many messages a feed leases."""

    def __init__(self, options: FeedOptions, pool: Pool) -> None:
        self._options, self._pool = options, pool
        self._duration: float | None = None  # the average time of a handler in seconds
        self._look_at = 0.0  # when to look for other lanes again
        self.failed = False  # the last handler has failed
        self.dry = False  # the last look found nothing to lease

    def note_duration(self, seconds: float) -> None:
        known = seconds if self._duration is None else self._duration
        self._duration = known + _SMOOTHING * (seconds - known)

    def note_look(self, found: bool) -> None:
        self.dry, self._look_at = not found, time.monotonic() + self._options.poll

    def wanted(self, held: int, chains: LaneChains[Any]) -> int:
        """Return how many messages to lease now, with `held` in hand."""
        return self._room(held) or self._room_for_lanes(held, chains)

    def _room(self, held: int) -> int:
        """Return how many messages to lease: 0 as long as enough are in hand."""
        slots = self._pool.slots
        wanted = slots
        if self._duration is not None and self._may_prefetch():
            wanted += round(slots * PREFETCH_SECONDS / max(self._duration, 1e-6))
        wanted = min(wanted, self._options.lease.max_messages)
        enough = slots + (wanted - slots) // 2
        return max(0, wanted - held) if held < min(enough, wanted) else 0

    def _room_for_lanes(self, held: int, chains: LaneChains[Any]) -> int:
        """Return how many messages to lease for handlers that the lanes in hand leave idle."""
        if not chains or (self.dry and time.monotonic() < self._look_at):
            return 0
        # No lease gets the lanes that another one holds, so these are messages of other lanes.
        busy = chains.lanes + max(0, held - len(chains))
        return max(0, min(self._pool.slots - busy, self._options.lease.max_messages - held))

    def _may_prefetch(self) -> bool:
        """Return whether messages may wait in hand for a handler."""
        # Messages that were acked first are lost with their process. After a failure, small leases
        # open the breaker before many messages have failed.
        return self._options.policy.ack != "on_receive" and not self.failed
