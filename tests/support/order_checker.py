"""Check from a queue's tables that its leases kept the order of keys.

Plain Python over rows, without code of spark_mq. It knows keys, priorities and sequences, and no
lanes. So it also finds a message in a wrong lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from support.checker import Findings, Row, added_files, between, history

__all__ = ["check_order", "check_order_of_queue", "keys_of"]

Slot = tuple[str, int]
"""A key and a priority."""

_HOLD_BACK: Final = ("available", "blocked")
"""The states in which a message that nobody holds keeps back the later ones of its slot."""


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
    found, sequences, ordered = Findings(), sorted(keys), {*groups}
    slots: dict[Slot, list[int]] = defaultdict(list)
    for sequence in sequences:
        slots[keys[sequence]].append(sequence)
    now: dict[tuple[str, int], tuple[str, str | None]] = defaultdict(lambda: ("available", None))
    for version, events in groupby(rows, key=lambda row: row["version"]):
        changed: set[tuple[str, str]] = set()
        for row in events:
            group = row["consumer_group"]
            if row["event"] is not None and group in ordered:
                for sequence in between(sequences, row["first"], row["last"]):
                    now[group, sequence] = row["state"], row["lease_id"]
                    changed.add((group, keys[sequence][0]))
        for group, key in sorted(changed):
            holders: set[str | None] = set()
            for priority in range(10):
                states = [(seq, *now[group, seq]) for seq in slots.get((key, priority), ())]
                holders |= _check_slot(found, f"version {version}, group {group}", key, states)
            one = len(holders) <= 1
            found.expect(
                one,
                f"version {version}, group {group}: {sorted(map(str, holders))} hold key {key!r}",
            )
    return found


def _check_slot(
    found: Findings, where: str, key: str, states: list[tuple[int, str, str | None]]
) -> set[str | None]:
    """Check that no held message is behind an unsettled one. Return the holders."""
    holders: set[str | None] = set()
    waiting: int | None = None
    for sequence, state, holder in states:
        if state == "leased":
            found.counts["holds"] += 1
            holders.add(holder)
            found.expect(
                waiting is None,
                f"{where}: {holder} holds {sequence} of key {key!r} before {waiting}",
            )
        elif state in _HOLD_BACK and waiting is None:
            waiting = sequence
    return holders


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
