"""Extend the leases of a feed in the background, those of one timeout in one commit."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_mq.errors import LeaseLost
from spark_mq.lease import Lease
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.settle import extend
from spark_mq.util.clock import SECOND

__all__ = ["LeaseKeeper"]

_log = logging.getLogger("spark_mq.worker")

# Until the next look at a lease that is past its limit and has not expired yet.
_LOOK_SECONDS: Final = 0.02


class LeaseKeeper:
    """Extends leases each third of their timeout, for `limit` microseconds from their start.

    `on_end` gets each lease that has expired after its limit.
    """

    def __init__(self, ledger: GroupLedger, limit: int, on_end: Callable[[Lease], None]) -> None:
        self._ledger, self._limit, self._on_end = ledger, limit, on_end
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        timeout, now = lease._start_limit(self._limit) / SECOND, time.monotonic()
        with self._lock:
            self._kept[lease.lease_id] = _Kept(
                lease, timeout, now + self._limit / SECOND, now + timeout / 3
            )
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="spark_mq keep-alive", daemon=True
                )
                self._thread.start()
        self._changed.set()

    def remove(self, lease_id: str) -> None:
        with self._lock:
            self._kept.pop(lease_id, None)

    def remove_limit(self) -> None:
        """Extend without a limit from now on, because the store fails and only settles wait."""
        with self._lock:
            for one in self._kept.values():
                one.end, one.lease._held.ends_at = float("inf"), None

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        self._stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._changed.clear()  # before the look, so that no change in between is missed
            if self._stopped:
                return
            with self._lock:
                due = min((one.due for one in self._kept.values()), default=None)
            pause = None if due is None else due - time.monotonic()
            if pause is None or pause > 0:
                self._changed.wait(pause)
            else:
                self._extend_all()

    def _extend_all(self) -> None:
        now = time.monotonic()
        with self._lock:
            kept = list(self._kept.values())
        for one in kept:
            one.due = min(now + one.timeout / 3, max(one.end, now + _LOOK_SECONDS))
            if one.end <= now and one.lease._has_ended():
                self.remove(one.lease.lease_id)
                self._on_end(one.lease)
        try:
            for timeout in {one.timeout for one in kept}:
                of = [one for one in kept if one.timeout == timeout]
                self._extend([one for one in of if one.end >= now + timeout], timeout)
            for one in kept:
                if now < one.end < now + one.timeout:
                    with contextlib.suppress(LeaseLost):
                        one.lease.extend(one.end - now)
        except Exception as error:  # a store that fails for now must not end this
            _log.warning("could not extend leases, trying again: %s", error)

    def _extend(self, kept: list[_Kept], timeout: float) -> None:
        if not kept:
            return
        lease_ids = [one.lease.lease_id for one in kept]
        try:
            _, deadline = extend(self._ledger, lease_ids, round(timeout * SECOND))
        except LeaseLost:
            for one in kept:  # the others are held still
                with contextlib.suppress(LeaseLost):
                    one.lease.extend(timeout)
        else:
            for one in kept:
                one.lease._held.move_deadline(deadline)


@dataclass(slots=True)
class _Kept:
    """A lease to extend. Times are monotonic seconds."""

    lease: Lease
    timeout: float
    end: float
    due: float
