"""Count the messages of all groups of a queue."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence

import pyarrow as pa

from spark_mq.errors import SparkMQError
from spark_mq.inspect.digest import DIGEST_COLUMNS, LedgerDigest, digest_rows, stats_of
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.stats import GroupStats, compute_stats
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.context import QueueContext
from spark_mq.storage.ledger_rows import from_rows

__all__ = ["StatsReader"]

_BATCH_ROWS = 100_000  # ledger rows that one step holds in memory

_Part = tuple[str, pa.Table]


class StatsReader:
    """Read the stats of all groups. A second look reads only the ledgers that have changed."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self.lock = threading.Lock()  # held by the thread that looks
        self._known: dict[str, tuple[Hashable, LedgerDigest]] = {}
        self.damaged: dict[str, str] = {}  # by group: why its ledger could not be read

    def read(self, index: MessageIndex | None = None) -> dict[str, GroupStats]:
        """Return the stats of each readable group by name."""
        context = self._context
        index, now = index or context.messages.index(), context.now()
        self.damaged = {}
        self._refresh(now)
        fast = context.ledgers.known_horizon() >= context.messages.trimmed
        found = {
            name: stats_of(digest, index, now) if fast else None
            for name, (_, digest) in self._known.items()
        }
        by_rules = [name for name, stats in found.items() if stats is None]
        known = {name: stats for name, stats in found.items() if stats is not None}
        known.update(self._by_rules(by_rules, now))
        return dict(sorted(known.items()))

    def ordered(self) -> set[str]:
        """Return the groups in order of keys, as of the last look."""
        return {name for name, (_, one) in self._known.items() if one.settings.order == "key"}

    def _refresh(self, now: int) -> None:
        """Digest the ledgers that are new, that have changed, or whose counts time has changed."""
        tags = self._context.ledgers.tags()
        for name in set(self._known) - set(tags):
            del self._known[name]
        stale = [name for name, tag in tags.items() if not self._is_known(name, tag, now)]
        for parts in _batches(self._scan(stale, DIGEST_COLUMNS)):
            digests = digest_rows(parts, self._context.settings.group, now)
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
                ledger = from_rows(rows)
                settings = GroupSettings.from_stored(ledger.head.settings)
                ledger = expire_leases(ledger, now, settings)
                index = self._context.group(name).index_for(ledger)
                yield name, compute_stats(ledger, index, settings, now)
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
