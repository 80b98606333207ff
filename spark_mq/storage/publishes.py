"""Hold the messages of a publish until they land, and say how it ended."""

from __future__ import annotations

import reprlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import DuplicatePublish, InvalidOption, ProducerFenced, StorageError
from spark_mq.ledger.intervals import MAX_REPLACED_BYTES, encode_replaced
from spark_mq.ledger.message_index import sequence
from spark_mq.ledger.walk import AskHeld
from spark_mq.parquet.writer import WrittenFile, discard_files, write_file
from spark_mq.storage.id_files import ID_BYTES, IdWindow
from spark_mq.util.records import object_html
from spark_mq.util.show import show_count
from spark_mq.util.validation import invalid, plain_number, validate_name

_NEVER: Final = 2**63 - 1  # nothing was published since


def hashed_ids(ids: pa.ChunkedArray) -> list[bytes | None]:
    """Return a hash of 128 bits for each id. Null stays None."""
    return [
        None if text is None else blake2b(text, digest_size=ID_BYTES).digest()
        for text in ids.cast(pa.binary()).to_pylist()
    ]


class Met(NamedTuple):
    """What the ids of a publish have met, by position."""

    duplicates: Mapping[int, int]  # as ``IdWindow.duplicates`` returns them
    replaces: Mapping[int, int] = MappingProxyType({})  # the sequences of replaced messages
    replaced_text: str = ""  # the same, as the commit has it


NOTHING_MET: Final = Met({})


class PendingPublish:
    """Messages to publish, in tables or in files that are written already.

    With `ids`, one hash or None for each message, each id counts within `window` microseconds
    before `now`, and as long as a message holds it by `ask`. A second message with an id that
    counts is a duplicate, or with `replaces` it replaces the first one.
    """

    def __init__(
        self,
        store: ObjectStore,
        given: Sequence[pa.Table | WrittenFile],
        ids: Sequence[bytes | None] = (),
        now: int = 0,
        window: int | None = None,
        *,
        ask: AskHeld | None = None,
        lanes: int = 0,
        batch: str | None = None,
        replaces: bool = False,
    ) -> None:
        self.ids = ids
        self.batch = batch  # the message batch, which must be open, or None
        self.now = now
        self.since = _NEVER if window is None else now - window
        self.ask = ask
        # The files of each commit that was tried, and what its ids have met.
        self.tried: list[tuple[list[WrittenFile], Met]] = []
        self.landed: Sequence[WrittenFile] = ()  # the files that the commit published
        self.fence = -1  # the last list of leftovers as of now, of the files that are written next
        self._store, self._given, self._lanes, self._replaces = store, given, lanes, replaces
        self._last: tuple[set[int], list[WrittenFile]] | None = None
        # Given files stay after an error, unless their duplicates are written again.
        self._written = [part for part in given if ids and isinstance(part, WrittenFile)]

    @property
    def rows(self) -> int:
        """Return the number of messages, with duplicates."""
        return sum(map(_count, self._given))

    def meet(self, window: IdWindow) -> Met:
        """Return what the ids of the messages meet in the window of the log."""
        if self._replaces:
            duplicates, replaces = window.replaced(self.ids, self.since, self.ask)
            return Met(duplicates, replaces, _replaced_text(replaces))
        return Met(window.duplicates(self.ids, self.since, self.ask))

    def files(self, duplicates: Collection[int] = ()) -> list[WrittenFile]:
        """Return the files of all messages but the duplicates. They are written when asked for."""
        left_out = set(duplicates)
        if self._last is None or self._last[0] != left_out:
            self._last = (left_out, list(self._make(left_out)))
        return self._last[1]

    def write_again(self) -> None:
        """Write the files again when they are asked for. Raise StorageError for given ones."""
        given = [part for part in self._given if isinstance(part, WrittenFile)]
        if given:
            raise StorageError(
                f"publishing to {self._store.root} failed, nothing was changed: its files, such as "
                f"{given[0].path}, were written more than a day before their commit, so a sweep "
                "took them for those of a dead publish. Publish the messages again, in smaller "
                "parts",
                path=self._store.root,
                landed=False,
            )
        self._last = None

    def fresh(self, duplicates: Collection[int]) -> dict[bytes, int]:
        """Return the id of each message but the duplicates, with its row in the commit."""
        if not self.ids:
            return {}
        left = (hashed for at, hashed in enumerate(self.ids) if at not in duplicates)
        rows = _rows(self.files(duplicates))
        return {hashed: row for hashed, row in zip(left, rows, strict=True) if hashed is not None}

    def discard(self, keep: Sequence[WrittenFile] = ()) -> None:
        kept = {file.path for file in keep}
        discard_files(self._store, (file for file in self._written if file.path not in kept))

    def _make(self, duplicates: set[int]) -> Iterator[WrittenFile]:
        first = 0
        for part in self._given:
            rows = range(first, first + _count(part))
            first = rows.stop
            if duplicates.issuperset(rows):  # even if there are none
                continue
            if isinstance(part, WrittenFile) and duplicates.isdisjoint(rows):
                yield part
                continue
            table = self._read(part) if isinstance(part, WrittenFile) else part
            if not duplicates.isdisjoint(rows):
                table = table.filter(pa.array([at not in duplicates for at in rows]))
            file = write_file(self._store, table, sync=False, lanes=self._lanes, fence=self.fence)
            self._written.append(file)
            yield file

    def _read(self, file: WrittenFile) -> pa.Table:
        with self._store.open(file.path) as source:
            return pq.ParquetFile(source).read(use_threads=False)


def _replaced_text(replaces: Mapping[int, int]) -> str:
    text = encode_replaced(replaces.values())
    if len(text) > MAX_REPLACED_BYTES:
        count = len(replaces)
        parts = 1 + 2 * len(text) // MAX_REPLACED_BYTES
        raise InvalidOption(
            f"this publish replaces {show_count(count, 'message')} that lie too far apart to name "
            f"them in one commit, so nothing was published. Publish in {parts} parts, of about "
            f"{count // parts:,} messages with a known dedup_id each",
            option="dedup_id",
            value=count,
        )
    return text


def _rows(files: Iterable[WrittenFile]) -> Iterator[int]:
    """Yield the row in the commit of each given message."""
    first = 0
    for file in files:
        places = range(file.rows) if file.places is None else file.places.to_pylist()
        yield from (first + place for place in places)
        first += file.rows


def _count(part: pa.Table | WrittenFile) -> int:
    return int(part.rows if isinstance(part, WrittenFile) else part.num_rows)


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """The receipt of a publish.

    ``version`` is the version of ``messages/``. ``sequences`` are in the order of the given
    messages: a ``range``, or a list in a queue with lanes or priorities.

    ``duplicate`` means that the call published nothing, because its number or a higher one had
    landed before (``on_duplicate="skip"``), or all of its dedup ids had. For the producer's latest
    number, this is the first call's receipt. For another number, ``version`` is None and there are
    no sequences. A call without messages has these values too, but it is no duplicate.
    """

    version: int | None
    sequences: Sequence[int] = field(hash=False)
    duplicate: bool = False
    duplicates: tuple[int, ...] = ()
    """Positions of the given messages that had been published before. They have no sequence."""
    duplicate_of: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The sequence of the message that each of the ``duplicates`` met, by position."""
    replaces: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The sequence of the earlier message that a message replaces, by position."""

    def _repr_html_(self) -> str:
        facts = {
            "version": self.version,
            "published": self.published,
            "sequences": (min(self.sequences), max(self.sequences)) if self.sequences else None,
            "duplicates": len(self.duplicates),
            "replaced": len(self.replaces),
        }
        return object_html(facts, "PublishReceipt")

    @classmethod
    def of_commit(cls, version: int, rows: int) -> PublishReceipt:
        """Return the receipt of a commit that published `rows` messages."""
        return cls(version, range(sequence(version, 0), sequence(version, rows)))

    @classmethod
    def of_files(cls, version: int, files: Sequence[WrittenFile], met: Met) -> PublishReceipt:
        """Return the receipt of files, for one file in the order in which its messages came."""
        receipt = cls.of_commit(version, sum(file.rows for file in files))
        places = files[0].places if len(files) == 1 else None
        receipt = receipt.sorted_by(places).with_duplicates(met.duplicates)
        return replace(receipt, replaces=dict(met.replaces)) if met.replaces else receipt

    @classmethod
    def of_duplicates(cls, duplicates: Mapping[int, int]) -> PublishReceipt:
        return cls(None, range(0), duplicate=True).with_duplicates(duplicates)

    def sorted_by(self, places: pa.Array | None) -> PublishReceipt:
        """Return the receipt with sorted messages. `places` has the row of each, or None."""
        if places is None:
            return self
        return replace(self, sequences=_Sequences(pc.add(places, self.sequences[0]).to_pylist()))

    def with_duplicates(self, duplicates: Mapping[int, int]) -> PublishReceipt:
        """Return the receipt with what :meth:`IdWindow.duplicates` returns."""
        if not duplicates:
            return self
        receipt = replace(self, duplicates=tuple(duplicates))
        met = {
            at: first if first >= 0 else receipt._fresh(~first) for at, first in duplicates.items()
        }
        return replace(receipt, duplicate_of=met)

    @property
    def published(self) -> int:
        """Return how many messages the call published: 0 for a duplicate or an empty list."""
        return 0 if self.duplicate else len(self.sequences)

    def sequence_of(self, position: int) -> int | None:
        """Return the sequence of the message at a position, or None if it is a duplicate.

        Raises InvalidOption for a position that is not one of the given messages, from 0.
        """
        count = len(self.sequences) + len(self.duplicates)
        position = plain_number(position)
        known = isinstance(position, int) and not isinstance(position, bool)
        if not known or not 0 <= position < count:
            has = show_count(count, "message")
            fix = f": give a whole number from 0 to {count - 1}" if count else ""
            raise invalid("position", position, f"is not in this receipt, which has {has}{fix}")
        before = bisect_left(self.duplicates, position)
        if self.duplicates[before : before + 1] == (position,):
            return None
        return self.sequences[position - before]

    def _fresh(self, position: int) -> int:
        return self.sequences[position - bisect_left(self.duplicates, position)]


class _Sequences(list[int]):
    """The sequences of sorted messages in the order given."""

    def __repr__(self) -> str:
        return reprlib.repr(self[:10])  # a publish may have a million


def check_txn(last: int | None, txn: tuple[str, int], after: int | None = None) -> None:
    """Raise DuplicatePublish for a number up to `last`, ProducerFenced if `after` is not `last`."""
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
    return "spark_mq.producer:" + validate_name("producer_id", producer_id)


def fence_of(app: str) -> str:
    """Return the app id of the numbers of a producer that were fenced, so never published."""
    return f"{app}/fence"  # no producer has a slash in its name
