"""The rules of the streaming source, without Spark: when a batch leases anew, when it is a replay, what is acked when.

The offset is ``{"batch": n, "stream": uuid}``; it is in Spark's log before the lease of batch n exists. A batch leases anew only
in the runner whose own `latest` gave the offset out; in any other it is a replay, which takes over what the batch still holds. Marks
in ``leases/`` (``Transaction(stream, 2n + 1)`` for a lease, ``2n + 2`` for a replay) fence zombies.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow.compute as pc

from spark_mq.errors import CommitConflict, InvalidOption, StreamFenced
from spark_mq.group import LEASE_PAUSE, ConsumerGroup
from spark_mq.ledger import acquire as selection
from spark_mq.ledger import settle as settling
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.commit_info import lease_note, settle_note
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import LEASED, WAITING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, SettleCommand, SettleOutcome
from spark_mq.ledger.stats import stats_of
from spark_mq.maintenance.retention import without_lost
from spark_mq.operations.keep_alive import LeaseKeepAlive
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.streaming.auto_ack import left_upto
from spark_mq.streaming.offset import lease_stream, mark_of, of_one_queue
from spark_mq.util.validation import SECOND

__all__ = ["BatchPlan", "Share", "StreamOptions", "StreamSource"]

_log = logging.getLogger(__name__)

PROGRESS: Final = ("ready", "delayed", "in_flight", "dead", "blocked", "oldest_unsettled_age", "blocked_because")
"""What of a group's stats the stream's progress shows."""

REPLAY_SPARE: Final = 1
"""Attempts kept back for a replay of the batch."""


Share = tuple[int, int | None]
"""Messages and bytes that a lease may hold, at most."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How one stream leases. Durations in microseconds; ``visibility_timeout`` None: the group's."""

    worker_id: str = "spark"
    max_messages: int = 100_000
    max_bytes: int | None = None
    visibility_timeout: int | None = None
    max_lease_duration: int = 1800 * SECOND
    ack_on_commit: bool = True
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch reads: slices, each with the range it belongs to, under one lease."""

    lease_id: str = ""
    expires_at: int = 0
    slices: tuple[tuple[FileSlice, Range], ...] = ()


class StreamSource:
    """One runner of one stream: the object behind the hooks of Spark's streaming reader.

    ``keep_alive(lease_id, timeout, limit)`` makes what keeps a lease alive, for tests; by default a :class:`LeaseKeepAlive`. ``runner``:
    its
    nonce.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        options: StreamOptions,
        *,
        keep_alive: Callable[[str, int, int], Any] | None = None,
        runner: str | None = None,
    ) -> None:
        self.group = group
        self.options = options
        self.runner = runner or uuid.uuid4().hex[:12]
        self.could_take = 0
        """What a lease would have got at the last look."""
        self._keep_alive = keep_alive or self._extend_in_background
        self._offered: set[tuple[str, int]] = set()
        self._planned: dict[tuple[str, int], BatchPlan] = {}
        self._alive: Any = None
        self._bound: tuple[int, int] | None = None  # for AvailableNow: (tail, instant) at the start
        self._looked: tuple[Ledger, MessageIndex, GroupSettings, int] | None = None
        self._checked = False
        self._first = True

    def initial(self) -> dict[str, Any]:
        """The offset before the first batch."""
        self._check()
        return {"batch": 0, "stream": str(uuid.uuid4())}

    def bound(self) -> None:
        """From now on only what is there and due at this moment counts (Trigger.AvailableNow)."""
        self._check()
        self._bound = (self.group.queue.log.index().tail, self.group.queue.now())

    @property
    def bounded(self) -> bool:
        return self._bound is not None

    def latest(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """The offset of the next batch if something is due, else `start`. Leases nothing.

        That Spark asks means that batch n has been committed: what of its lease is left is acked, here or with the next lease.
        """
        stream, n = of_one_queue(start)
        if self.look(stream, n):
            self._offered.add((stream, n + 1))
            return {"batch": n + 1, "stream": stream}
        self.ack_done(stream, n)
        return dict(start)

    def look(self, stream: str, n: int) -> bool:
        """Ends batch n; whether there is something to lease for the next."""
        self._check()
        self._end_batch()
        self._tell_lost()
        return self._available(stream, n)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> BatchPlan:
        """What the batch from `start` to `end` reads; the same answer for repeated calls. Raises StreamFenced."""
        stream, n = of_one_queue(end)
        _, before = of_one_queue(start)
        self._check()
        if n == before:
            return BatchPlan()
        key = (stream, n)
        if key not in self._planned:
            plan = self.lease(stream, n) if key in self._offered else self.replay(stream, n)
            self._planned = {key: plan}
        return self._planned[key]

    def plans(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[ConsumerGroup, BatchPlan]]:
        """What the batch reads, by queue."""
        return [(self.group, self.plan(start, end))]

    def stop(self) -> None:
        """Ends the background extension."""
        self._end_batch()

    def progress(self) -> dict[str, Any]:
        """What the group looked like at the last look, for the stream's progress."""
        if self._looked is None:
            return {}
        stats = asdict(stats_of(*self._looked))
        return {name: stats[name] for name in PROGRESS}

    # -- the steps

    def _check(self) -> None:
        if self._checked:
            return
        attempts = self.group.rules(self.group.queue.leases.read(self.group.name)).max_delivery_attempts
        if attempts is not None and attempts < 3:
            raise InvalidOption(
                f"group {self.group.name!r} has max_delivery_attempts={attempts}; a stream needs 3 at least (one attempt is kept "
                "for the replay of a batch). Use a group or queue with 3 or more", option="max_delivery_attempts", value=attempts,
            )  # fmt: skip
        self.group.ensure()
        self._checked = True

    def _available(self, stream: str, n: int) -> bool:
        """Whether a lease would get something now, by the very rules of leasing. What batch n has left counts as acked already."""
        while True:
            stored = self.group.queue.leases.read(self.group.name)
            now, rules = self.group.queue.now(), self.group.rules(stored)
            with contextlib.suppress(CommitConflict):  # what was read has been cleaned away, or marked since: it is read again
                ledger, _ = self._acked(stored, stream, n)
                break
        index, broken = self.group.index_so_far()
        _, grant = selection.lease(ledger, index, now, rules, self._request("", now, rules))
        if broken is not None and not grant.ranges:
            raise broken
        self._looked = (ledger, index, rules, now)
        self.could_take = grant.message_count
        return bool(grant.ranges)

    def _request(self, lease_id: str, now: int, rules: GroupSettings, share: Share | None = None) -> selection.AcquireRequest:
        tail, due_by = self._bound if self._bound else (None, None)
        messages, size = share or (self.options.max_messages, self.options.max_bytes)
        return selection.AcquireRequest(lease_id, self.options.worker_id, messages, now + self._timeout(rules),
                                 max_bytes=size, spare=REPLAY_SPARE, upto=tail, due_by=due_by)  # fmt: skip

    def _timeout(self, rules: GroupSettings) -> int:
        return min(self.options.visibility_timeout or rules.visibility_timeout, self.options.max_lease_duration)

    def _tell_lost(self) -> None:
        """Where the queue has a hard limit: raises DataLossError for what it has cut off, or settles that as lost."""
        if self.group.queue.settings.hard_retention is None:
            return

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, None, Mapping[str, Any]]:
            ledger = without_lost(self.group, self.group.found(stored), self.options.fail_on_data_loss)
            return ledger, None, {"operation": "cut"}

        change(self.group.queue.leases, self.group.name, step)

    def lease(self, stream: str, n: int, share: Share | None = None) -> BatchPlan:
        """A fresh lease for batch n, and the ack of what came before it, in one commit. ``share``: messages and bytes, at most."""
        app, lease_id = mark_of(stream), f"{stream}/{n}/{self.runner}"

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, tuple[selection.Grant, int], Mapping[str, Any]]:
            self._fence(stored, app, stream, n, 2 * n)
            now, rules = self.group.queue.now(), self.group.rules(stored)
            wanted = self._request(lease_id, now, rules, share)
            acked, note = self._acked(stored, stream, n - 1)
            after, grant = selection.lease(acked, self.group.index_so_far()[0], now, rules, wanted)
            if grant.ranges:
                note = {**note, **lease_note(wanted, grant.ranges)}
            return after if note else None, (grant, wanted.expires_at), note

        grant, expires_at = change(
            self.group.queue.leases, self.group.name, step, mark=lambda got: (app, 2 * n + 1) if got[0].ranges else None, pause=LEASE_PAUSE
        )
        self._first = False
        return self._granted(lease_id, expires_at, grant.ranges)

    def replay(self, stream: str, n: int) -> BatchPlan:
        """Batch n once more: takes over what it still holds; never leases anew, for a sink may skip what it has seen."""
        app, lease_id, prefix = mark_of(stream), f"{stream}/{n}/{self.runner}", f"{stream}/{n}/"

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, tuple[list[Range], int, bool], Mapping[str, Any]]:
            mark = self._fence(stored, app, stream, n, 2 * n + 2)
            now, rules = self.group.queue.now(), self.group.rules(stored)
            expires_at = now + self._timeout(rules)
            ledger = self.group.found(stored)
            held = {r.lease_id for r in ledger.select(rules_of.held_by_batch(ledger, prefix)) if r.lease_id}
            acked, _ = self._acked(stored, stream, n - 1, held)
            after, granted = rules_of.take_over(
                acked, now, rules, prefix, lease_id=lease_id, worker_id=self.options.worker_id, expires_at=expires_at,
                granted_before=mark == 2 * n + 2,
            )  # fmt: skip
            note = {"operation": "replay", "lease_id": lease_id, "worker_id": self.options.worker_id,
                    "messages": sum(r.message_count for r in granted)}  # fmt: skip
            return after, (granted, expires_at, mark != 2 * n + 2), note

        granted, expires_at, _ = change(
            self.group.queue.leases, self.group.name, step, mark=lambda got: (app, 2 * n + 2) if got[2] else None, pause=LEASE_PAUSE
        )
        _log.warning("stream %s: batch %d runs again with %d messages", stream, n, sum(r.message_count for r in granted))
        if self._bound is not None:  # what the replay gave back was there at the start, and due
            self._bound = (self._bound[0], self.group.queue.now())
        self._first = False
        return self._granted(lease_id, expires_at, granted, whole=True)  # a page that no task can read may be why it died

    def _fence(self, stored: LedgerSnapshot, app: str, stream: str, n: int, most: int) -> int | None:
        """The stream's mark. Raises StreamFenced if it is above `most`: another driver has come further on this checkpoint."""
        mark = self.group.queue.leases.mark(stored, app)
        if mark is not None and mark > most:
            raise StreamFenced(
                f"batch {n} of stream {stream} is fenced: another driver has leased batch {(mark - 1) // 2} of this checkpoint already. "
                "Either it still runs, then leave it the work, or the checkpoint was copied or rolled back: start with a new one",
                stream=stream, batch=n, mark=mark,
            )  # fmt: skip
        return mark

    def _granted(self, lease_id: str, expires_at: int, ranges: Sequence[Range], *, whole: bool = False) -> BatchPlan:
        good = self.group.verified(ranges, lease_id, whole=whole) if ranges else ()
        if not good:
            return BatchPlan(lease_id, expires_at)
        rules = self.group.rules(self.group.queue.leases.read(self.group.name))
        self._alive = self._keep_alive(lease_id, self._timeout(rules), self.options.max_lease_duration)
        index = self.group.queue.log.index(good[-1].last)
        return BatchPlan(lease_id, expires_at, tuple((piece, r) for r in good for piece in index.slices(r.first, r.last)))

    # -- acking what Spark has committed

    def _done(self, stored: LedgerSnapshot, stream: str, upto: int) -> list[str]:
        """The leases of this stream's batches up to one that may be acked: this runner's own, and at its start those of dead ones.

        Later, another runner's lease is a successor's: not this driver's to settle. Nor is what a batch has left unsettled on purpose.
        """
        ledger = self.group.found(stored)
        found = ledger.where(pc.and_(ledger.is_state(LEASED, WAITING), pc.starts_with(ledger.column("lease_id"), stream + "/")))
        ids = {r.lease_id for r in ledger.select(found) if r.lease_id}
        parts = {lease_id: lease_stream(lease_id) for lease_id in ids}
        done = sorted((i, p[1]) for i, p in parts.items() if p and p[1] <= upto and (self._first or p[2] == self.runner))
        left = left_upto(self.group.queue.leases, stored, stream) if done else 0
        return [lease_id for lease_id, n in done if n > left]

    def _acked(self, stored: LedgerSnapshot, stream: str, upto: int, keep: Iterable[str] = ()) -> tuple[Ledger, dict[str, Any]]:
        """The ledger with expired leases folded and, in ackMode onCommit, the batches up to one acked; and the note of it."""
        ledger, rules, now = self.group.found(stored), self.group.rules(stored), self.group.queue.now()
        done = self._done(stored, stream, upto) if self.options.ack_on_commit else []
        ledger = rules_of.fold(ledger, now, rules, [*done, *keep])
        settles = [SettleCommand(ACK, lease_id) for lease_id in done]
        outcomes: list[SettleOutcome] = []
        index = self.group.queue.log.index(ledger.frontier)
        for one in settles:
            ledger, outcome = settling.settle(ledger, index, now, rules, one)
            outcomes.append(outcome)
        return ledger, settle_note(settles, outcomes) if settles else {}

    def ack_done(self, stream: str, upto: int) -> None:
        """In ackMode onCommit: acks what is left of the batches up to one."""
        if not self.options.ack_on_commit or upto == 0:
            return

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, None, Mapping[str, Any]]:
            ledger, note = self._acked(stored, stream, upto)
            return ledger if note else None, None, note

        change(self.group.queue.leases, self.group.name, step)
        self._first = False

    def _extend_in_background(self, lease_id: str, timeout: int, limit: int) -> LeaseKeepAlive:
        return LeaseKeepAlive(lambda wanted: self.group.extend(lease_id, wanted / SECOND), timeout, limit)

    def _end_batch(self) -> None:
        if self._alive is not None:
            self._alive.stop()
            self._alive = None
