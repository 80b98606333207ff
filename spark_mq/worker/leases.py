"""Hold the leases of a feed until their tasks are settled, and extend them meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from spark_mq.lease import Lease
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.settle import extend

__all__ = ["HeldLeases"]


class HeldLeases:
    """The leases of a feed. `on_end` gets each that expires after its longest duration.

    `limit` is that duration in microseconds.
    """

    def __init__(self, ledger: GroupLedger, limit: int, on_end: Callable[[Lease], None]) -> None:
        self._ledger, self._limit, self._on_end = ledger, limit, on_end
        self._keep_alive = KeepAlive(self._extend, self._end_at_limit)
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._open: Counter[str] = Counter()  # tasks of each lease that are not settled yet

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.lease_id] = lease
        timeout = lease._start_limit(self._limit)
        self._keep_alive.add(lease.lease_id, timeout, self._limit)

    def open(self, lease: Lease, tasks: int) -> None:
        """Hold a lease until so many tasks are closed."""
        with self._lock:
            self._open[lease.lease_id] = tasks

    def close(self, leases: Iterable[Lease]) -> None:
        """Close one task of each lease given. The last one of a lease ends its extensions."""
        ended = list[Lease]()
        with self._lock:
            for lease in leases:
                self._open[lease.lease_id] -= 1
                if self._open[lease.lease_id] <= 0:
                    ended.append(lease)
        for lease in ended:
            self.remove(lease)

    def remove(self, lease: Lease) -> None:
        self.stop_extending(lease)
        with self._lock:
            self._leases.pop(lease.lease_id, None)
            self._open.pop(lease.lease_id, None)

    def stop_extending(self, lease: Lease) -> None:
        self._keep_alive.remove(lease.lease_id)

    def remove_limit(self, leases: Iterable[Lease]) -> None:
        """Extend leases without a limit, because finished tasks wait for a failing store."""
        kept = list(leases)
        for lease in kept:
            lease._held.ends_at = None
        self._keep_alive.remove_limit([lease.lease_id for lease in kept])

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        self._keep_alive.stop()

    def _extend(self, lease_ids: Sequence[str], timeout: int) -> None:
        _, deadline = extend(self._ledger, lease_ids, timeout)
        with self._lock:
            held = [self._leases[one] for one in lease_ids if one in self._leases]
        for lease in held:
            lease._held.move_deadline(deadline)

    def _end_at_limit(self, lease_id: str) -> bool:
        """Return whether a lease has ended, and end its tasks then."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return True
        if ended := lease._has_ended():
            self._on_end(lease)
        return ended
