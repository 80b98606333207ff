"""Describe what a publish has published, and check a producer's number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import pyarrow as pa

from spark_mq.errors import DuplicatePublish, ProducerFenced
from spark_mq.ledger.intervals import SequenceRange
from spark_mq.ledger.message_index import sequence
from spark_mq.parquet.writer import WrittenFile
from spark_mq.util.validation import validate_name

__all__ = ["PermutedSequences", "PublishReceipt", "check_txn", "producer_txn"]


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """The receipt of a publish.

    ``version`` is the version of ``messages/``. ``sequences`` are in the order of the given
    messages. They behave as a ``range`` and equal a list of the same numbers. In a queue with lanes
    or priorities, they are a sequence that equals such a list.

    ``duplicate`` means that the call published nothing, because its number or a higher one had
    landed before (``on_duplicate="skip"``), or all of its dedup ids had. For the producer's latest
    number, this is the first call's receipt. For another number, ``version`` is None and there are
    no sequences. A call without messages has these values too, but it is no duplicate.
    """

    version: int | None
    sequences: Sequence[int]
    duplicate: bool = False
    duplicates: tuple[int, ...] = ()
    """Positions of the given messages that had been published before. They have no sequence."""

    @classmethod
    def of_commit(cls, version: int, rows: int, duplicates: tuple[int, ...] = ()) -> PublishReceipt:
        """Return the receipt of a commit that published `rows` messages."""
        sequences = range(sequence(version, 0), sequence(version, rows))
        return cls(version, sequences, duplicates=duplicates)

    @property
    def published(self) -> int:
        """Return how many messages the call published: 0 for a duplicate or an empty list."""
        return 0 if self.duplicate else len(self.sequences)

    def sequence_of(self, position: int) -> int | None:
        """Return the sequence of the message at a position, or None if it is a duplicate."""
        before = bisect_left(self.duplicates, position)
        if self.duplicates[before : before + 1] == (position,):
            return None
        return self.sequences[position - before]

    def placed(self, written: WrittenFile) -> PublishReceipt:
        """Return the receipt of one file, in the order given."""
        if written.places is None or len(written.places) != len(self.sequences):
            return self
        return replace(self, sequences=PermutedSequences(self.sequences[0], written.places))

    def __post_init__(self) -> None:
        if isinstance(self.sequences, range):
            object.__setattr__(self, "sequences", SequenceRange(self.sequences))


class PermutedSequences(Sequence[int]):
    """The sequences of sorted messages in the order given. `places` has the row of each message."""

    __slots__ = ("_first", "_places")

    def __init__(self, first: int, places: pa.Array) -> None:
        self._first, self._places = first, places

    def __repr__(self) -> str:
        return f"PermutedSequences({list(self[:10])}{', ...' if len(self) > 10 else ''})"

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
        if isinstance(other, PermutedSequences):
            return self._first == other._first and bool(self._places.equals(other._places))
        if isinstance(other, list):
            return self[:] == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._first, len(self)))


def check_txn(last: int | None, txn: tuple[str, int], after: int | None = None) -> None:
    """Raise DuplicatePublish if a producer's new number is not above `last`.

    Raise ProducerFenced if `after` is given, and is not `last`.
    """
    if after is not None and after != (last or 0):
        producer = txn[0].rpartition(":")[2]
        raise ProducerFenced(
            f"another publisher has published as producer {producer!r}: its last number is {last}, "
            f"not {after}. Stop one of them, and make another publisher",
            producer_id=producer,
            last_sequence=last,
            expected=after,
        )
    if last is not None and last >= txn[1]:
        producer = txn[0].rpartition(":")[2]
        raise DuplicatePublish(
            f"producer {producer!r} has published number {last} already, so {txn[1]} is not "
            f"published again",
            producer_id=producer,
            last_sequence=last,
            receipt=None,
        )


def producer_txn(producer_id: str) -> str:
    """Return the app id of a producer's numbers in ``messages/``."""
    return "spark_mq.producer:" + validate_name("producer_id", producer_id)
