"""Lease, replay and ack the batches of a stream, without Spark.

The offset is ``{"batch": n, "stream": uuid}``. Spark logs it before the lease of batch n exists. A
batch takes new messages only in the runner whose own `latest` returned the offset. In any other
runner it is a replay, which takes over what the batch still holds. Application transactions in
``leases/`` fence zombies: ``(stream, 2n + 1)`` for a lease, ``(stream, 2n + 2)`` for a replay.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from spark_mq.delta.object_store import canonical_path
from spark_mq.errors import CommitConflict, GroupNotFound, InvalidOption, StorageError
from spark_mq.ledger.acquire import Acquire, Grant, SkipFiltered
from spark_mq.ledger.commands import View
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import SETTLED, Ledger, Range
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.stats import GroupStats, compute_stats, figures_of
from spark_mq.ledger.stream_batch import (
    STREAM_ID,
    AckBatches,
    LeaveBatch,
    Replay,
    StreamBatch,
    rows_held_by_batch,
)
from spark_mq.ledger.transitions import SettleLost
from spark_mq.operations.acquire import Damage, News, find_damage, reject_damaged
from spark_mq.operations.committer import CHECK_SECONDS
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.payloads import FileChecks
from spark_mq.operations.settle import extend
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.streaming.lanes import LaneRuns, lane_runs
from spark_mq.util.clock import MICROSECOND, SECOND
from spark_mq.util.show import show_count
from spark_mq.util.user import identify_worker

_log = logging.getLogger(__name__)


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
        self._last_view: tuple[Ledger, MessageIndex, GroupSettings, int] | None = None
        self._wait_until: int | None = None  # by a rate limit, as of the last look
        self._news = News(ledger)
        self._checked = self._began = False
        self._first = True
        self._checks = FileChecks(ledger.payloads)
        self._isolates = False  # whether the stream has logged that it isolates suspects

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch. Create the group if it does not exist."""
        self._check()
        if not self._began:  # Spark asks twice
            self._warn_settled_before()
        self._began = True
        return {"batch": 0, "stream": str(uuid.uuid4())}

    def _warn_settled_before(self) -> None:
        """Warn that a new checkpoint does not get again what the group has settled."""
        # Other sources begin again with a new checkpoint, and a full refresh relies on it.
        ledger = self.ledger.ledger_in(self.ledger.snapshot())
        settled = ledger.head.settled_count + ledger.count((SETTLED,))
        if settled and ledger.head.counters:  # else the group only began at a later position
            _log.warning(
                "a new checkpoint begins in group %r of queue %s, which has already settled %d "
                "messages. The stream will not get them again. If it should, for example after a "
                "full refresh of its table, stop it, run `spark-mq group seek %s --to earliest "
                "--execute -q %s` or group.seek('earliest'), and start it with a new checkpoint. "
                "Or read with another consumerGroup",
                *(self.ledger.name, self.ledger.queue_path, settled),
                *(self.ledger.name, self.ledger.queue_path),
            )

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

    def may_have_news(self, every: float) -> bool:
        """Return whether a message may be due since the last look, which found none.

        Over a store, a shared look asks for new commits if the last one is `every` seconds old.
        """
        if self._last_view is None or self.ledger.messages.files.is_local:
            return True
        ledger, index, settings, seen_at = self._last_view
        now = self.ledger.now()
        ends = (next_due_at(ledger, index, settings, seen_at), self._wait_until)
        if any(at is not None and at <= now for at in ends):
            return True
        self._last_view = ledger, index, settings, now
        return self._news.has_news(every)

    def rate_wait(self) -> float:
        """Return the seconds until a rate limit lets a batch begin, or 0 if none stops it."""
        at = self._wait_until
        return 0.0 if at is None else max(0.001, (at - self.ledger.now()) / SECOND)

    def has_available(self, stream: str, n: int) -> bool:
        """End batch n. Return whether messages are due for the next one."""
        self._check()
        self._end_batch()
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
        self._end_batch()

    def progress(self) -> dict[str, Any]:
        if self._last_view is None:
            return {}
        return show_progress(self.ledger, compute_stats(*self._last_view))

    def _check(self) -> None:
        if self._checked:
            return
        check_attempts(self.ledger.name, self.ledger.settings())
        self.ledger.create_if_missing()
        self._checked = True

    def _available(self, stream: str, n: int) -> bool:
        """Return whether a lease would get something now, with batch n acked."""
        command, self._checks = self._command(stream, n + 1), FileChecks(self.ledger.payloads)
        self._news.note()
        view = self._view(command, self.ledger.look_at_both())
        if view.horizon > view.ledger.head.start_sequence:
            self.ledger.run(SettleLost(self.options.fail_on_data_loss))
            view = self._view(command)
        log, start = view.log, view.ledger.head.start_sequence
        skips = view.settings.filter is not None or log.replaced_after(start)
        if skips or log.is_addressed_after(start):
            self._skip_filtered(command)
            view = self._view(command)
        # Only the rules of leasing themselves know: caps, isolation and delayed messages all count.
        ledger, grant = command.preview(view)
        self._last_view = (ledger, view.log, view.settings, view.now)
        if view.damage is not None and not grant.ranges:
            raise view.damage
        self.available_count = grant.message_count
        self._wait_until = grant.wait_until
        if not self.ledger.messages.files.is_local:  # the checks run while Spark logs the offset
            unsure = view.files.unsure(view.log, grant.ranges)
            self._checks.start(unsure, view.settings.filter)
        return bool(grant.ranges)

    def _skip_filtered(self, command: Acquire) -> None:
        """Skip what a lease would skip, because a batch of such messages alone would be empty."""
        skip, checks = SkipFiltered(command), FileChecks(self.ledger.payloads)
        while self.ledger.run(skip, checks).unfinished:
            checks.finish()

    def _view(self, command: Acquire, snapshot: LedgerSnapshot | None = None) -> View:
        while True:
            with contextlib.suppress(CommitConflict):  # cleaned away or changed since: read again
                return self.ledger.view(command, snapshot or self.ledger.snapshot())
            snapshot = None

    def _batch(self, stream: str, n: int) -> StreamBatch:
        ack_up_to = n - 1 if self.options.ack_on_commit else 0
        return StreamBatch(stream, n, self.runner, ack_up_to, self._first)

    def _command(self, stream: str, n: int, limits: LeaseLimits | None = None) -> Acquire:
        """Return the command that leases batch n, and acks the batches before."""
        options = self.options
        tail, due_by = self._bound if self._bound else (None, None)
        messages, size = limits or (options.max_messages, options.max_bytes)
        return Acquire(
            identify_worker(options.worker_id),
            messages,
            options.visibility_timeout,
            options.fail_on_data_loss,
            size,
            options.max_lease_duration,
            max_sequence=tail,
            due_by=due_by,
            batch=self._batch(stream, n),
        )

    def lease(self, stream: str, n: int, limits: LeaseLimits | None = None) -> BatchPlan:
        """Lease batch n, and ack those before. Raise StorageError if nothing can be delivered."""
        command, checks = self._command(stream, n, limits), self._checks
        checks.wait(CHECK_SECONDS)  # else a first commit would only ack, and a second one lease
        while (grant := self.ledger.run(command, checks)).unfinished:
            checks.finish()
        if grant.error is not None:
            raise grant.error
        self._first = False
        self._note_suspects(grant)
        return self._granted(grant, grant.ranges)

    def _note_suspects(self, grant: Grant) -> None:
        """Log how far the isolation is, once until it ends."""
        suspects = bool(grant.ranges) and grant.ranges[0].suspect
        if self._last_view is None or suspects == self._isolates:
            return
        text = compute_stats(*self._last_view).isolation
        if suspects and text:
            _log.info("group %s: %s", self.ledger.name, text)
        self._isolates = bool(text)

    def replay(self, stream: str, n: int) -> BatchPlan:
        """Take over what batch n holds, and nothing new. Raise StorageError if out of reach."""
        damage, options = self.find_damage(stream, n), self.options
        grant = self.ledger.run(
            Replay(
                self._batch(stream, n),
                identify_worker(options.worker_id),
                options.visibility_timeout,
                options.max_lease_duration,
            )
        )
        _log.warning(
            "stream %s: batch %d runs again with %s",
            stream,
            n,
            show_count(grant.message_count, "message"),
        )
        if self._bound is not None:  # what the replay gave back was there at the start, and due
            self._bound = (self._bound[0], self.ledger.now())
        self._first = False
        return self._granted(
            grant, reject_damaged(self.ledger, grant.ranges, grant.lease_id, damage)
        )

    def find_damage(self, stream: str, n: int) -> list[Damage]:
        """Read all that batch n holds, before its replay is counted. Raise StorageError."""
        # A page that no task can read may be why the batch died.
        ledger = self.ledger.ledger_in(self.ledger.snapshot())
        rows = rows_held_by_batch(ledger, self._batch(stream, n).prefix)
        try:
            return find_damage(self.ledger, ledger.ranges_at(rows))
        except StorageError:
            self.ack_committed(stream, n - 1)
            raise

    def _granted(self, grant: Grant, ranges: Sequence[Range]) -> BatchPlan:
        lease_id, expires_at = grant.lease_id, grant.expires_at
        if not ranges:
            return BatchPlan(lease_id, expires_at)
        settings, limit = self.ledger.last_settings, self.options.max_lease_duration
        timeout = self.options.visibility_timeout or settings.visibility_timeout // MICROSECOND
        timeout = min(timeout, limit)
        self._alive = self._keep_alive(lease_id, timeout, limit)
        index = self.ledger.messages.index(ranges[-1].last)
        slices = tuple((piece, r) for r in ranges for piece in index.slices(r.first, r.last))
        return BatchPlan(lease_id, expires_at, slices, lane_runs(index, settings, slices))

    def ack_committed(self, stream: str, up_to: int) -> None:
        """Ack unsettled messages of the batches up to `up_to` (ack=on_success)."""
        if self.options.ack_on_commit and up_to:
            self.ledger.run(AckBatches(stream, up_to, None if self._first else self.runner))
            self._first = False

    def _extend_in_background(self, lease_id: str, timeout: int, limit: int) -> KeepAlive:
        keep_alive = KeepAlive(lambda lease_ids, wanted: extend(self.ledger, lease_ids, wanted))
        return keep_alive.add(lease_id, timeout, limit)

    def _end_batch(self) -> None:
        if self._alive is not None:
            self._alive.stop()
            self._alive = None


def leave_batch(group: GroupLedger, stream: str, n: int) -> int:
    """Exclude the leased messages of batch n from the ack on commit. Return their number."""
    try:
        return group.run(LeaveBatch(stream, n))
    except GroupNotFound:  # somebody dropped the group, so nothing is held
        return 0


LeaseLimits = tuple[int, int | None]  # the most messages and bytes that a lease may hold


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How one stream leases. Durations are in microseconds."""

    worker_id: str = "spark"  # a label for people
    max_messages: int = 100_000
    max_bytes: int | None = None
    visibility_timeout: int | None = None  # the group's setting if None
    max_lease_duration: int = 1800 * SECOND  # of one batch
    ack_on_commit: bool = True  # Spark's commit of a batch acks its unsettled messages
    fail_on_data_loss: bool = True  # raise if the queue's hard limit dropped unsettled messages


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices of a batch under one lease, each with its range."""

    lease_id: str = ""
    expires_at: int = 0
    slices: tuple[tuple[FileSlice, Range], ...] = ()
    lane_runs: tuple[LaneRuns, ...] = ()  # of each slice. Empty if the group is not ordered


def check_attempts(group: str, settings: GroupSettings) -> None:
    attempts = settings.max_delivery_attempts
    if attempts is not None and attempts < 3:
        raise InvalidOption(
            f"group {group!r} cannot be read by a stream: its max_delivery_attempts={attempts} "
            f"leaves no attempt for the replay of a batch. Set 3 or more",
            option="max_delivery_attempts",
            value=attempts,
        )


def show_progress(ledger: GroupLedger, stats: GroupStats) -> dict[str, Any]:
    """Return the figures of a group that progress shows, with its queue and name."""
    place = {"source": "spark_mq", "queue": ledger.queue_path, "group": ledger.name}
    names = (name for name, figure in figures_of(type(stats)).items() if figure.progress)
    return place | {name: _plain(getattr(stats, name)) for name in names}


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


# -- offsets

QUEUES: Final = "queues"  # a key that only the offset of a stream over several queues has

_OTHER_PATH: Final = {
    False: "the checkpoint is of a stream over several queues. Give path as a list, such as "
    '["/q/orders"], or use a new checkpoint',
    True: "the checkpoint is of a stream over one queue. Give path as plain text, not as a list, "
    "or use a new checkpoint",
}

_MAX_BATCH: Final = 10**18 - 1  # transaction numbers of so many batches fit into 64 bits


def check_offset(offset: Any) -> tuple[str, int]:
    """Return (stream, batch) of an offset. Raise InvalidOption for another source's offset."""
    stream, n = (
        (offset.get("stream"), offset.get("batch")) if isinstance(offset, Mapping) else (None, None)
    )
    if not (
        isinstance(stream, str)
        and re.fullmatch(STREAM_ID, stream)
        and isinstance(n, int)
        and not isinstance(n, bool)
        and 0 <= n <= _MAX_BATCH
    ):
        raise InvalidOption(
            f"the checkpoint's offset {str(offset)[:200]!r} is not of spark_mq: another source "
            f"wrote it. Use a checkpoint of its own",
            option="checkpointLocation",
            value=str(offset)[:200],
        )
    return stream, n


def parse_offset(offset: Any, *, several: bool = False) -> tuple[str, int]:
    """Return (stream, batch) of an offset over one queue or `several`. Raise InvalidOption."""
    if isinstance(offset, Mapping) and "batch" in offset and (QUEUES in offset) is not several:
        raise InvalidOption(_OTHER_PATH[several], option="path", value=dict(offset))
    return check_offset(offset)


def stream_id_in_queue(
    stream: str, path: str, storage_options: Mapping[str, str] | None = None
) -> str:
    # A link, or s3a instead of s3, is no other queue. A queue in memory has no place.
    place = canonical_path(path, storage_options) if "/" in path else path
    return str(uuid.uuid5(uuid.UUID(stream), place))
