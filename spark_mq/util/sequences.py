"""Write a sequence as version:row, and read it from that form."""

from __future__ import annotations

import re
from typing import Final

_ROWS_OF_VERSION: Final = 2**32  # sequences of one version of ``messages/``
_PLACE: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def show_sequence(number: int) -> str:
    """Return a sequence as version:row. Without a row it is the place before a version."""
    version, row = divmod(number, _ROWS_OF_VERSION)
    if number < 0:
        return "-"
    return f"before {version + 1}:0" if row == _ROWS_OF_VERSION - 1 else f"{version}:{row}"


def number_in(text: str) -> str:
    """Return a sequence that is written as version:row as digits. Other texts stay."""
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2]) >= _ROWS_OF_VERSION:
        return text
    return str(int(match[1]) * _ROWS_OF_VERSION + int(match[2]))
