"""Extend leases while their handlers run, up to a limit, because a handler may hang forever."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_mq.errors import LeaseLost
from spark_mq.util.clock import SECOND

_log = logging.getLogger(__name__)

# Until the next look at a lease that is past its limit and has not expired yet.
_LOOK_SECONDS: Final = 0.02


class KeepAlive:
    """Extends leases in the background, each third of their timeout.

    `extend` sets the deadline of some leases, by id, to now + its second argument in microseconds.
    It raises LeaseLost if one of them holds nothing. Leases of one timeout share a call.

    `on_limit` gets the id of a lease that has reached its limit, again and again until the lease is
    removed. Without it, a warning says so, and the lease is removed.
    """

    def __init__(
        self,
        extend: Callable[[Sequence[str], int], object],
        on_limit: Callable[[str], object] | None = None,
    ) -> None:
        self._extend, self._on_limit = extend, on_limit or self._warn
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()  # also the lock of the leases
        self._wakes_at = float("inf")  # when the thread looks next, if nothing changes
        self._stopped = False
        self._thread: threading.Thread | None = None

    def add(self, lease_id: str, timeout: int, limit: int) -> KeepAlive:
        """Extend a lease by `timeout` for at most `limit`, both in microseconds. Return self."""
        now, seconds = time.monotonic(), timeout / SECOND
        due = now + seconds / 3
        with self._changed:
            self._kept[lease_id] = _Kept(lease_id, timeout, seconds, now + limit / SECOND, due)
            if due < self._wakes_at:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="spark_mq keep-alive", daemon=True
                )
                self._thread.start()
        return self

    def remove(self, lease_id: str) -> None:
        with self._changed:
            self._kept.pop(lease_id, None)

    def set_limit(self, lease_ids: Iterable[str], limit: int | None) -> None:
        """Extend some leases for `limit` microseconds from now, or with None without a limit."""
        end = float("inf") if limit is None else time.monotonic() + limit / SECOND
        with self._changed:
            for lease_id in lease_ids:
                if (kept := self._kept.get(lease_id)) is not None:
                    kept.end = end

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while kept := self._wait_for_due():
            self._look(kept)

    def _wait_for_due(self) -> list[_Kept]:
        """Wait until leases are due. Return all of their timeouts, or none after a stop."""
        with self._changed:
            while not self._stopped:
                now, leases = time.monotonic(), self._kept.values()
                self._wakes_at = min((lease.due for lease in leases), default=float("inf"))
                if self._wakes_at <= now:
                    # An early extension shares the commit of a due one.
                    due = {lease.timeout for lease in leases if lease.due <= now}
                    return [lease for lease in leases if lease.timeout in due]
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
        return []

    def _look(self, kept: Sequence[_Kept]) -> None:
        """Extend leases, and find those that have reached their limit."""
        now = time.monotonic()
        for lease in kept:
            lease.due = min(now + lease.seconds / 3, max(lease.end, now + _LOOK_SECONDS))
        wanted = defaultdict[int, list[_Kept]](list)  # the leases by how long they are extended
        try:
            for lease in kept:
                if lease.end <= now:
                    self._on_limit(lease.lease_id)
                if lease.end > now and not lease.lost:  # it may have another limit now
                    wanted[round(min(lease.seconds, lease.end - now) * SECOND)].append(lease)
            for timeout, leases in wanted.items():
                self._extend_together(leases, timeout)
        except Exception as error:  # a store that fails for now must not end this
            _log.warning("could not extend leases, trying again: %s", error)

    def _extend_together(self, leases: Sequence[_Kept], timeout: int) -> None:
        try:
            self._extend([lease.lease_id for lease in leases], timeout)
        except LeaseLost:
            if len(leases) == 1:  # all of it is settled or lost, so there is nothing to extend
                leases[0].lost = True
                return
            for lease in leases:  # the others are held still
                self._extend_together([lease], timeout)

    def _warn(self, lease_id: str) -> None:
        _log.warning(
            "a lease reached its longest duration. "
            "Its unsettled messages expire and are redelivered"
        )
        self.remove(lease_id)


@dataclass(slots=True, eq=False)
class _Kept:
    """A lease to extend. Times are monotonic seconds, ``timeout`` is microseconds."""

    lease_id: str
    timeout: int
    seconds: float
    end: float
    due: float
    lost: bool = False
