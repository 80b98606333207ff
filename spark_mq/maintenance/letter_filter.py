"""Choose dead letters by fields, without SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.maintenance.condition import Condition
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.error_shape import error_shapes

__all__ = ["LetterFilter"]

_TITLES: Final = {
    "died_in": "group", "reason": "reason", "shape": "failure", "key_prefix": "keys from",
    "message_id": "message id", "since": "leased since", "until": "leased before",
    "first": "from sequence", "last": "to sequence", "letters": "letters", "without": "without",
}  # fmt: skip


@dataclass
class LetterFilter(Condition):
    """A condition by fields, of which those that are None do not count."""

    died_in: str | None = None  # the group
    reason: str | None = None
    shape: str | None = None  # of the error
    key_prefix: str | None = None
    message_id: str | None = None
    since: datetime | None = None  # of the last lease
    until: datetime | None = None  # exclusive
    first: int | None = None  # sequence in the queue
    last: int | None = None  # inclusive
    letters: tuple[int, ...] = ()  # sequences in the dead-letter queue
    without: tuple[str, ...] = ()  # of died_in, reason and shape: those that a letter lacks
    name: str = field(init=False)
    may_fail = False

    def __post_init__(self) -> None:
        """Name the fields that count."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self) if each.init)
        parts = [
            f"{_TITLES[name]} {_shown(value)}" for name, value in given if value not in (None, ())
        ]
        self.name = ", ".join(parts) or "all letters"

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the letters for which all fields hold."""
        mask = pa.array([True] * rows.num_rows, pa.bool_())
        for holds in self._tests(rows):
            mask = pc.and_(mask, pc.fill_null(holds, False))
        return rows.filter(mask)

    def _tests(self, rows: pa.Table) -> Iterator[Any]:
        texts = {"died_in": "consumer_group", "reason": "reason", "message_id": "message_id"}
        columns = {name: rows[column] for name, column in texts.items()}
        if self.shape is not None or "shape" in self.without:
            columns["shape"] = error_shapes(rows["error"].combine_chunks())
        for name, column in columns.items():
            if name in self.without:
                yield pc.is_null(column)
            elif (value := getattr(self, name)) is not None:
                yield pc.equal(column, value)
        if self.key_prefix is not None:
            yield pc.starts_with(rows["key"], self.key_prefix)
        if self.since is not None:
            yield pc.greater_equal(rows["last_leased_at"], pa.scalar(self.since, INSTANT))
        if self.until is not None:
            yield pc.less(rows["last_leased_at"], pa.scalar(self.until, INSTANT))
        if self.first is not None:
            yield pc.greater_equal(rows["sequence"], self.first)
        if self.last is not None:
            yield pc.less_equal(rows["sequence"], self.last)
        if self.letters:
            wanted = pa.array(self.letters, pa.int64())
            yield pc.is_in(rows["dead_letter_sequence"], value_set=wanted)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
