"""Hold the state of a ledger that belongs to no range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.intervals import Interval

__all__ = ["LedgerHeader", "LogFingerprint"]


class LogFingerprint(NamedTuple):
    """A data file of ``messages/`` that a ledger has reached."""

    first: int  # the sequence of its first message
    path: str


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The state of a ledger that belongs to no range. The store keeps it in the header row."""

    start_sequence: int = -1  # all messages up to this sequence are settled
    settled_count: int = 0  # messages up to the start sequence
    revision: int = 0  # grows by one with each commit
    leases_without_fresh: int = (
        0  # leases in a row that isolated suspects while unread messages were due
    )
    counters: dict[str, int] = field(default_factory=dict)  # settled messages by outcome
    settings: dict[str, Any] = field(default_factory=dict)
    skipped_intervals: tuple[Interval, ...] = ()
    """The newest intervals that a seek skipped. A later settle of them is refused."""
    log_fingerprints: tuple[LogFingerprint, ...] = ()  # in order; they identify the log
    breaker: Breaker = field(default_factory=Breaker)

    def counted(self, outcomes: Mapping[str, int]) -> LedgerHeader:
        if not outcomes:
            return self
        added = {name: self.counters.get(name, 0) + n for name, n in outcomes.items()}
        return replace(self, counters={**self.counters, **added})

    def to_json(self) -> str:
        """Return the fields without a column of their own as JSON."""
        data = {
            "leases_without_fresh": self.leases_without_fresh,
            "counters": self.counters,
            "settings": self.settings,
            "skipped": self.skipped_intervals,
            "log_fingerprints": self.log_fingerprints,
            "breaker": self.breaker.to_stored(),
        }
        return json.dumps(data, sort_keys=True)
