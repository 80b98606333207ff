"""Find messages by their ids or keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog, InvalidOption
from spark_mq.ledger.intervals import Interval
from spark_mq.parquet.reader import MessageReader
from spark_mq.storage.message_table import MessageTable

__all__ = ["check_ids", "find_values"]


def find_values(
    messages: MessageTable, column: str, wanted: Collection[str], intervals: Sequence[Interval]
) -> list[tuple[int, str]]:
    """Return sequence and value of the messages whose `column` (message_id or key) is wanted."""
    values, found = pa.array(wanted, pa.string()), list[tuple[int, str]]()
    index = messages.index(max((last for _, last in intervals), default=-1))
    reader = MessageReader(messages.files, [column])
    for piece in (piece for first, last in intervals for piece in index.slices(first, last)):
        try:
            rows = reader.read(piece)[column]
        except CorruptLog:
            continue  # a damaged file has no values
        hits = pc.indices_nonzero(pc.is_in(rows, value_set=values))
        sequences = (piece.first + row for row in hits.to_pylist())
        found += zip(sequences, rows.take(hits).to_pylist(), strict=True)
    return found


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return a list of message ids. Raise InvalidOption."""
    if not isinstance(ids, str | bytes) and isinstance(ids, Iterable):
        given = list(ids)
        if all(isinstance(one, str) for one in given):
            return given
    raise InvalidOption(
        f"message_ids={ids!r} is not a list of message ids", option="message_ids", value=ids
    )
