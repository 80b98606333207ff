"""Define sets of sequences as inclusive intervals ``(first, last)``, also as text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.util.validation import is_message, plain_number, plain_values, short_repr

Interval = tuple[int, int]

_MAX_SHOWN: Final = 40  # characters of a value that isn't a sequence
_last_of: Final = itemgetter(1)
MAX_FORMATTED: Final = 200  # intervals that a text shows


def format_intervals(intervals: Sequence[Interval]) -> str:
    """Return intervals as text, such as ``1-3,7-7``, 200 of them at most."""
    text = ",".join(f"{first}-{last}" for first, last in intervals[:MAX_FORMATTED])
    if len(intervals) > MAX_FORMATTED:
        text += f",... {len(intervals) - MAX_FORMATTED} more"
    return text


def from_sequences(sequences: Any) -> list[Interval]:
    """Return the intervals of a user's sequences or messages, or raise InvalidOption.

    A ``range`` is one interval: it is not iterated, and gaps between its messages are fine.
    """
    if is_message(sequences):
        sequences = [sequences]
    sequences = plain_values(sequences)
    if not isinstance(sequences, Iterable) or isinstance(sequences, str | bytes):
        raise InvalidOption(
            f"sequences is {type(sequences).__name__}, not a list of sequences: give messages, or "
            "a list of whole numbers",
            option="sequences",
            value=sequences,
        )
    if isinstance(sequences, range) and abs(sequences.step) == 1:
        ends = [_checked(sequences[at]) for at in (0, -1)] if sequences else []
        return [(min(ends), max(ends))] if ends else []
    checked = map(_checked, sequences)
    return normalise((value, value) for value in checked)


def _checked(given: Any) -> int:
    if type(given) is int and 0 <= given < 2**63:
        return given  # the fast path
    value = plain_number(getattr(given, "sequence", given) if is_message(given) else given)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    shown = short_repr(value)
    if len(shown) > _MAX_SHOWN:
        shown = f"a {type(value).__name__}"  # it may be a payload
    raise InvalidOption(
        f"{shown} is not a sequence: give messages, or whole numbers from 0, such as the values "
        "of the column 'sequence'",
        option="sequences",
        value=value,
    )


def normalise(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same set as sorted, disjoint intervals with neighbours joined."""
    out: list[Interval] = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out


def intersect(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    some = list(some)
    return subtract(some, subtract(some, others))


def subtract(intervals: Iterable[Interval], less: Iterable[Interval]) -> list[Interval]:
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


def split_at(
    intervals: Sequence[Interval], first: int, last: int
) -> Iterator[tuple[bool, int, int]]:
    """Yield whether each run of ``first..last`` is in the intervals, and its bounds, in order."""
    at = bisect_left(intervals, first, key=_last_of)
    while first <= last:
        low, high = intervals[at] if at < len(intervals) else (last + 1, last + 1)
        if first < low:
            yield False, first, min(last, low - 1)
            first = low
        else:
            yield True, first, min(last, high)
            first, at = high + 1, at + 1


# The messages that those of a file replace are text in the ``add`` of that file. Every reader of
# the log reads it, and every checkpoint keeps it, so it is bounded in each commit.
MAX_REPLACED_BYTES: Final = 2**18
_INTERVAL: Final = r"[0-9]{1,19}(\+[0-9]{1,19})?"
_REPLACED: Final = re.compile(f"{_INTERVAL}(,{_INTERVAL})*")


def encode_replaced(sequences: Iterable[int]) -> str:
    """Return sequences as text, such as ``7+2,4`` for 7 to 9 and 13."""
    # Each number counts on from the one before, so that the sequences of one commit are short.
    parts, before = list[str](), 0
    for first, last in normalise((sequence, sequence) for sequence in sequences):
        more = f"+{last - first}" if last > first else ""
        parts.append(f"{first - before}{more}")
        before = last
    return ",".join(parts)


def decode_replaced(text: str) -> list[Interval]:
    """Return the intervals in a text of :func:`encode_replaced`, in order."""
    pairs = (part.partition("+") for part in text.split(","))
    steps = ((int(gap), int(more or 0)) for gap, _, more in pairs)
    ends = list(accumulate(chain.from_iterable(steps)))
    return list(zip(ends[::2], ends[1::2], strict=True))


def valid_replaced(text: object, before: int) -> bool:
    """Return whether a tag names messages before a sequence. Any writer may have written it."""
    if not isinstance(text, str) or not _REPLACED.fullmatch(text):
        return False
    return decode_replaced(text)[-1][1] < before
