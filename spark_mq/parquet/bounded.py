"""Read slices in parts that fit in memory, however large their messages are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa

from spark_mq.ledger.message_index import FileSlice

__all__ = ["PART_BYTES", "PartSizer", "cut_by_size", "cut_slices"]

T = TypeVar("T")

PART_BYTES: Final = 16 * 2**20
"""Bytes of messages that are read at once."""
_MAX_ROWS: Final = 5_000
"""Messages that are read at once. Headers are Python objects for a while."""
_FIRST_ROWS: Final = 100
_GROWTH: Final = 4


class PartSizer:
    """Chooses how many messages to read at once, by the size of those that were read.

    The size of a file says little, because it is compressed.

    Parameters
    ----------
    max_bytes
        Bytes of a part, unless a single message is larger.
    max_rows
        Messages of a part.
    """

    def __init__(self, max_bytes: int = PART_BYTES, max_rows: int = _MAX_ROWS) -> None:
        self._max_bytes, self._max_rows = max_bytes, max_rows
        self.rows = min(_FIRST_ROWS, max_rows)
        """Messages of the next part."""

    def saw(self, table: pa.Table) -> None:
        """Note the size of a part that was read."""
        if table.num_rows:
            width = max(1, table.nbytes // table.num_rows)
            fitting = min(self._max_bytes // width, self._max_rows, _GROWTH * self.rows)
            self.rows = max(1, fitting)


def cut_slices(
    slices: Iterable[tuple[FileSlice, T]], sizer: PartSizer
) -> Iterator[list[tuple[FileSlice, T]]]:
    """Yield slices in their order, in parts of as many messages as a sizer wants."""
    part: list[tuple[FileSlice, T]] = []
    room = sizer.rows
    for piece, note in slices:
        done = 0
        while done < piece.rows:
            rows = min(room, piece.rows - done)
            part.append((_cut(piece, done, rows), note))
            done, room = done + rows, room - rows
            if not room:
                yield part
                part, room = [], sizer.rows
    if part:
        yield part


def cut_by_size(piece: FileSlice, max_bytes: int) -> Iterator[FileSlice]:
    """Yield a slice in parts of about so many bytes of its file."""
    rows = max(1, piece.rows * max_bytes // max(1, piece.size))
    for start in range(0, piece.rows, rows):
        yield _cut(piece, start, min(rows, piece.rows - start))


def _cut(piece: FileSlice, start: int, rows: int) -> FileSlice:
    size = piece.size * rows // max(1, piece.rows)
    return replace(
        piece, offset=piece.offset + start, first=piece.first + start, rows=rows, size=size
    )
