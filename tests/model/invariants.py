"""What an onlooker notes of a world, and what it never may see.

Reads the rows of the twin and what the processes did; shares no code with the ledger. What a lease
may take is judged by the reference (``reference.py``), which sees the rows before it.

Checked at each step: no ack without a durable effect; no two live owners; a settle by anyone but
the owner is refused, and the owner's is not, however late; handed out at most n times, each counted
before; written once across one crash of a batch; only what failed by itself is dead; what is
settled stays so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from spark_mq.ledger.acquire import AcquireRequest
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    SETTLED,
    TRANSFERRING,
    UNREAD,
    Range,
)
from spark_mq.ledger.stream_batch import fence_app_id, parse_lease_id

from .actors import Event, Settled
from .reference import ReferenceGroup, ReferenceMessage
from .storage import Book, Store

Batch = tuple[str, Any]
"""A write to a sink: the transaction's app and version, or a worker's lease."""


class Breaker(NamedTuple):
    """What an onlooker knows of the group's breaker, from what the processes did."""

    streak: tuple[int, ...] = ()
    """The first messages of the leases that failed since the last ack, by sequence."""
    trial_from: int | None = None
    """When the next trial may be leased, or None if the breaker is closed."""
    trial: int | None = None
    failed: int = 0
    paused: bool = False


class Notes(NamedTuple):
    """By message, in the order of sequence, unless reported otherwise."""

    handed: tuple[int, ...]
    top: tuple[int, ...]
    """The delivery count that it was handed out with last."""
    holder: tuple[str | None, ...]
    """The lease that it was granted to last."""
    blamed: tuple[bool, ...]
    """Failed by itself: named, or alone in its lease."""
    copies: tuple[frozenset[Batch], ...]
    seen: tuple[tuple[str, int], ...] = ()
    """Of each app the last version that its sink has seen: it skips all up to that."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Messages that each lease was granted."""
    given: frozenset[tuple[str, int]] = frozenset()
    """(lease, message) that the lease has nacked or released."""
    until: tuple[tuple[str, int], ...] = ()
    """As the holder of each lease knows its deadline."""
    trouble: frozenset[tuple[Batch, int]] = frozenset()
    """Batches that have had a crash.

    With 2: more than one, or their lease expired; with -1 - m: message m was nacked.
    """
    due_from: tuple[int, ...] = ()
    """Not before."""
    passed: int = 0
    """How many leases in a row have isolated suspects, while something was unread."""
    breaker: Breaker = Breaker()
    excused: frozenset[int] = frozenset()
    """Messages that a seek has skipped, or that were to end unheard: their TTL."""


class Onlooker:
    """Looks at a group as its ``reference`` should be."""

    def __init__(
        self,
        reference: ReferenceGroup,
        *,
        backoff: int = 0,
        group: str = "g",
        alone: bool = False,
        rooms: Mapping[str, int],
    ) -> None:
        self.reference, self.backoff, self.group = reference, backoff, group
        self.messages = messages = tuple(m.seq for m in reference.messages)
        self.attempts, self.skew = reference.max_delivery_attempts, reference.clock_skew
        self.rooms = rooms
        """How many messages each process takes at a time."""
        self.alone = alone
        """Whether one process works at a time: then expiry is no excuse, for nobody can have leased
        meanwhile what has expired.
        """
        self._at = {m: at for at, m in enumerate(messages)}
        n = len(messages)
        self.begin = Notes(
            (0,) * n, (0,) * n, (None,) * n, (False,) * n, (frozenset(),) * n, due_from=(0,) * n
        )

    # -- one step

    def note(self, notes: Notes, before: Store, after: Store, events: Sequence[Event]) -> Notes:
        """What is noted after a step. Raises AssertionError."""
        new = _Noting(self, notes, before, after)
        settles = []
        letters = after.dead_sequences() if before.dead is not after.dead else ()
        assert len(letters) == len(set(letters)), f"the dead letters hold one twice: {letters}"
        if ("seek",) in events:
            return new.sought().finish()
        for event in events:
            if event[0] == "settle":
                if event[1].group == self.group:
                    settles.append(event[1])
                    new.settle(event[1])
                    new.returned_behind(event[1])
            elif event[0] != "hand":
                getattr(new, event[0])(*event[1:])
        book = after.book(self.group)
        if book is not None and book is not before.book(self.group):
            new.moved(book, settles)
        for event in events:
            if event[0] == "hand":
                new.hand(*event[1:])
        return new.finish()

    def crash(self, notes: Notes, batch: Batch | None) -> Notes:
        """Notes that the process has died, or is taken for dead, that had the batch in hand."""
        if batch is None:
            return notes
        level = 2 if (batch, 1) in notes.trouble else 1
        return notes._replace(trouble=notes.trouble | {(batch, level)})

    # -- a state

    def key(self, notes: Notes, store: Store) -> Hashable:
        now = store.now
        view = store.view(self.group, self.messages)
        known = zip(
            view, notes.copies, notes.due_from, notes.handed, notes.top, notes.holder,
            notes.blamed, strict=True,
        )  # fmt: skip
        each = tuple(
            (True, copies) if row.state == SETTLED else (copies, max(0, due_from - now), *rest)
            for row, copies, due_from, *rest in known
        )
        until = tuple((lease, at - now) for lease, at in notes.until)
        trial_from = notes.breaker.trial_from
        trial_from = None if trial_from is None else max(0, trial_from - now)
        breaker = notes.breaker._replace(trial_from=trial_from)
        return (
            each, notes.seen, notes.sizes, notes.given, until, notes.trouble, notes.passed,
            breaker, notes.excused,
        )  # fmt: skip


def batch_of(lease_id: str) -> Batch:
    """Who writes the messages of a lease: the stream's batch, or the worker."""
    parts = parse_lease_id(lease_id)
    return (parts[0], parts[1]) if parts else ("worker", lease_id)


class _Noting:
    def __init__(self, onlooker: Onlooker, notes: Notes, before: Store, after: Store) -> None:
        self.onlooker, self.notes, self.before, self.after = onlooker, notes, before, after
        self.at, self.now = onlooker._at, after.now
        self.most = 10**9 if onlooker.attempts is None else onlooker.attempts
        self.handed, self.top, self.holder = list(notes.handed), list(notes.top), list(notes.holder)
        self.blamed, self.copies = list(notes.blamed), list(notes.copies)
        self.due_from = list(notes.due_from)
        self.seen, self.sizes, self.until = dict(notes.seen), dict(notes.sizes), dict(notes.until)
        self.given, self.trouble = set(notes.given), set(notes.trouble)
        self.passed, self.breaker, self.excused = notes.passed, notes.breaker, set(notes.excused)
        self.released: set[int] = set()
        self.returned: set[int] = set()
        """What a settle returned behind an earlier message of its key."""
        self.touched: set[int] = set()
        """What has been settled in this step."""
        self.old = before.view(onlooker.group, onlooker.messages)
        self.view = after.view(onlooker.group, onlooker.messages)

    def finish(self) -> Notes:
        held = {r.lease_id for r in self.view if r.lease_id}
        keep = held | {lease for lease, at in self.until.items() if at > self.now}
        return Notes(
            tuple(self.handed), tuple(self.top), tuple(self.holder), tuple(self.blamed),
            tuple(self.copies),
            tuple(sorted(self.seen.items())),
            tuple(sorted((k, v) for k, v in self.sizes.items() if k in keep)),
            frozenset((lease, m) for lease,
                      m in self.given if lease in keep or self.holder[m] == lease),
            tuple(sorted((lease, at) for lease,
                         at in self.until.items() if at > self.now and lease in held)),
            frozenset(self.trouble), tuple(self.due_from), self.passed, self.breaker,
            frozenset(self.excused),
        )  # fmt: skip

    # -- what processes did

    def sink(self, batch: Batch, rows: tuple[int, ...]) -> None:
        """A write to the sink: skipped if it has seen the version."""
        app, version = batch
        if app != "worker":
            if version <= self.seen.get(app, -1):
                return
            self.seen[app] = version
        for m in rows:
            at = self.at[m]
            for other in self.copies[at] - {batch}:
                excuses = {(other, 2), (batch, 2), (other, -1 - at), (batch, -1 - at)}
                twice = f"message {at} was written by {other} and by {batch}, which need not be"
                assert excuses & self.trouble, twice
            self.copies[at] |= {batch}

    def hand(self, lease_id: str, rows: tuple[tuple[int, int], ...], until: int) -> None:
        """Messages reach user code, each with a delivery count."""
        self.until[lease_id] = until
        for m, count in rows:
            at = self.at[m]
            self.handed[at] += 1
            handed, row = self.handed[at], self.view[at]
            assert handed <= self.most, f"message {at} is handed out {handed} times"
            if self.holder[at] != lease_id:
                continue  # a zombie; what it was granted was counted then
            where = f"message {at} is handed out to {lease_id}, delivery {count}"
            known = row.state, row.lease_id, row.delivery_count
            assert known == (LEASED, lease_id, count), f"{where}, but the ledger says {row}"
            assert count > self.top[at], f"{where}, as before"
            self.top[at] = count
            assert count >= handed, f"{where}, for the {handed}. time"

    def settle(self, settled: Settled) -> None:
        verb, lease, delay = settled.verb, settled.lease, settled.delay
        for at in self._in(settled.ranges):
            self.touched.add(at)
            where = f"{verb} of message {at} by {lease} counts"
            assert self.holder[at] == lease, f"{where}, but {self.holder[at]} got it since"
            assert (lease, at) not in self.given, f"{where}, which had given it back"
            if verb in ("nack", "release"):
                self.given.add((lease, at))
                self.trouble.add((batch_of(lease), -1 - at))
            if verb == "reject" or (verb == "nack" and settled.named):
                self.blamed[at] = True
            if verb == "release":
                self.released.add(at)
                if delay is not None:
                    self.due_from[at] = self.now + delay
            row = self.old[at]
            if verb == "nack" and row.state == LEASED and (row.expires_at or 0) >= self.now:
                self.due_from[at] = self.now + (self.onlooker.backoff if delay is None else delay)
        for at in self._in((first, last) for first, last, _ in settled.lost):
            row, where = self.old[at], f"{verb} of message {at} by {lease} is refused"
            lost = not self._may_settle(lease, at, row) or self._died_of_expiry(verb, row)
            assert lost, f"{where}, though nobody has leased it since"
            assert row.state != SETTLED or at in self.excused, f"{where}, and it is settled"

    def returned_behind(self, settled: Settled) -> None:
        """Messages that a lease has lost, because it gave back an earlier one of their key."""
        for at in self._in(settled.returned):
            self.returned.add(at)
            self.touched.add(at)
            self.given.add((settled.lease, at))
            self.trouble.add((batch_of(settled.lease), -1 - at))

    def intervened(self, m: int, how: str, force: bool) -> None:
        """The owner has changed a message. A lease that held it may no longer settle it."""
        at = self.at[m]
        row = self.old[at]
        live = row.state == LEASED and (row.expires_at or 0) + self.onlooker.skew >= self.now
        assert force or not live, f"message {at} is taken from {row}, and nobody has forced it"
        if self.holder[at] is not None:
            self.given.add((str(self.holder[at]), at))
        self.touched.add(at)
        now = self.view[at]
        wanted = {"discard": SETTLED, "dead letter": DEAD, "retry now": AVAILABLE}[how]
        changed = now.state == wanted and (now.available_at or 0) <= self.now
        assert changed, f"the owner's {how} of message {at} has left it as {now}"
        self.excused.add(at)
        self.blamed[at] = True
        self.due_from[at] = self.now
        self.trouble.add((batch_of(str(self.holder[at])), -1 - at))

    def paused(self, now: bool) -> None:
        self.breaker = self.breaker._replace(paused=now)

    def _watch_breaker(self, group: ReferenceGroup, settles: list[Settled]) -> None:
        """Count the leases that failed. A world with a breaker lets none expire."""
        for settled in settles:
            seqs = [self.onlooker.messages[at] for at in self._in(settled.ranges)]
            if seqs and settled.verb == "ack":
                group.worked(seqs)
            elif seqs and settled.verb == "nack":
                group.lease_failed(seqs[0], self.now)
        book = self.after.book(self.onlooker.group)
        is_open = book is not None and book.head.breaker.opened_at is not None
        should = group.opened is not None
        assert is_open == should, f"the breaker is open: {is_open}, after {group.streak} failed"

    def _may_settle(self, lease: str, at: int, row: Range) -> bool:
        """Whether nobody has leased a message since, and the lease has not given it back."""
        claims = self.holder[at] == lease and (lease, at) not in self.given
        return claims and row.state in (LEASED, AVAILABLE)

    def _died_of_expiry(self, verb: str, row: Range) -> bool:
        """Whether a late nack or release came for a message on its last attempt.

        Its lease expires first.
        """
        most = self.onlooker.attempts
        late = row.state == LEASED and (row.expires_at or 0) < self.now
        last = most is not None and row.delivery_count >= most
        return late and last and verb in ("nack", "release")

    def extended(self, lease: str) -> None:
        """Its holder may rely on what the ledger says now."""
        for at, row in enumerate(self.view):
            if (row.state, row.lease_id) == (LEASED, lease):
                self.until[lease] = max(row.expires_at or 0, self.until.get(lease, 0))
            else:
                assert not self._may_settle(lease, at, row), f"{lease} does not revive {row}"

    def extended_one(self, lease: str, m: int) -> None:
        """One message of a lease has a later deadline, unless it was settled before."""
        row = self.view[self.at[m]]
        if row.state in (UNREAD, SETTLED):
            return
        held = (row.state, row.lease_id) == (LEASED, lease) and (row.expires_at or 0) > self.now
        assert held, f"message {self.at[m]} was extended by {lease}, and is {row}"
        for at, (a, b) in enumerate(zip(self.old, self.view, strict=True)):
            if at != self.at[m] and b.state == LEASED and a.state != UNREAD:
                assert a.expires_at == b.expires_at, f"{a} was not to be extended, and is {b}"

    def not_extended(self, lease: str, m: int | None = None) -> None:
        for at, row in enumerate(self.view):
            named = m is None or at == self.at[m]
            lost = not (named and self._may_settle(lease, at, row))
            assert lost, f"{lease} is not extended, though it holds message {at}: {row}"

    def sought(self) -> _Noting:
        """A seek: what is being copied to the dead-letter queue is left alone.

        All else begins again, or is over.
        """
        for at, (a, b) in enumerate(zip(self.old, self.view, strict=True)):
            if a.state == TRANSFERRING:
                assert a == b, f"a seek moves message {at}, which is being routed: {b}"
                continue
            self.handed[at], self.top[at], self.holder[at] = 0, 0, None
            self.blamed[at], self.copies[at] = False, frozenset()
            if b.state == SETTLED:
                self.excused.add(at)
        return self

    def full(self) -> None:
        """A worker learned that a cap is reached."""
        live = sum(row.state == LEASED for row in self.view)
        cap = self.onlooker.reference.max_in_flight
        full = cap is not None and live >= cap
        assert full, f"nothing may be leased, though only {live} messages are in flight"

    def _in(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        spans = list(ranges)
        return [at for m, at in self.at.items() if any(first <= m <= last for first, last in spans)]

    # -- what became of the ledger

    def moved(self, book: Book, settles: list[Settled]) -> None:
        _check_form(book)
        old, new = self.old, self.view
        granted = [
            at for at, (a, b) in enumerate(zip(old, new, strict=True))
            if b.state == LEASED and a.lease_id != b.lease_id
        ]  # fmt: skip
        group = self._reference(granted)
        for at, (a, b) in enumerate(zip(old, new, strict=True)):
            if a == b:
                continue
            assert a.state != SETTLED or b.state == SETTLED, f"{at} was settled, and is {b}"
            if a.lease_id and a.lease_id != b.lease_id and self._replayed(a.lease_id):
                # Taken over, or given back by a replay: its right is gone.
                self.given.add((a.lease_id, at))
            if at in granted:
                self._granted(at, a, b)
            elif a.state == LEASED and b.state != LEASED:
                over = b.state in (UNREAD, SETTLED) or at in self.touched
                over = over or self._replayed(str(a.lease_id))
                over = over or (a.expires_at or 0) + self.onlooker.skew < self.now
                assert over, f"message {at} is taken from {a.lease_id} before its deadline: {b}"
                self._ended(at, a, b)
            elif b.state == LEASED:
                later = (b.expires_at or 0) >= (a.expires_at or 0)
                assert later, f"message {at}: an extension moves the deadline back, to {b}"
            if b.state in (DEAD, BLOCKED) and a.state != b.state:
                assert self.blamed[at], f"message {at} never failed by itself, and is {b}"
            if b.state == SETTLED and a.state != SETTLED:
                self._settled(at, a)
        for at in granted:
            lease = new[at].lease_id
            self.sizes[str(lease)] = sum((r.state, r.lease_id) == (LEASED, lease) for r in new)
        self._watch_breaker(group, settles)
        if granted and not any(map(self._same_batch, granted)):
            self._check_grant(group, granted)  # a replay takes what its batch holds
        self._note_reference(group)
        group.see(new)
        group.check_held_in_order()
        for at, (a, b) in enumerate(zip(old, new, strict=True)):
            if granted and a.lease_id and b.state == AVAILABLE and not b.lease_id:
                self.given.add((a.lease_id, at))  # another lease has one of its keys
        for settled in settles:
            to_blame = settled.named or self.sizes.get(settled.lease) == 1
            for at in self._in(settled.ranges) if settled.verb == "nack" and to_blame else ():
                suspect = new[at].state == AVAILABLE and new[at].suspect
                assert not suspect, f"message {at} was nacked by name or alone, and is suspect"

    def _reference(self, granted: list[int]) -> ReferenceGroup:
        """The group as a lease finds it: expired, and with what was settled in this step."""
        b, known = self.breaker, self.onlooker.reference
        group = replace(
            known,
            messages=[
                ReferenceMessage(m.seq, key=m.key, lane=m.lane, own_failure=blamed)
                for m, blamed in zip(known.messages, self.blamed, strict=True)
            ],
            counters={},
            lease_sizes=dict(self.sizes),
            leases_without_fresh=self.passed,
            streak=list(b.streak),
            opened=b.trial_from,
            trial_from=b.trial_from,
            trial=b.trial,
            trials_failed=b.failed,
            paused=self.now if b.paused else None,
        )
        group.see(self.old)
        group.expire_leases(self.now)
        self.sizes.update(group.lease_sizes)
        for at, (m, row) in enumerate(zip(group.messages, self.view, strict=True)):
            if at in self.touched.difference(granted) or row.state == SETTLED:
                m.see(row)
        return group

    def _check_grant(self, group: ReferenceGroup, granted: list[int]) -> None:
        row = self.view[granted[0]]
        lease, worker = str(row.lease_id), str(row.worker_id)
        request = AcquireRequest(
            lease, worker, self.onlooker.rooms[worker.split("~", maxsplit=1)[0]], 0,
            reserved_attempts=int(parse_lease_id(lease) is not None),
        )  # fmt: skip
        group.check_grant([self.onlooker.messages[at] for at in granted], "", request, self.now)

    def _note_reference(self, group: ReferenceGroup) -> None:
        self.passed = group.leases_without_fresh
        self.breaker = Breaker(
            tuple(group.streak), group.trial_from, group.trial, group.trials_failed,
            group.paused is not None,
        )  # fmt: skip

    def _replayed(self, lease: str) -> bool:
        stream, n = batch_of(lease)
        return (
            stream != "worker"
            and dict(self.after.marks).get(fence_app_id(stream), (0, 0))[0] >= 2 * n + 2
        )

    def _granted(self, at: int, a: Range, b: Range) -> None:
        lease, before = str(b.lease_id), self.holder[at]
        same_batch = a.lease_id is not None and batch_of(a.lease_id) == batch_of(lease)
        where = f"message {at} is leased by {lease}"
        assert a.state in (UNREAD, LEASED, AVAILABLE), f"{where}, and was {a.state}"
        if before and not same_batch and (before, at) not in self.given:
            left = self.until.get(before, 0) - self.now
            assert left <= 0, f"{where}, and {before} may use it for {left} us yet"
        early = self.due_from[at] - self.now if a.state == AVAILABLE and not same_batch else 0
        assert early <= 0, f"{where}, {early} us before it is due"
        count = b.delivery_count
        assert count == a.delivery_count + 1, f"{where}: {count} follows {a.delivery_count}"
        assert count <= self.most, f"{where} for the {count}. time"
        again = same_batch and (a.lease_id, at) in self.notes.given
        assert not again, f"{where}, in a replay, and had been given back"
        if a.state == LEASED and not same_batch:
            self._ended(at, a, None)
        self.holder[at] = lease

    def _ended(self, at: int, a: Range, b: Range | None) -> None:
        """It is leased no more: failed, unless it was acked or released. None for another lease."""
        lease, alone = str(a.lease_id), self.sizes.get(str(a.lease_id)) == 1
        if b is not None and b.state == SETTLED:
            return
        in_time = (a.expires_at or 0) + self.onlooker.skew >= self.now
        if at in self.returned or (at in self.released and in_time):
            before = a.delivery_count - 1, None, a.suspect
            there = b and (b.delivery_count, b.lease_id, b.suspect)
            assert there == before, f"message {at} is given back, and was before {a}, now {b}"
            self.handed[at] -= 1
            self.top[at] = min(self.top[at], a.delivery_count - 1)
            return
        if alone:
            self.blamed[at] = True
        if at in self.released:  # too late: it has failed, as if that had been seen before
            failed = b is None or (b.delivery_count, b.lease_id) == (a.delivery_count, None)
            assert failed, f"message {at} is released late, and not as failed: {a}, now {b}"
        elif (a.expires_at or 0) < self.now:
            if not self.onlooker.alone:
                self.trouble.add((batch_of(lease), 2))
            held = b is not None and (b.state, b.lease_id) == (AVAILABLE, lease)
            if b is not None and held and (lease, at) not in self.given:
                right = b.suspect != alone and (b.available_at or 0) <= self.now
                assert right, f"message {at} has expired, and its blame or time is wrong: {b}"

    def _settled(self, at: int, a: Range) -> None:
        if at in self.excused:
            return
        where = f"message {at} is settled"
        if a.state == TRANSFERRING:
            routed = self.onlooker.messages[at] in self.after.dead_sequences()
            assert routed, f"{where} as routed, and not in the dead-letter queue"
        else:
            assert self.copies[at], f"{where}, and no sink has it"

    def _same_batch(self, at: int) -> bool:
        """Whether the batch that has a message had it before, too."""
        mine, then = self.view[at], self.old[at]
        held = then.state == LEASED
        return held and batch_of(str(mine.lease_id)) == batch_of(str(then.lease_id))


def _check_form(book: Book) -> None:
    """Neighbours differ, and what is settled at the start lies below the start."""
    for r in book.rows[:1]:
        low = r.state == SETTLED and book.head.start_sequence < r.first
        assert not low, f"the lowest range is settled, and not below the start: {r}"
    for a, b in pairwise(book.rows):
        assert a.last < b.first, f"ranges overlap: {a} and {b}"
        assert not _alike(a, b), f"neighbours are alike: {a} and {b}"


def _alike(a: Range, b: Range) -> bool:
    names = [name for name in Range._fields if name not in ("first", "last", "message_count")]
    return all(getattr(a, name) == getattr(b, name) for name in names)
