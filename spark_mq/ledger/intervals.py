"""Sets of sequences as inclusive intervals ``(first, last)``: how settles are written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_mq.errors import InvalidOption

__all__ = ["Interval", "from_sequences", "normalise", "subtract"]

Interval = tuple[int, int]


def from_sequences(sequences: Iterable[Any]) -> list[Interval]:
    """The intervals of some sequences, in any order, repeats allowed. Raises InvalidOption for what is no sequence."""
    if not isinstance(sequences, Iterable) or isinstance(sequences, str | bytes):
        raise InvalidOption(f"sequences={sequences!r} is not a list of sequences", option="sequences", value=sequences)
    checked = []
    for value in sequences:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise InvalidOption(
                f"{value!r} is not a sequence: use the whole numbers of the column 'sequence'",
                option="sequences",
                value=value,
            )
        checked.append((value, value))
    return normalise(checked)


def normalise(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted, without overlaps, neighbours joined."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def subtract(intervals: Iterable[Interval], less: Iterable[Interval]) -> list[Interval]:
    """What of `intervals` does not lie in `less`."""
    out: list[Interval] = []
    gone = normalise(less)
    at = 0
    for first, last in normalise(intervals):
        while at < len(gone) and gone[at][1] < first:
            at += 1
        cursor = at
        while cursor < len(gone) and gone[cursor][0] <= last:
            if first < gone[cursor][0]:
                out.append((first, gone[cursor][0] - 1))
            first = gone[cursor][1] + 1
            cursor += 1
        if first <= last:
            out.append((first, last))
    return out
