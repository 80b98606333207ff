"""What an onlooker notes of a world, and what it never may see.

The reference (``reference.py``) runs each command that a process runs, and must come to the same
group as the ledger. It shares no code with it. Checked beside that at each step: no ack without a
durable effect; written once across one crash of a batch; handed out at most n times, each counted
before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spark_mq.ledger.acquire import AcquireRequest
from spark_mq.ledger.ranges import AVAILABLE, LEASED, SETTLED, TRANSFERRING, Range
from spark_mq.ledger.stream_batch import StreamBatch, fence_app_id, parse_lease_id

from .actors import Event
from .following import Follower
from .reference import ReferenceGroup
from .storage import Store

Batch = tuple[str, Any]
"""A write to a sink: the transaction's app and version, or a worker's lease."""


class Notes(NamedTuple):
    """By message, in the order of sequence, unless reported otherwise."""

    handed: tuple[int, ...]
    """How often it reached user code, but for deliveries that were given back uncounted."""
    blamed: tuple[bool, ...]
    """Failed by itself: named, or alone in its lease."""
    copies: tuple[frozenset[Batch], ...]
    seen: tuple[tuple[str, int], ...] = ()
    """Of each app the last version that its sink has seen: it skips all up to that."""
    trouble: frozenset[tuple[Batch, int]] = frozenset()
    """Batches that have had a crash.

    With 2: more than one, or their lease expired; with -1 - m: message m was given back.
    """
    excused: frozenset[int] = frozenset()
    """Messages that the owner has changed."""


class Onlooker:
    """Looks at a group as its ``reference`` should be."""

    def __init__(self, reference: ReferenceGroup, *, group: str = "g", alone: bool = False) -> None:
        self.reference, self.group = reference, group
        self.messages = messages = tuple(m.seq for m in reference.messages)
        self.alone = alone
        """Whether one process works at a time: then expiry is no excuse, for nobody can have leased
        meanwhile what has expired.
        """
        self.at = {m: at for at, m in enumerate(messages)}
        n = len(messages)
        self.begin = Notes((0,) * n, (False,) * n, (frozenset(),) * n)

    # -- one step

    def note(self, notes: Notes, before: Store, after: Store, events: Sequence[Event]) -> Notes:
        """What is noted after a step. Raises AssertionError."""
        letters = after.dead_sequences() if before.dead is not after.dead else ()
        assert len(letters) == len(set(letters)), f"the dead letters hold one twice: {letters}"
        new = _Noting(self, notes, before, after)
        for event, *given in events:
            getattr(new, event)(*given)
        return new.finish()

    def crash(self, notes: Notes, batch: Batch | None) -> Notes:
        """Notes that the process has died, or is taken for dead, that had the batch in hand."""
        if batch is None:
            return notes
        level = 2 if (batch, 1) in notes.trouble else 1
        return notes._replace(trouble=notes.trouble | {(batch, level)})

    # -- a state

    def key(self, notes: Notes, store: Store) -> Hashable:
        """All that is noted, but of what is settled no more than where it was written."""
        view = store.view(self.group, self.messages)
        known = zip(view, notes.copies, notes.handed, notes.blamed, strict=True)
        each = tuple(
            copies if row.state == SETTLED else (copies, *rest) for row, copies, *rest in known
        )
        return each, notes.seen, notes.trouble, notes.excused


def batch_of(lease_id: str | None) -> Batch:
    """Who writes the messages of a lease: the stream's batch, or the worker."""
    parts = parse_lease_id(lease_id or "")
    return (parts[0], parts[1]) if parts else ("worker", lease_id)


class _Noting(Follower):
    def __init__(self, onlooker: Onlooker, notes: Notes, before: Store, after: Store) -> None:
        self.onlooker, self.notes, self.now = onlooker, notes, after.now
        self.before, self.after = before, after
        self.handed, self.copies, self.seen = [*notes.handed], [*notes.copies], dict(notes.seen)
        self.trouble, self.excused = set(notes.trouble), set(notes.excused)
        self.settled: set[int] = set()
        """What a settle has settled, or returned, in this step."""
        self.old = before.view(onlooker.group, onlooker.messages)
        self.view = after.view(onlooker.group, onlooker.messages)
        self.group: ReferenceGroup | None = None
        """The reference after the command that has changed the ledger."""

    def finish(self) -> Notes:
        book, blamed = self.after.book(self.onlooker.group), self.notes.blamed
        if book is not None and book is not self.before.book(self.onlooker.group):
            group = self.group or self._as_before()
            group.check_ledger(book.ledger)
            group.check_limits()
            group.check_held_in_order()
            for at, (a, b) in enumerate(zip(self.old, self.view, strict=True)):
                self._moved(at, a, b)
            blamed = tuple(m.own_failure for m in group.messages)
        return Notes(
            tuple(self.handed), blamed, tuple(self.copies), tuple(sorted(self.seen.items())),
            frozenset(self.trouble), frozenset(self.excused),
        )  # fmt: skip

    def _moved(self, at: int, a: Range, b: Range) -> None:
        if b.delivery_count < a.delivery_count:
            self.handed[at] = max(0, self.handed[at] - a.delivery_count + b.delivery_count)
        late = a.state == LEASED and (a.expires_at or 0) < self.now
        stays = b.state == LEASED and batch_of(a.lease_id) == batch_of(b.lease_id)
        ended = b.state != SETTLED and not stays and at not in self.settled
        if late and ended and not self.onlooker.alone:
            self.trouble.add((batch_of(a.lease_id), 2))
        if b.state == SETTLED != a.state and at not in self.excused:
            where = f"message {at} is settled"
            if a.state == TRANSFERRING:
                routed = self.onlooker.messages[at] in self.after.dead_sequences()
                assert routed, f"{where} as routed, and not in the dead-letter queue"
            else:
                assert self.copies[at], f"{where}, and no sink has it"

    def _as_before(self) -> ReferenceGroup:
        """The group before this step."""
        known = self.onlooker.reference
        messages = [
            replace(m, own_failure=blamed)
            for m, blamed in zip(known.messages, self.notes.blamed, strict=True)
        ]
        sizes = {str(r.lease_id): r.lease_size for r in self.old if r.lease_size}
        group = replace(known, messages=messages, lease_sizes=sizes, counters={}, streak=[])
        group.see(self.old)
        if (book := self.before.book(self.onlooker.group)) is not None:
            group.see_head(book.head)
        return group

    # -- what processes did

    def sink(self, batch: Batch, rows: tuple[int, ...]) -> None:
        """A write to the sink: skipped if it has seen the version."""
        app, version = batch
        if app != "worker":
            if version <= self.seen.get(app, -1):
                return
            self.seen[app] = version
        for m in rows:
            at = self.onlooker.at[m]
            for other in self.copies[at] - {batch}:
                excuses = {(other, 2), (batch, 2), (other, -1 - at), (batch, -1 - at)}
                twice = f"message {at} was written by {other} and by {batch}, which need not be"
                assert excuses & self.trouble, twice
            self.copies[at] |= {batch}

    def hand(self, lease_id: str, rows: tuple[tuple[int, int], ...], until: int) -> None:
        """Messages reach user code, each with a delivery count."""
        for m, count in rows:
            at = self.onlooker.at[m]
            self.handed[at] += 1
            where = f"message {at} is handed out to {lease_id}, delivery {count}"
            row = self.view[at]
            known = row.state, row.lease_id, row.delivery_count, row.expires_at
            assert known == (LEASED, lease_id, count, until), f"{where}, but the ledger says {row}"
            assert count >= self.handed[at], f"{where}, for the {self.handed[at]}. time"

    def ran(self, name: str, command: Any, result: Any, wrote: bool) -> None:
        """A command: the reference runs it, too."""
        if name != self.onlooker.group:
            return
        assert self.group is None, f"two commands in one step, of which the second is {command}"
        group = self._as_before()
        self.follow(group, command, result)
        if wrote:
            self.group = group

    def acked(self) -> set[str]:
        """Those whose messages are settled now."""
        return {
            str(a.lease_id)
            for a, b in zip(self.old, self.view, strict=True)
            if a.state in (LEASED, AVAILABLE) and b.state == SETTLED and a.lease_id
        }

    def mark(self, batch: StreamBatch) -> int:
        number, _ = dict(self.before.marks).get(fence_app_id(batch.stream), (0, 0))
        return int(number)

    def _lease(self, group: ReferenceGroup, command: Any, grant: Any) -> None:
        (self._expire if command.batch is None else self._ack)(group, command, grant)
        wanted = AcquireRequest(
            grant.lease_id, command.worker_id, command.max_messages, grant.expires_at,
            command.max_bytes, int(command.batch is not None), command.max_sequence,
            command.due_by,
        )  # fmt: skip
        taken = group.inside((r.first, r.last) for r in grant.ranges)
        book = self.after.book(self.onlooker.group)
        group.lease(taken, grant.blocked_because, wanted, self.now, book and book.ledger)

    def _settle(self, group: ReferenceGroup, command: Any, outcomes: Any) -> None:
        super()._settle(group, command, outcomes)
        for part, outcome in zip(command.parts, outcomes, strict=True):
            for m in group.inside([*outcome.ranges, *outcome.returned]):
                at = self.onlooker.at[m]
                self.settled.add(at)
                if part.verb in ("nack", "release"):
                    self.trouble.add((batch_of(part.lease_id), -1 - at))

    def _seek(self, group: ReferenceGroup, command: Any, result: None) -> None:
        """All begins again, but what is being copied to the dead-letter queue is left alone."""
        super()._seek(group, command, result)
        for at, row in enumerate(self.old):
            if row.state != TRANSFERRING:
                self.copies[at], self.handed[at] = frozenset(), 0

    def _intervene(self, group: ReferenceGroup, command: Any, done: Any) -> None:
        """A lease that held a message may no longer settle it."""
        super()._intervene(group, command, done)
        for m in group.inside(command.intervals) if done.changed else ():
            at = self.onlooker.at[m]
            self.excused.add(at)
            self.trouble.add((batch_of(self.old[at].lease_id), -1 - at))
