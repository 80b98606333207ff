"""Name the messages that the messages of a file replace, as text in the ``add`` of that file.

A group that has never leased a replaced message skips it. Each number of the text counts on from
the one before, so that the sequences of one commit are short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate, chain
from typing import Final

from spark_mq.ledger.intervals import Interval, normalise

__all__ = [
    "MAX_REPLACED_BYTES",
    "decode_replaced",
    "encode_replaced",
    "valid_replaced",
]

# Of the text of one commit, which every reader of the log reads and every checkpoint keeps.
MAX_REPLACED_BYTES: Final = 2**18
_INTERVAL: Final = r"[0-9]{1,19}(\+[0-9]{1,19})?"
_TEXT: Final = re.compile(f"{_INTERVAL}(,{_INTERVAL})*")


def encode_replaced(sequences: Iterable[int]) -> str:
    """Return sequences as text, such as ``7+2,4`` for 7 to 9 and 13."""
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
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        return False
    return decode_replaced(text)[-1][1] < before
