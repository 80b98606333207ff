"""Keep the ledgers that a handle read last."""

from __future__ import annotations

from typing import Final

from spark_mq.ledger.ranges import Ledger
from spark_mq.util.recent import RecentDict

__all__ = ["CachedLedger", "ledger_cache"]

# Most ranges of all ledgers in memory. 10,000 small ledgers fit, so a sweep reads each of them
# once.
_RANGES: Final = 400_000
_LEDGER_WEIGHT: Final = 20  # of a ledger without ranges, which takes 3 KB

CachedLedger = tuple[tuple[str, ...], Ledger]  # the paths of a ledger's files, and the ledger


def ledger_cache() -> RecentDict[str, CachedLedger]:
    """Return an empty cache of ledgers by group."""
    return RecentDict(_RANGES, lambda cached: _LEDGER_WEIGHT + cached[1].size)
