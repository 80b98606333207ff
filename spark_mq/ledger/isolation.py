"""Isolate suspects: find which due messages go together, and in pieces of which size.

If a lease of several messages fails as a whole, nobody knows its culprit, so all of them are
suspects. They come back in pieces that get smaller with each failure, and on its last attempt a
suspect is alone. So only a message that really kills its worker dies. Alone means that its process
has no other lease, because all of them end with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.ranges import AVAILABLE, LEASED, Condition, Ledger, Range, of_process
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import WRITTEN
from spark_mq.ledger.states import UNSETTLED
from spark_mq.ledger.stream_batch import names_batch

ASSUMED_ATTEMPTS: Final = 5  # that isolation assumes for a group without a limit
WHOLE_RETRY_ATTEMPTS: Final = 4
"""With this many attempts, the first failure of a whole lease is retried whole."""
RESERVED_ATTEMPTS: Final = 1  # that the lease of a batch keeps back for a replay


def is_retried_whole(deliveries: int, attempts: int | None) -> bool:
    """Return whether suspects come back whole, because a deployment may be why they failed."""
    return deliveries == 1 and (attempts or ASSUMED_ATTEMPTS) >= WHOLE_RETRY_ATTEMPTS


def isolation_size(
    limit: int,
    deliveries: int,
    attempts: int,
    failed: int | None = None,
    *,
    settled: int = 0,
    waiting: int = 0,
) -> int:
    """Return how many suspects one lease takes, out of `waiting` ones that failed together."""
    # After `d` of `n` deliveries that is ``max(1, floor(limit ** ((n-1-d)/(n-2))))``. So with four
    # attempts or more, the first failure is retried whole. With fewer, the divisor is ``n-1``. A
    # piece is also smaller than the lease that `failed`, in the same measure, if `limit` is much
    # larger.
    # A piece grows by the messages of that lease that are `settled` since, up to twice this size
    # and half of those that wait. On the last attempt it does not grow.
    # Not more, because all messages of a piece that fails may have to be alone in their next lease.
    if attempts <= 1:
        return 1
    steps = attempts - 2 if attempts >= WHOLE_RETRY_ATTEMPTS else attempts - 1
    left = min(steps, max(0, attempts - 1 - deliveries))
    exact: float = limit ** (left / steps)
    if failed is not None and left < steps:
        exact = min(exact, failed ** (left / (left + 1)))
    size = max(1, min(limit, int(exact + 1e-9)))
    return max(size, min(limit, size + min(size, settled), waiting // 2)) if left else size


def is_last_attempt(r: Range, attempts: int | None) -> bool:
    """Return whether the next delivery of an available message is its last one."""
    # A message with one attempt alone is not meant: it would let a worker use one thread only.
    return attempts is not None and 1 < attempts <= r.delivery_count + 1


def holds_leases(ledger: Ledger, worker_id: str) -> bool:
    return ledger.count((LEASED,), of_process(worker_id)) > 0


def holds_last_attempt(ledger: Ledger, worker_id: str, attempts: int | None) -> bool:
    """Return whether a worker's process has a suspect on its last attempt, which must be alone."""
    if attempts is None or attempts == 1:
        return False
    last = ("lease_size", "=", 1), ("delivery_count", ">=", attempts)
    rows = ledger.find((LEASED,), of_process(worker_id), *last)
    return any(r.suspect or not r.failure_count for r in ledger.ranges_at(rows))


def failed_together(r: Range) -> list[Condition]:
    """Return what is true for messages that failed in the same lease as a suspect, and as often."""
    names = ("available_at", "delivery_count", "failure_count", "lease_id", "error")
    values = [(name, getattr(r, name)) for name in names]
    return [(name, "is null" if value is None else "=", value) for name, value in values]


def settled_since(ledger: Ledger, r: Range) -> int:
    """Return how many messages of the lease in which a suspect failed are settled."""
    if r.lease_size is None or r.first_failed_at is None:
        return 0
    # Those that failed again, or that another lease holds, have more deliveries.
    of_lease = ("first_failed_at", "=", r.first_failed_at)
    left = ledger.count(UNSETTLED, of_lease, ("delivery_count", ">=", r.delivery_count))
    return max(0, r.lease_size - left)


class Isolation(NamedTuple):
    """The suspects that wait in pieces, and about how many leases they need if none fails."""

    suspects: int = 0
    leases: int = 0


NOTHING_ISOLATED: Final = Isolation()


def estimate_isolation(ledger: Ledger, rules: GroupSettings) -> Isolation:
    """Return the isolation of a group. Leases are assumed to be as large as those that failed."""
    suspects = ledger.ranges_at(ledger.find((AVAILABLE,), ("suspect", "=", True)))
    if not suspects:
        return NOTHING_ISOLATED
    of_stream = any(names_batch(r.lease_id) or names_batch(r.error) for r in suspects)
    attempts = rules.attempts_before_isolation(RESERVED_ATTEMPTS if of_stream else 0)
    limit = max(r.lease_size or r.message_count for r in suspects)
    heads = {tuple(failed_together(r)): r for r in suspects}.values()
    total = NOTHING_ISOLATED
    for head in heads:
        if not is_retried_whole(head.delivery_count, attempts):
            pieces = _isolation_of(ledger, head, limit, attempts or ASSUMED_ATTEMPTS)
            total = Isolation(total.suspects + pieces.suspects, total.leases + pieces.leases)
    return total


def _isolation_of(ledger: Ledger, head: Range, limit: int, attempts: int) -> Isolation:
    waiting = ledger.count((AVAILABLE,), *failed_together(head))
    settled = settled_since(ledger, head)
    given = (limit, head.delivery_count, attempts, head.lease_size)
    first = isolation_size(*given, settled=settled, waiting=waiting)
    later = isolation_size(*given, settled=settled + first, waiting=waiting)
    # One lease at least, because the later pieces are no smaller than the first.
    return Isolation(waiting, 1 + -(-(waiting - first) // later))


class AcquireKind(StrEnum):
    """The kinds of messages that a lease may hold."""

    #: Messages that failed together as a whole lease, or a piece of them.
    SUSPECT = "suspect"
    #: Messages on their last attempt. All of them failed by themselves.
    LAST = "last attempt"
    #: Other messages that wait. Unread messages fill up the lease if nothing else waits.
    REST = "rest"


SUSPECT: Final = AcquireKind.SUSPECT
LAST: Final = AcquireKind.LAST
REST: Final = AcquireKind.REST

_CHUNK: Final = 1_000  # rows whose deliveries are read at once
_first_of: Final = itemgetter(0)
_SUSPECT: Final[Condition] = ("suspect", "=", True)
_CLEAR: Final[Condition] = ("suspect", "=", False)


class Head(NamedTuple):
    """The available range that the next lease begins with."""

    row: int
    kind: AcquireKind


class DueRanges:
    """The ranges that wait and are due, up to `max_sequence`.

    `attempts` is the delivery on which a failing message must be alone, or None. `available` holds
    the rows that a lease may begin with. None stands for all of them. With a `sink`, the messages
    of a lease have the same earlier writes, so that the sink has all of them or none. Only ranges
    with messages in `named` count, if it is given.
    """

    def __init__(
        self,
        ledger: Ledger,
        cutoff: int,
        max_sequence: int | None,
        attempts: int | None,
        *,
        sink: bool = False,
        named: Sequence[Interval] | None = None,
    ) -> None:
        self.ledger, self.attempts, self._named = ledger, attempts, named
        end = () if max_sequence is None else (("first", "<=", max_sequence),)
        self._due: tuple[Condition, ...] = (("available_at", "<=", cutoff), *end)
        by_kind = _due_rows(ledger, self._due, attempts)
        self._rows = {kind: self._only_named(rows) for kind, rows in by_kind.items()}
        self.count = sum(len(rows) for rows in self._rows.values())
        # Whether the sink may have some of the messages.
        self.written = sink and ledger.minimum("first", (AVAILABLE,), WRITTEN) is not None

    def _only_named(self, rows: list[int]) -> list[int]:
        named = self._named
        if named is None or not rows:
            return rows
        firsts, lasts = self.ledger.first_sequences, self.ledger.last_sequences
        near = [(row, bisect_right(named, lasts[row], key=_first_of) - 1) for row in rows]
        return [row for row, at in near if at >= 0 and firsts[row] <= named[at][1]]

    def rows(self) -> list[int]:
        return sorted(row for rows in self._rows.values() for row in rows)

    def undelivered(self) -> list[int]:
        due = (*self._due, ("delivery_count", "=", 0))
        written = (("sink_writes", "is null", None),) if self.written else ()
        return self._only_named(self.ledger.find((AVAILABLE,), *due, *written))

    def suspects(self) -> list[int]:
        """Return the due rows of suspects that need not be alone yet, in order."""
        early = () if self.attempts is None else (("delivery_count", "<", self.attempts - 1),)
        return self._only_named(self.ledger.find((AVAILABLE,), *self._due, _SUSPECT, *early))

    def _available(self, kind: AcquireKind, available: Set[int] | None) -> list[int]:
        rows = self._rows[kind]
        return rows if available is None else [row for row in rows if row in available]

    def head(self, available: Set[int] | None) -> Head | None:
        """Return the first due range that can begin a lease, or None."""
        # In a group without a limit, the suspect that is due the longest goes first, so that they
        # take turns. Messages that were delivered very often come last. Otherwise a message that
        # fails forever would starve those after it.
        rows = {kind: self._available(kind, available) for kind in self._rows}
        heads = [Head(of_kind[0], kind) for kind, of_kind in rows.items() if of_kind]
        if not heads or self.attempts is not None:
            return min(heads, default=None)
        heads = [Head(row, REST) for row in islice(self._seldom_delivered(rows[REST]), 1)]
        if rows[SUSPECT]:
            heads.append(Head(self._longest_due(rows[SUSPECT]), SUSPECT))
        return min(heads) if heads else Head(self._longest_due(rows[REST]), REST)

    def _seldom_delivered(self, rows: Sequence[int]) -> Iterator[int]:
        """Yield the rows with few deliveries. The first one is usually near the front."""
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            counts = self.ledger.values_at("delivery_count", some)
            yield from (
                row for row, count in zip(some, counts, strict=True) if count < ASSUMED_ATTEMPTS
            )

    def _longest_due(self, rows: Sequence[int]) -> int:
        """Return the row that is due the longest, of these the least delivered, then the first."""
        since = self.ledger.values_at("available_at", rows)
        deliveries = self.ledger.values_at("delivery_count", rows)
        return min(zip(since, deliveries, rows, strict=True))[2]

    def rows_from(self, head: Head, available: Set[int] | None) -> list[int]:
        """Return the rows that a lease may take, from its head on, in order."""
        of_kind = self._rows_of_kind(head, available)
        if not self.written:
            return of_kind
        writes = self.ledger.values_at("sink_writes", of_kind)  # the head is the first of them
        return [row for row, same in zip(of_kind, writes, strict=True) if same == writes[0]]

    def reads_after(self, head: Head) -> bool:
        """Return whether unread messages may fill up a lease that begins with a head."""
        return not self.written or self.ledger.range_at(head.row).sink_writes is None

    def _rows_of_kind(self, head: Head, available: Set[int] | None) -> list[int]:
        rows, suspects = self._rows[head.kind], self._available(SUSPECT, available)
        if head.kind == SUSPECT:
            same = failed_together(self.ledger.range_at(head.row))
            together = set(self.ledger.find((AVAILABLE,), *same))
            return [row for row in rows[bisect_left(rows, head.row) :] if row in together]
        after = bisect_right(suspects, head.row)
        end = suspects[after] if after < len(suspects) else len(self.ledger)
        return rows[bisect_left(rows, head.row) : bisect_left(rows, end)]

    def are_all(self, rows: Sequence[int], available: Set[int] | None) -> bool:
        """Return whether some due rows contain each one that can begin a lease."""
        return len(rows) == self.count if available is None else available <= set(rows)

    def is_isolation(self, head: Head) -> bool:
        """Return whether many more leases of the same kind may follow the one of the head."""
        deliveries = self.ledger.range_at(head.row).delivery_count
        if head.kind != SUSPECT:
            return self.attempts is None and deliveries >= ASSUMED_ATTEMPTS
        return not is_retried_whole(deliveries, self.attempts)


def _due_rows(
    ledger: Ledger, due: Sequence[Condition], attempts: int | None
) -> dict[AcquireKind, list[int]]:
    # The rows of a large ledger take long to list, so an emptiness check does not list them.
    if ledger.minimum("first", (AVAILABLE,), *due) is None:
        return {SUSPECT: [], LAST: [], REST: []}
    if attempts is None:
        suspect = ledger.find((AVAILABLE,), *due, _SUSPECT)
        return {SUSPECT: suspect, LAST: [], REST: ledger.find((AVAILABLE,), *due, _CLEAR)}
    before_last = max(1, attempts - 1)
    last = (*due, ("delivery_count", ">=", before_last))
    # A message without a failure can be on its last attempt, after a replay and a release.
    # It goes alone, because it is innocent so far.
    innocent = ledger.find((AVAILABLE,), *last, ("failure_count", "=", 0))
    suspect = ledger.find((AVAILABLE,), *due, _SUSPECT)
    rest = (*due, _CLEAR, ("delivery_count", "<", before_last))
    return {
        SUSPECT: sorted({*suspect, *innocent}),
        LAST: ledger.find((AVAILABLE,), *last, _CLEAR, ("failure_count", ">", 0)),
        REST: ledger.find((AVAILABLE,), *rest),
    }
