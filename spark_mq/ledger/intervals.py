"""Sets of sequences as inclusive intervals ``(first, last)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from spark_mq.errors import InvalidOption

__all__ = ["Interval", "format_intervals", "from_sequences", "normalise", "subtract"]

Interval = tuple[int, int]

MAX_FORMATTED: Final = 200
"""Intervals that a formatted list shows."""


def format_intervals(intervals: Sequence[Interval]) -> str:
    """Return intervals as text, such as ``1-3,7-7``. The text shows 200 at most."""
    text = ",".join(f"{first}-{last}" for first, last in intervals[:MAX_FORMATTED])
    if len(intervals) > MAX_FORMATTED:
        text += f",... {len(intervals) - MAX_FORMATTED} more"
    return text


def from_sequences(sequences: Iterable[Any]) -> list[Interval]:
    """Return the intervals of some sequences.

    Parameters
    ----------
    sequences
        Integers of 0 or more, in any order. Repeats are allowed.

    Raises
    ------
    InvalidOption
        A value is not a sequence, or `sequences` is not a list.

    Examples
    --------
    >>> from_sequences([3, 1, 2, 7])
    [(1, 3), (7, 7)]
    """
    if not isinstance(sequences, Iterable) or isinstance(sequences, str | bytes):
        raise InvalidOption(
            f"sequences={sequences!r} is not a list of sequences: it is "
            f"{type(sequences).__name__}. Give a list of whole numbers.",
            option="sequences",
            value=sequences,
        )
    checked = []
    for value in sequences:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise InvalidOption(
                f"{value!r} is not a sequence: a sequence is a whole number from 0. Use the "
                f"values of the column 'sequence'.",
                option="sequences",
                value=value,
            )
        checked.append((value, value))
    return normalise(checked)


def normalise(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same set as sorted, disjoint intervals with neighbours joined."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def subtract(intervals: Iterable[Interval], less: Iterable[Interval]) -> list[Interval]:
    """Return the parts of `intervals` that are not in `less`."""
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
