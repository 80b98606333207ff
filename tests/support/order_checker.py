"""Check from a queue's tables that its leases kept the order of keys.

Plain Python over rows, without code of spark_mq. It knows keys, priorities and sequences, and no
lanes. So it also finds a message in a wrong lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from support.checker import Findings, Row, added_files, between, history

__all__ = ["check_order", "check_order_of_queue", "keys_of"]

Slot = tuple[str, int]
"""A key and a priority."""

_HOLD_BACK: Final = ("available", "leased", "blocked")
"""The states in which a message holds back the later ones of its slot."""


@dataclass
class _Message:
    """One message in one group."""

    state: str = "available"
    holder: str | None = None


@dataclass
class _Group:
    """The messages of a group by their slots, in the order of sequence."""

    slots: dict[Slot, dict[int, _Message]] = field(default_factory=dict)


def check_order(keys: Mapping[int, Slot], rows: Iterable[Row], groups: Iterable[str]) -> Findings:
    """Follow the messages of some groups through their events, one version after the other.

    Parameters
    ----------
    keys
        Key and priority of each message with a key, by sequence.
    rows
        The rows of ``history/`` in order.
    groups
        The ordered groups.

    Returns
    -------
    Findings
        ``wrong`` names each message that two leases hold together, or that a lease holds before its
        turn. ``counts["holds"]`` says how many held messages were checked.
    """
    found, sequences = Findings(), sorted(keys)
    by_slot: dict[Slot, list[int]] = defaultdict(list)
    for sequence in sequences:
        by_slot[keys[sequence]].append(sequence)
    chosen = {
        group: _Group({slot: {one: _Message() for one in of} for slot, of in by_slot.items()})
        for group in groups
    }
    for version, events in groupby(rows, key=lambda row: row["version"]):
        changed: set[tuple[str, str]] = set()
        for row in events:
            if row["event"] is not None and row["consumer_group"] in chosen:
                changed |= _apply(chosen[row["consumer_group"]], row, keys, sequences)
        for group, key in sorted(changed):
            _check_key(found, f"version {version}, group {group}", chosen[group], key)
    return found


def _apply(
    group: _Group, row: Row, keys: Mapping[int, Slot], sequences: list[int]
) -> set[tuple[str, str]]:
    """Take in an event. Return the group with each key that it changes."""
    changed = set()
    for sequence in between(sequences, row["first"], row["last"]):
        message = group.slots[keys[sequence]][sequence]
        message.state = row["state"]
        message.holder = row["lease_id"] if row["state"] == "leased" else None
        changed.add((row["consumer_group"], keys[sequence][0]))
    return changed


def _check_key(found: Findings, where: str, group: _Group, key: str) -> None:
    """Check one holder for a key, and no held message behind an unsettled one."""
    holders: set[str | None] = set()
    for priority in range(10):
        waiting: int | None = None
        for sequence, message in group.slots.get((key, priority), {}).items():
            if message.state == "leased":
                found.counts["holds"] += 1
                holders.add(message.holder)
                found.expect(
                    waiting is None,
                    f"{where}: {message.holder} holds {sequence} of key {key!r} before {waiting}",
                )
            elif message.state in _HOLD_BACK and waiting is None:
                waiting = sequence
    found.expect(len(holders) <= 1, f"{where}: {sorted(map(str, holders))} hold key {key!r}")


def keys_of(path: str | Path) -> dict[int, Slot]:
    """Return key and priority of each message with a key, by sequence, from the data files."""
    found: dict[int, Slot] = {}
    for version, name, _, before in added_files(f"{path}/messages"):
        columns = pq.read_table(f"{path}/messages/{unquote(name)}", columns=["key", "priority"])
        values: Any = zip(columns["key"].to_pylist(), columns["priority"].to_pylist(), strict=True)
        for row, (key, priority) in enumerate(values):
            if key is not None:
                found[(version << 32) + before + row] = (key, priority or 0)
    return found


def check_order_of_queue(path: str | Path, groups: Iterable[str]) -> Findings:
    """Check a queue whose ledger has been archived."""
    return check_order(keys_of(path), history(path), groups)
