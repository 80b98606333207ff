"""A consumer group: leasing from a queue and settling, each one optimistic commit on the group's ledger."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_mq.errors import CorruptLog, GroupBlocked, GroupNotFound
from spark_mq.lease import Lease, SettleResult
from spark_mq.ledger import acquire as selection
from spark_mq.ledger import admin as moving
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.commit_info import lease_note
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger, LedgerHeader, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleCommand, SettleOutcome
from spark_mq.ledger.stats import GroupStats, stats_of
from spark_mq.maintenance.retention import without_lost
from spark_mq.operations import acquire as waiting
from spark_mq.operations import administer
from spark_mq.operations.acquire import LeaseOptions
from spark_mq.operations.settle import Leases, extend, settle_named
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.util.validation import (
    SECOND,
    check_count,
    check_duration,
    check_error,
    check_lease_id,
    check_name,
    check_position,
    micros,
    nearest,
)
from spark_mq.worker import WorkSummary, work

if TYPE_CHECKING:
    from spark_mq.queue import Queue

__all__ = ["ConsumerGroup"]

_log = logging.getLogger(__name__)

LEASE_PAUSE = 0.02
"""Seconds to wait after a lost race."""


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


class ConsumerGroup:
    """One group of a queue. Get it from :meth:`spark_mq.Queue.group`. Cheap; thread-safe; picklable; makes the group at the first lease."""

    def __init__(self, queue: Queue, name: str = "default", start: str | int | datetime = "earliest") -> None:
        self.queue = queue
        self.name = check_name("group", name)
        self.start = check_position("start", start)
        self._made = False

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.queue.path!r}, {self.name!r})"

    # -- the group itself

    def ensure(self) -> ConsumerGroup:
        """Makes the group if it is not there, at its starting position. A compare-and-swap of the whole table: no trim slips between."""
        if not self._made and self.queue.leases.read(self.name).ledger is None:

            def step(stored: LedgerSnapshot) -> tuple[Ledger | None, bool, Mapping[str, Any]]:
                if stored.ledger is not None:
                    return None, False, {}
                index, broken = self.index_so_far()
                if broken is not None and self.start != "earliest":
                    raise broken  # where that is only the whole log can tell
                floor = max(self._position(index, self.start) - 1, self.queue.horizon())
                head = LedgerHeader(floor=floor, forgotten=index.count(0, floor), settings=asdict(self.queue.settings.group))
                return Ledger(head), True, {"operation": "create group"}

            if change(self.queue.leases, self.name, step, whole_table=True):
                self._tell_made()
        self._made = True
        return self

    def _tell_made(self) -> None:
        """A group is made by its first use, also by that of a misspelt name: then a warning. Numbered names are alike on purpose."""
        stem = _unnumbered(self.name)
        alike = nearest(self.name, (name for name in self.queue.groups() if _unnumbered(name) != stem))
        if alike:
            _log.warning("group %r is made in %s, at %s: is %r meant, which is there? If so, drop_group(%r)",
                         self.name, self.queue.path, self.start, alike, self.name)  # fmt: skip
        else:
            _log.info("group %r is made in %s, at %s", self.name, self.queue.path, self.start)

    def exists(self) -> bool:
        """Whether the group has been made."""
        return self.queue.leases.read(self.name).ledger is not None

    def seek(self, to: str | int | datetime) -> None:
        """Moves the group to "earliest", "latest", a sequence or an instant: all before is skipped, all from there on is unread.

        An instant is an aware datetime, or text with a zone like "2026-01-31T12:00:00Z", as for the option startingPosition.
        Fences all live leases. Not below the trim horizon.
        """
        target = check_position("to", to)
        self.ensure()

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, None, Mapping[str, Any]]:
            index = self.queue.log.index()
            # Not past the tail either: that would skip what is yet to be published.
            position = min(max(self._position(index, target), self.queue.horizon() + 1), index.tail + 1)
            return moving.seek(self.found(stored), index, position), None, {"operation": "seek", "ranges": f"{position}-"}

        change(self.queue.leases, self.name, step, whole_table=True)

    def configure(self, **settings: Any) -> GroupSettings:
        """Changes settings of the group (those of :class:`~spark_mq.GroupSettings`) and returns all of them. One commit.

        Every worker obeys them from its next operation on; live leases keep their deadline. Raises InvalidOption.
        """
        return administer.configure(self, settings)

    @property
    def settings(self) -> GroupSettings:
        """The settings as they are now; of a group that is not there yet, those it would be made with."""
        return self.rules(self.queue.leases.read(self.name))

    def unblock(self, to: str, sequences: Iterable[int] | None = None) -> int:
        """Where the group blocks (``on_exhausted="block"``): what becomes of the blocked messages, all or some. Returns how many.

        ``to``: "retry" (delivered again, with counts from zero), "dead_letter" or "drop". Each first message blocks what lies past it.
        """
        return administer.unblock(self, to, sequences)

    def _position(self, index: MessageIndex, start: str | int | datetime) -> int:
        if isinstance(start, datetime):
            return index.first_published_since(micros(start))
        return {"earliest": 0, "latest": index.tail + 1}[start] if isinstance(start, str) else start

    # -- leasing

    def lease(
        self,
        worker_id: str,
        *,
        max_messages: int = 1,
        wait: Any = 0,
        max_poll_interval: Any = "500ms",
        visibility_timeout: Any = None,
        auto_ack: bool = False,
        fail_on_data_loss: bool = True,
    ) -> Lease | None:
        """Leases up to `max_messages` and hides them from the rest of the group until settled or expired; None if nothing is due.

        Never empty; it may be shorter than asked. ``wait``: how long to wait for messages. What happens in this process, and what time
        brings, is noticed at once; what other processes do, within ``max_poll_interval``. ``auto_ack``: settled at once, so at most once:
        the mode that loses messages, when a worker dies after the lease. Raises GroupBlocked when a cap of the group lets nothing be
        leased, or it blocks; DataLossError when the queue's hard limit has dropped messages unsettled, unless ``fail_on_data_loss`` is off:
        then they count as lost.
        """
        check_name("worker_id", worker_id)
        check_count("max_messages", max_messages)
        patience = check_duration("wait", wait, zero=True) / SECOND
        poll = check_duration("max_poll_interval", max_poll_interval) / SECOND
        timeout = None if visibility_timeout is None else check_duration("visibility_timeout", visibility_timeout)
        deadline = time.monotonic() + patience
        lease, why = waiting.take(
            self, LeaseOptions(worker_id, max_messages, timeout, fail_on_data_loss), lambda: deadline - time.monotonic(), poll
        )
        if lease is None and why:
            raise GroupBlocked(
                f"group {self.name!r} may lease nothing: {why}. Settle what is leased, or configure(...) the cap; what blocks "
                "needs unblock(...)", group=self.name, blocked_because=why,
            )  # fmt: skip
        if lease is not None and auto_ack:
            lease.ack()
        return lease

    def work(self, handler: Callable[[Lease], Any], **options: Any) -> WorkSummary:
        """Leases and handles messages until told to stop: see :func:`spark_mq.worker.work` for the options."""
        return work(self, handler, **options)

    def grant(self, request: Callable[[int, int], selection.AcquireRequest], fail_on_data_loss: bool = True) -> tuple[selection.Grant, int]:
        """Commits a lease; `request` makes it from (now, visibility timeout), in microseconds. Returns the grant and its deadline."""

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, tuple[selection.Grant, int], Mapping[str, Any]]:
            ledger, rules = self.found(stored), self.rules(stored)
            now = self.queue.now()
            wanted = request(now, rules.visibility_timeout)
            folded = rules_of.fold(ledger, now, rules)
            kept = without_lost(self, folded, fail_on_data_loss)
            index, broken = self.index_so_far()
            after, grant = selection.lease(kept, index, now, rules, wanted)
            if broken is not None and not grant.ranges:
                raise broken
            note = lease_note(wanted, grant.ranges) if grant.ranges else {"operation": "cut"}
            return after if grant.ranges or kept is not folded else None, (grant, wanted.expires_at), note

        return change(self.queue.leases, self.name, step, pause=LEASE_PAUSE)

    def index_so_far(self) -> tuple[MessageIndex, CorruptLog | None]:
        """The index, and what is wrong with the commit behind it: messages before a broken commit go on."""
        try:
            return self.queue.log.index(), None
        except CorruptLog as error:
            known = self.queue.log.known()
            if error.data["version"] is None or error.data["version"] <= known.version:
                raise
            return known, error

    def verified(self, ranges: Sequence[Range], lease_id: str, *, whole: bool = False) -> tuple[Range, ...]:
        """The ranges whose files can be read. Messages of a missing or corrupt file are made dead, at once, with that reason.

        ``whole``: looks at all bytes, not just at the footers, where reading has failed already.
        """
        index, good, bad = self.queue.log.index(ranges[-1].last), [], []
        for r in ranges:
            for piece in index.slices(r.first, r.last):
                for sound, why in self.queue.check_slice(piece, index.file_at(piece.first).rows, whole):
                    part = r.part(sound.first, sound.first + sound.rows - 1, index)
                    if why is None:
                        good.append(part)
                    else:
                        bad.append((part, why))
        for part, why in bad:
            _log.error("group %s: messages %d..%d cannot be read and are dead: %s", self.name, part.first, part.last, why)
            self.settle([SettleCommand(REJECT, lease_id, [(part.first, part.last)], error=why, reason="payload unreadable")])
        return tuple(good) if bad else tuple(ranges)

    # -- settling: each call is one commit at most, those of several threads share one

    def ack(self, leases: Leases, sequences: Iterable[int] | None = None, *, message_ids: Iterable[str] | None = None) -> SettleResult:
        """Settles messages as done. Raises LeaseLost for what is not held; the rest is settled all the same.

        ``leases``: a lease id, a Lease, several of these, or {lease id: sequences, or None for all that it holds}. ``sequences`` name some
        messages of one lease; ``message_ids``, of any: all held messages that have one of the ids.
        """
        return settle_named(self, leases, sequences, message_ids, {"verb": ACK})

    def nack(
        self,
        leases: Leases,
        sequences: Iterable[int] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
        delay: Any = None,
        error: str | None = None,
    ) -> SettleResult:
        """Gives messages back as failed, due again after the group's retry policy or `delay`; past a limit they are dead. As :meth:`ack`.

        Naming messages blames them; without, the culprit is unknown.
        """
        pause = None if delay is None else check_duration("delay", delay, zero=True)
        how = {"verb": NACK, "delay": pause, "error": check_error(error), "jitter": random.random()}
        return settle_named(self, leases, sequences, message_ids, how)

    def reject(
        self,
        leases: Leases,
        sequences: Iterable[int] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
        error: str | None = None,
    ) -> SettleResult:
        """Makes messages dead at once: they can never be processed. As :meth:`ack`."""
        return settle_named(self, leases, sequences, message_ids, {"verb": REJECT, "error": check_error(error)})

    def release(self, leases: Leases) -> SettleResult:
        """Gives leases back as if they had never been: uncounted, due at once. As :meth:`ack`."""
        return settle_named(self, leases, None, None, {"verb": RELEASE})

    def extend(self, lease_id: str, timeout: Any = None) -> SettleResult:
        """Moves the deadline of a lease to now + `timeout` (its group's visibility timeout), never earlier. Counts nothing."""
        given = None if timeout is None else check_duration("timeout", timeout)
        return extend(self, check_lease_id(lease_id), given)[0]

    def settle(self, wanted: Sequence[SettleCommand]) -> list[SettleOutcome]:
        """Several settles in one commit, in order. Raises nothing for what is not held: see each Outcome."""
        return self.queue.combiner(self).do(wanted)

    def expire(self) -> int:
        """Folds leases past their deadline now, not at the next operation. Returns how many messages they held.

        Settles, too, what has reached its own expires_at, and sets aside what is not due yet.
        """

        def step(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
            ledger = self.found(stored)
            now = self.queue.now()
            after = rules_of.fold(ledger, now, self.rules(stored))
            after = selection.tidy(after, self.queue.log.index(), now)
            before_count, after_count = (x.count(x.is_state(LEASED)) for x in (ledger, after))
            return after, before_count - after_count, {"operation": "expire", "messages": before_count - after_count}

        return change(self.queue.leases, self.name, step, pause=LEASE_PAUSE) if self.exists() else 0

    # -- looking

    def rules(self, stored: LedgerSnapshot) -> GroupSettings:
        """The settings of the group, as stored with it."""
        return GroupSettings.stored(stored.ledger.head.settings) if stored.ledger is not None else self.queue.settings.group

    def found(self, stored: LedgerSnapshot) -> Ledger:
        """The ledger that was read. Raises GroupNotFound if there is none."""
        if stored.ledger is None:
            raise GroupNotFound(f"there is no consumer group {self.name!r}; it is made by its first lease", group=self.name)
        return stored.ledger

    def ledger(self) -> Ledger:
        """The group's ledger as it would be after the next operation's fold; that of a new group if it is not there."""
        stored = self.queue.leases.read(self.name)
        ledger = stored.ledger if stored.ledger is not None else Ledger(LedgerHeader(floor=self.queue.horizon()))
        return rules_of.fold(ledger, self.queue.now(), self.rules(stored))

    def stats(self) -> GroupStats:
        """Counts of the group as of now, without a commit."""
        rules = self.rules(self.queue.leases.read(self.name))
        return stats_of(self.ledger(), self.queue.log.index(), rules, self.queue.now())

    # -- in a stream

    def for_each_batch(
        self,
        process: Callable[..., Any],
        on_error: str = "nack",
        also: Iterable[ConsumerGroup] = (),
        ack: str = "after",
        *,
        reader: str = "spark",
    ) -> Callable[[Any, int], None]:
        """A foreachBatch function that settles what `process(batch, lease)` leaves: see :func:`spark_mq.spark.for_each_batch`."""
        from spark_mq.spark.foreach_batch import for_each_batch

        return for_each_batch(self, process, on_error=on_error, also=also, ack=ack, reader=reader)
