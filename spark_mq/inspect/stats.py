"""Count the messages of all groups of a queue.

A digest of a ledger holds until the ledger changes or until time changes a count. So a second read
reads only the ledgers that have changed. A digest is small, so memory does not grow with ledgers.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import SparkMQError
from spark_mq.ledger.isolation import WHOLE_RETRY_ATTEMPTS
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, EVENT, HEADER, LEASED
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.states import DELAYED, READY
from spark_mq.ledger.stats import GroupFacts, GroupStats, compute_stats, with_unread
from spark_mq.ledger.transitions import expire_leases
from spark_mq.ledger.walk import LATE, SUMMED_COLUMNS, StateSum, sum_states
from spark_mq.operations.context import QueueContext
from spark_mq.storage.ledger_files import from_rows
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.columns import to_arrow
from spark_mq.util.user import identify_worker

_COLUMNS: Final = (*SUMMED_COLUMNS, "detail")
_BATCH_ROWS: Final = 100_000  # ledger rows that one step holds in memory
_MAX_INT32: Final = 2**31 - 1

_Part = tuple[str, pa.Table]


class StatsReader:
    """Read the stats of all groups. A second read takes only the ledgers that have changed."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self.lock = threading.Lock()  # held by the thread that looks
        self._known: dict[str, tuple[Hashable, _Digest]] = {}
        self.damaged: dict[str, str] = {}  # by group: why its ledger could not be read

    def read(self, index: MessageIndex | None = None) -> dict[str, GroupStats]:
        """Return the stats of each readable group by name."""
        context = self._context
        index, now = index or context.messages.index(), context.now()
        self.damaged = {}
        self._refresh(now)
        fast = context.ledgers.known_horizon() >= context.messages.trimmed
        digested = {
            name: _stats_of(name, digest, index, now) if fast else None
            for name, (_, digest) in self._known.items()
        }
        by_rules = [name for name, stats in digested.items() if stats is None]
        known = {name: stats for name, stats in digested.items() if stats is not None}
        known.update(self._by_rules(by_rules, now))
        return dict(sorted(known.items()))

    def ordered(self) -> set[str]:
        """Return the groups in order of keys, as they were last read."""
        return {name for name, (_, digest) in self._known.items() if digest.settings.order == "key"}

    def _refresh(self, now: int) -> None:
        """Digest the ledgers that are new, that have changed, or whose counts time has changed."""
        tags = self._context.ledgers.tags()
        for name in set(self._known) - set(tags):
            del self._known[name]
        stale = [name for name, tag in tags.items() if not self._is_known(name, tag, now)]
        for parts in _batches(self._scan(stale, _COLUMNS)):
            digests = _digests(parts, self._context.settings.group, now)
            for name, digest in digests.items():
                self._known[name] = (tags[name], digest)

    def _is_known(self, name: str, tag: Hashable, now: int) -> bool:
        known = self._known.get(name)
        return known is not None and known[0] == tag and known[1].holds(now)

    def _scan(self, names: Sequence[str], columns: Sequence[str] | None) -> Iterator[_Part]:
        """Yield the rows of some groups. Note the damaged ones."""
        left = list(names)
        while left:
            try:
                for name, rows in self._context.ledgers.scan(tuple(left), columns):
                    del left[: left.index(name) + 1]
                    yield name, rows
                return
            except SparkMQError as error:
                if len(left) == 1:
                    self._note_damage(left[0], error)
                    return
                half = len(left) // 2
                yield from self._scan(left[:half], columns)
                left = left[half:]

    def _by_rules(self, names: Sequence[str], now: int) -> Iterator[tuple[str, GroupStats]]:
        for name, rows in self._scan(names, None):
            try:
                ledger = from_rows(rows, name)
                settings = GroupSettings.decoded(ledger.head.settings)
                ledger = expire_leases(ledger, now, settings)
                index = self._context.group(name).index_for(ledger)
                yield name, compute_stats(ledger, index, settings, now, identify_worker(""))
            except SparkMQError as error:
                self._note_damage(name, error)

    def _note_damage(self, name: str, error: SparkMQError) -> None:
        self._known.pop(name, None)
        self.damaged[name] = str(error)


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    batch: list[_Part] = []
    rows = 0
    for part in parts:
        batch.append(part)
        rows += part[1].num_rows
        if rows >= _BATCH_ROWS:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


@dataclass(slots=True)
class _Digest:
    """The sums of one ledger at one time."""

    settings: GroupSettings
    counters: Mapping[str, int]
    start_sequence: int  # all messages up to this sequence are settled
    mark: tuple[int, str] | None  # first sequence and path of the newest data file that it reached
    needs_rules: bool  # only the ledger's own rules give the counts, as after a breaker opened
    sums: dict[str, StateSum] = field(default_factory=dict)
    happened: Mapping[str, int] = field(default_factory=dict)

    def holds(self, now: int) -> bool:
        """Return whether time has not changed the digest of an unchanged ledger."""
        deadline = self._sum(LEASED).expires_at
        ends = deadline is not None and deadline + self.settings.clock_skew // MICROSECOND < now
        due_at = self._sum(DELAYED).available_at
        return not ends and (due_at is None or now < due_at)

    def reached(self) -> int:
        lasts = [state.last for state in self.sums.values() if state.last is not None]
        return max(lasts, default=self.start_sequence)

    def may_need_rules(self) -> bool:
        """Return whether a limit, a cap or the breaker may have changed the group."""
        settings, leased = self.settings, self._sum(LEASED)
        by_lease = (
            settings.rate_limit, settings.byte_rate_limit, settings.max_in_flight_bytes,
            settings.max_in_flight_per_key,
        )  # fmt: skip
        attempts = settings.max_delivery_attempts or _MAX_INT32
        limited = settings.failure_limit(own=True) is not None or settings.max_retry_age is not None
        back = [self.sums[state] for state in (LATE, DELAYED, READY) if state in self.sums]
        held = [*back, leased]  # a message on its last attempt is alone in its process
        isolates = any(total.suspect for total in back)
        if attempts <= WHOLE_RETRY_ATTEMPTS:  # else the first failure isolates nothing
            isolates = isolates or LATE in self.sums
        return (
            self.needs_rules
            or isolates
            or any(limit is not None for limit in by_lease)
            or BLOCKED in self.sums
            or any(
                total.messages and (limited or total.delivery_count >= attempts) for total in held
            )
            or self._sum(LATE).delivery_count > 1  # its expiry may open the breaker
            or (settings.max_in_flight is not None and leased.messages >= settings.max_in_flight)
            or sum(total.ranges for total in self.sums.values()) >= settings.max_tracked_ranges
        )

    def _sum(self, state: str) -> StateSum:
        return self.sums.get(state, StateSum())


def _digests(parts: Iterable[_Part], defaults: GroupSettings, now: int) -> dict[str, _Digest]:
    names, tables, numbers = [], [], array("q")
    for number, (name, rows) in enumerate(parts):
        names.append(name)
        tables.append(rows)
        numbers.extend([number] * rows.num_rows)
    if not tables:
        return {}
    # A filter takes its time for each chunk.
    rows = pa.concat_tables(tables).combine_chunks().append_column("group", to_arrow(numbers))
    headers = rows.filter(pc.equal(rows["state"], HEADER))
    columns = (headers[name].to_pylist() for name in ("group", "last", "detail"))
    digests = {number: _Digest(defaults, {}, -1, None, True) for number in range(len(names))}
    digests |= {number: _digest(*given) for number, *given in zip(*columns, strict=True)}
    rows = rows.filter(pc.invert(pc.is_in(rows["state"], value_set=pa.array([HEADER, EVENT]))))
    skews = [digests[n].settings.clock_skew // MICROSECOND for n in range(len(names))]
    for number, sums in sum_states(rows, now, rows["group"], skews).items():
        digests[number].sums = sums
    return {name: digests[number] for number, name in enumerate(names)}


def _digest(start: int, text: str) -> _Digest:
    detail = json.loads(text)
    fingerprints = detail["log_fingerprints"]
    return _Digest(
        GroupSettings.decoded(detail["settings"]),
        detail["counters"],
        start,
        (int(fingerprints[-1][0]), str(fingerprints[-1][1])) if fingerprints else None,
        bool(detail.get("breaker")),
        happened=detail.get("happened", {}),
    )


def _stats_of(name: str, digest: _Digest, index: MessageIndex, now: int) -> GroupStats | None:
    """Return the stats of a digest that holds, or None if they need the ledger's own rules."""
    if digest.may_need_rules() or index.has_times_after(digest.start_sequence):
        return None
    if not _is_of_log(digest, index):
        return None
    start, happened = digest.start_sequence, dict(digest.happened)
    sums = with_unread(digest.sums, start, index, now, digest.settings, group=name)
    if (late := sums.get(LATE)) is not None:
        happened["lease_expired"] = happened.get("lease_expired", 0) + late.messages
    filtered = digest.settings.filter is not None
    facts = GroupFacts(
        sums, digest.counters, start, index, now, happened=happened, filtered=filtered
    )
    return GroupStats.of(facts)


def _is_of_log(digest: _Digest, index: MessageIndex) -> bool:
    """Return whether the log has all that the ledger knows."""
    mark = digest.mark
    same = mark is None or index.may_have(mark[0], mark[1])
    return same and digest.reached() <= index.last_sequence
