"""What must be true after ``make fault``, from the tables and the actors' journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from support.checker import Findings, between, check_queue, history, published
from support.order_checker import check_order_of_queue

from .actors import GROUP, POISON, SPARK, journals

LEASED = ("leased", "replayed")
"""The events with which a lease begins."""


@dataclass(frozen=True)
class Expected:
    """Facts of the run that the queue does not hold."""

    attempts: int
    skew: timedelta
    ordered: bool
    """Whether the Python group keeps the order of keys."""


def judge(path: Path, notes: Path, sink: Path, reported: Expected) -> Findings:
    """Everything, for all groups. ``counts`` has the figures."""
    groups = [group for group in (GROUP, SPARK) if group == GROUP or sink.exists()]
    found = check_queue(path, skew=reported.skew, drained=groups)
    if reported.ordered:
        order = check_order_of_queue(path, [GROUP])
        found.wrong += order.wrong
        found.counts["holds"] = order.counts["holds"]
    rows, sequences = history(path), published(path)
    lost = journals(notes, "published") - set(sequences)
    leases = {(r["version"], r["lease_id"]) for r in rows if r["event"] in LEASED}
    found.counts["leases"] = len(leases)
    found.expect(not lost, f"confirmed and not there: {sorted(lost)[:5]}")
    table = DeltaTable(str(path / "messages")).to_pyarrow_table(columns=["message_id", "value"])
    ids = Counter(one for one in table["message_id"].to_pylist() if (one or "")[:8] == "numbered")
    twice = [one for one, n in ids.items() if n > 1]
    found.expect(not twice, f"published twice: {twice[:5]}")
    poisons = pc.sum(pc.equal(table["value"], POISON)).as_py()
    by_effect(found, rows, journals(notes, "done"), sink)
    for group in groups:
        died = _dead(path, group)
        bad = {seq: count for seq, (value, count) in died.items() if value == POISON}
        found.expect(len(bad) == poisons, f"group {group}: {poisons} poisons, {len(bad)} dead")
        what = f"group {group}: poison died after {bad}, not {reported.attempts} deliveries"
        found.expect(set(bad.values()) <= {reported.attempts}, what)
        found.counts[f"poisons dead in {group}"] = len(bad)
        innocents(found, rows, group, set(died) - set(bad))
    return found


def by_effect(found: Findings, rows: Iterable[dict[str, Any]], done: set[int], sink: Path) -> None:
    """No ack without the work: what was acked stands in a journal of a worker, or in the sink of
    the stream.
    """
    effects = {GROUP: done}
    if sink.exists():
        effects[SPARK] = set(DeltaTable(str(sink)).to_pyarrow_table()["sequence"].to_pylist())
    for group, known in effects.items():
        acks = [r for r in rows if r["consumer_group"] == group and r["event"] == "acked"]
        acked = {seq for r in acks for seq in between(sorted(known), r["first"], r["last"])}
        count = sum(r["message_count"] for r in acks)
        what = f"group {group}: {count} acked, of which the work is there for {len(acked)}"
        found.expect(len(acked) == count, what)


def innocents(found: Findings, rows: list[dict[str, Any]], group: str, died: set[int]) -> None:
    """What is dead and no poison was alone in its last lease, when somebody was killed."""
    last = _last_leases(rows, group, died)
    for seq in died:
        size = last.get(seq)
        found.expect(size == 1, f"group {group}: innocent {seq} died in a lease of {size}")
        found.counts[f"died alone, by chance, in {group}"] += 1


def _dead(path: Path, group: str) -> dict[int, tuple[bytes, int]]:
    """The dead letters of a group: value and delivery count by sequence."""
    table = DeltaTable(str(path / "dead_letters" / "messages"))
    letters = table.to_pyarrow_table(columns=["headers", "value"]).to_pylist()
    reported = [(dict(letter["headers"]), letter["value"]) for letter in letters]
    return {
        int(headers["spark_mq.sequence"]): (value, int(headers["spark_mq.delivery_count"]))
        for headers, value in reported
        if headers["spark_mq.group"] == group
    }


def _last_leases(rows: list[dict[str, Any]], group: str, of: set[int]) -> dict[int, int]:
    """How many messages the last lease of a message held."""
    leases = [r for r in rows if r["consumer_group"] == group and r["event"] in LEASED]
    sizes: Counter[tuple[int, str]] = Counter()
    for r in leases:
        sizes[r["version"], r["lease_id"]] += r["message_count"]
    last: dict[int, int] = {}
    for r in leases:
        held = between(sorted(of), r["first"], r["last"])
        last |= dict.fromkeys(held, sizes[r["version"], r["lease_id"]])
    return last
