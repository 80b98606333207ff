"""Describe operations in the metadata of their commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_mq.ledger.intervals import format_intervals
from spark_mq.ledger.settle import SettleCommand, SettleOutcome

__all__ = ["join_commit_info", "settle_info"]

_LISTS: Final = (
    ("operation", "+"),
    ("lease_id", ","),
    ("worker_id", ","),
)
"""The items that list several values, each with its separator."""


def join_commit_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the metadata of several operations, for DESCRIBE HISTORY."""
    joined: dict[str, Any] = {}
    for info in infos:
        joined |= info
    for name, separator in _LISTS:
        given = (str(info[name]).split(separator) for info in infos if info.get(name))
        if parts := dict.fromkeys(part for some in given for part in some):
            joined[name] = separator.join(parts)
    if "messages" in joined:
        joined["messages"] = sum(info.get("messages", 0) for info in infos)
    if "ranges" in joined:
        joined["ranges"] = " ".join(filter(None, map(_named_ranges, infos)))
    return joined


def _named_ranges(info: Mapping[str, Any]) -> str:
    """Return the ranges of an operation with its name, which those of a settle have already."""
    ranges = str(info.get("ranges", ""))
    return f"{info['operation']} {ranges}" if ranges[:1].isdigit() else ranges


def settle_info(
    commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]
) -> dict[str, Any]:
    """Return the metadata of a commit of settle commands, for DESCRIBE HISTORY."""
    done = [(c, o) for c, o in zip(commands, outcomes, strict=True) if o.settled or o.ended]
    return {
        "operation": "+".join(dict.fromkeys(c.verb for c, _ in done)),
        "lease_id": ",".join(dict.fromkeys(c.lease_id for c, _ in done)),
        "messages": sum(o.settled for _, o in done),
        "ranges": " ".join(f"{c.verb} {format_intervals(o.ranges)}" for c, o in done if o.settled),
    }
