"""Hold the sequences of sorted messages in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pyarrow as pa

__all__ = ["PlacedSequences"]


class PlacedSequences(Sequence[int]):
    """The sequences of messages by position. `places` has the row of each message."""

    __slots__ = ("_first", "_places")

    def __init__(self, first: int, places: pa.Array) -> None:
        self._first, self._places = first, places

    def __repr__(self) -> str:
        return f"PlacedSequences({list(self[:10])}{', ...' if len(self) > 10 else ''})"

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            wanted = range(*at.indices(len(self)))
            places = self._places.take(pa.array(wanted, pa.int64())).to_pylist()
            return [self._first + place for place in places]
        place: int = self._places[range(len(self))[at]].as_py()
        return self._first + place

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlacedSequences):
            return self._first == other._first and bool(self._places.equals(other._places))
        if isinstance(other, list):
            return self[:] == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._first, len(self)))
