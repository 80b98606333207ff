"""Data files with slots, and an ordered group on them."""

from __future__ import annotations

from typing import Any

from support.ledger_group import Group, limits

from spark_mq.ledger.message_index import DataFile, DeliveryTimes, MessageIndex, sequence
from spark_mq.ledger.slots import SlotLayout, encode_slots

LANES = 4
LAYOUT = SlotLayout(LANES)


def file_of(
    version: int, *runs: tuple[int, int | None, int], times: DeliveryTimes | None = None
) -> DataFile:
    """Return a file with runs of ``(priority, lane, rows)``, published at `version` seconds."""
    text = encode_slots(LANES, [(LAYOUT.number(p, lane), rows) for p, lane, rows in runs])
    rows = sum(rows for _, _, rows in runs)
    first, at = sequence(version, 0), version * 1_000_000
    return DataFile(first, rows, f"f{version}", 10 * rows, at, times, text)


def ordered(*files: DataFile, order: str = "key", lanes: int = LANES, **settings: Any) -> Group:
    """Return an ordered group on some files."""
    rules = limits(breaker_threshold=None, order=order, **settings)
    group = Group(0, rules, list(files))
    group.index = MessageIndex(files, len(files), lanes=lanes)
    return group
