"""Lease, replay and ack the batches of a stream, without Spark.

The offset is ``{"batch": n, "stream": uuid}``. Spark logs it before the lease of batch n exists. A
batch takes new messages only in the runner whose own `latest` returned the offset. In any other
runner it is a replay, which takes over what the batch still holds. Application transactions in
``leases/`` fence zombies: ``(stream, 2n + 1)`` for a lease, ``(stream, 2n + 2)`` for a replay.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from spark_mq.errors import CommitConflict, StorageError
from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.stats import compute_stats
from spark_mq.operations.acquire import (
    Damage,
    reject_damaged,
    settle_lost_messages,
    settle_lost_now,
)
from spark_mq.operations.group_ledger import GroupLedger, GroupView
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.operations.payloads import FileCheck, ReadableGrant, acquire_readable
from spark_mq.operations.settle import extend
from spark_mq.operations.signals import ack_signals, lease_signals
from spark_mq.storage.update import Priority, Update
from spark_mq.streaming.auto_ack import ack_committed_leases
from spark_mq.streaming.fence import check_fence
from spark_mq.streaming.lanes import lane_runs
from spark_mq.streaming.offset import fence_app_id, parse_offset
from spark_mq.streaming.options import BatchPlan, LeaseLimits, StreamOptions, check_attempts
from spark_mq.streaming.progress import show_progress
from spark_mq.streaming.replay import find_batch_damage, take_over_batch
from spark_mq.telemetry.conventions import Signal

__all__ = ["StreamSource"]

RESERVED_ATTEMPTS: Final = 1  # kept back for a replay of the batch


class StreamSource:
    """Run one stream, behind the hooks of Spark's streaming reader. Not thread-safe.

    `keep_alive` gets a lease id, the timeout and the limit in microseconds. It returns an object
    whose ``stop()`` ends the extensions. `runner` is a random id, part of the lease ids.
    """

    def __init__(
        self,
        ledger: GroupLedger,
        options: StreamOptions,
        *,
        keep_alive: Callable[[str, int, int], Any] | None = None,
        runner: str | None = None,
    ) -> None:
        self.ledger = ledger
        self.options = options
        self.runner = runner or uuid.uuid4().hex[:12]
        self.available_count = 0  # messages that a lease would have got at the last look
        self._keep_alive = keep_alive or self._extend_in_background
        self._offered: tuple[str, int] | None = None  # the last batch that `latest` returned
        self._planned: dict[tuple[str, int], BatchPlan] = {}
        self._alive: Any = None
        self._bound: tuple[int, int] | None = None  # for AvailableNow: (tail, instant) at the start
        self._looked: tuple[Ledger, MessageIndex, GroupSettings, int] | None = None
        self._checked = False
        self._first = True

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch. Create the group if it does not exist."""
        self._check()
        return {"batch": 0, "stream": str(uuid.uuid4())}

    def limit_to_current(self) -> None:
        """Lease only messages that are published and due now (Trigger.AvailableNow)."""
        self._check()
        self._bound = (self.ledger.messages.index().last_sequence, self.ledger.now())

    @property
    def is_limited(self) -> bool:
        return self._bound is not None

    def latest(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next batch's offset if messages are due, else `start`. It leases nothing."""
        # Spark calls this only after it has committed batch n. So the unsettled messages of batch n
        # are acked, now or with the next lease.
        stream, n = parse_offset(start)
        if self.has_available(stream, n):
            self._offered = (stream, n + 1)
            return {"batch": n + 1, "stream": stream}
        self.ack_committed(stream, n)
        return dict(start)

    def has_available(self, stream: str, n: int) -> bool:
        """End batch n. Return whether messages are due for the next one."""
        self._check()
        self._end_batch()
        known = self.ledger.ledgers.read(self.ledger.name, look=False).ledger
        if known is not None and self.ledger.may_have_lost(known):
            settle_lost_now(self.ledger, self.options.fail_on_data_loss)
        return self._available(stream, n)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> BatchPlan:
        """Return what the batch reads, the same for repeated calls. Raise StreamFenced."""
        stream, n = parse_offset(end)
        _, before = parse_offset(start)
        self._check()
        if n == before:
            return BatchPlan()
        key = (stream, n)
        if key not in self._planned:
            plan = self.lease(stream, n) if key == self._offered else self.replay(stream, n)
            self._planned = {key: plan}
        return self._planned[key]

    def plans(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> list[tuple[GroupLedger, BatchPlan]]:
        """Return what the batch reads, by queue. Raise as :meth:`plan`."""
        return [(self.ledger, self.plan(start, end))]

    def stop(self) -> None:
        """End the extension of the lease in the background."""
        self._end_batch()

    def progress(self) -> dict[str, Any]:
        """Return the group's stats at the last look."""
        if self._looked is None:
            return {}
        return show_progress(self.ledger, compute_stats(*self._looked))

    def _check(self) -> None:
        if self._checked:
            return
        check_attempts(self.ledger.name, self.ledger.settings())
        self.ledger.create_if_missing()
        self._checked = True

    def _available(self, stream: str, n: int) -> bool:
        """Return whether a lease would get something now, with batch n acked."""
        while True:
            view = self.ledger.view(self.ledger.snapshot())
            with contextlib.suppress(CommitConflict):  # cleaned away or changed since: read again
                ledger, _ = self._acked(view, stream, n)
                break
        index, damage = self.ledger.index_or_damage(ledger)
        self._looked = (ledger, index, view.settings, view.now)
        waiting = ledger.count((AVAILABLE,))
        if not waiting and damage is None and index.last_sequence <= ledger.end_sequence:
            self.available_count = 0
            return False
        # Only the rules of leasing themselves know: caps, isolation and delayed messages all count.
        request = self._request("", view)
        _, grant = acquiring.acquire(ledger, index, view.now, view.settings, request)
        if damage is not None and not grant.ranges:
            raise damage
        self.available_count = grant.message_count
        return bool(grant.ranges)

    def _request(
        self, lease_id: str, view: GroupView, limits: LeaseLimits | None = None
    ) -> acquiring.AcquireRequest:
        tail, due_by = self._bound if self._bound else (None, None)
        messages, size = limits or (self.options.max_messages, self.options.max_bytes)
        return acquiring.AcquireRequest(
            lease_id,
            self.options.worker_id,
            messages,
            view.now + self._timeout(view.settings),
            max_bytes=size,
            reserved_attempts=RESERVED_ATTEMPTS,
            max_sequence=tail,
            due_by=due_by,
        )

    def _timeout(self, settings: GroupSettings) -> int:
        timeout = self.options.visibility_timeout or settings.visibility_timeout
        return min(timeout, self.options.max_lease_duration)

    def lease(self, stream: str, n: int, limits: LeaseLimits | None = None) -> BatchPlan:
        """Lease batch n, and ack the batches before in the same commit.

        Raise StorageError if nothing can be delivered, because payload files are out of reach. The
        acks are committed then, and no message was leased.
        """
        app, lease_id = fence_app_id(stream), f"{stream}/{n}/{self.runner}"
        seen: dict[str, FileCheck] = {}

        def compute(view: GroupView) -> Update[tuple[ReadableGrant, int, GroupSettings, int]]:
            check_fence(self.ledger, view, app, stream, n, highest=2 * n)
            request = self._request(lease_id, view, limits)
            acked, info = self._acked(view, stream, n - 1)
            done = info.get("messages", 0)
            kept = settle_lost_messages(self.ledger, acked, self.options.fail_on_data_loss)
            if kept is not acked:
                info = {"operation": "data_loss", **info}
            index, _ = self.ledger.index_or_damage(view.ledger)
            found = acquire_readable(
                self.ledger.payloads, kept, index,
                now=view.now, rules=view.settings, request=request, seen=seen,
            )  # fmt: skip
            if found.dead:
                info = {**info, **found.commit_info()}
            if found.grant.ranges:
                info = {**info, **found.grant.commit_info(request)}
            result = (found, request.expires_at, view.settings, done)
            if found.dead and not view.snapshot.looked:
                return None, result, {}  # a trim may have dropped them: look
            return found.ledger if info else None, result, info

        while True:
            found, expires_at, settings, _ = self.ledger.update(
                compute,
                txn=lambda got: (app, 2 * n + 1) if got[0].grant.ranges else None,
                priority=Priority.LEASE,
                watch=self._signals,
            )
            for check in found.unfinished:
                check.finish()
            if not found.unfinished:
                break
        if found.error is not None:
            raise found.error
        self._first = False
        return self._granted(lease_id, expires_at, found.grant.ranges, settings)

    def _signals(self, result: Any) -> list[Signal]:
        if isinstance(result, Exception):
            return lease_signals(self.options.worker_id, result)
        found, _, _, acked = result
        return [*ack_signals(acked), *lease_signals(self.options.worker_id, found.grant)]

    def replay(self, stream: str, n: int) -> BatchPlan:
        """Take over what batch n still holds. It leases nothing new: a sink may skip a replay.

        Raise StorageError if payload files are out of reach. Nothing was taken over then, and no
        delivery was counted.
        """
        damage = self.find_damage(stream, n)
        granted, expires_at, settings = take_over_batch(
            self.ledger,
            stream,
            n,
            runner=self.runner,
            worker_id=self.options.worker_id,
            expires_at=lambda view: view.now + self._timeout(view.settings),
            acked=lambda view, held: self._acked(view, stream, n - 1, held),
        )
        if self._bound is not None:  # what the replay gave back was there at the start, and due
            self._bound = (self._bound[0], self.ledger.now())
        self._first = False
        lease_id = f"{stream}/{n}/{self.runner}"
        good = reject_damaged(self.ledger, granted, lease_id, damage)
        return self._granted(lease_id, expires_at, good, settings)

    def find_damage(self, stream: str, n: int) -> list[Damage]:
        """Read all that batch n holds, before its replay is counted. Raise StorageError."""
        try:
            return find_batch_damage(self.ledger, stream, n)
        except StorageError:
            self.ack_committed(stream, n - 1)
            raise

    def _granted(
        self, lease_id: str, expires_at: int, ranges: Sequence[Range], settings: GroupSettings
    ) -> BatchPlan:
        if not ranges:
            return BatchPlan(lease_id, expires_at)
        limit = self.options.max_lease_duration
        self._alive = self._keep_alive(lease_id, self._timeout(settings), limit)
        index = self.ledger.messages.index(ranges[-1].last)
        slices = tuple((piece, r) for r in ranges for piece in index.slices(r.first, r.last))
        return BatchPlan(lease_id, expires_at, slices, lane_runs(index, settings, slices))

    # -- ack what Spark has committed

    def _acked(
        self, view: GroupView, stream: str, up_to: int, keep: Sequence[str] = ()
    ) -> tuple[Ledger, dict[str, Any]]:
        """Expire leases, and with ack=onCommit ack the batches up to `up_to`."""
        return ack_committed_leases(
            self.ledger,
            view,
            stream,
            up_to if self.options.ack_on_commit else 0,
            runner=None if self._first else self.runner,
            keep=keep,
        )

    def ack_committed(self, stream: str, up_to: int) -> None:
        """Ack unsettled messages of the batches up to `up_to` (ack=onCommit)."""
        if not self.options.ack_on_commit or up_to == 0:
            return

        def compute(view: GroupView) -> Update[int]:
            ledger, info = self._acked(view, stream, up_to)
            return ledger if info else None, info.get("messages", 0), info

        self.ledger.update(compute, watch=ack_signals)
        self._first = False

    def _extend_in_background(self, lease_id: str, timeout: int, limit: int) -> LeaseKeepAlive:
        return LeaseKeepAlive(lambda wanted: extend(self.ledger, lease_id, wanted), timeout, limit)

    def _end_batch(self) -> None:
        if self._alive is not None:
            self._alive.stop()
            self._alive = None
