"""Define the store of the append-only log of messages."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_mq.delta.actions import AddFile
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import DuplicatePublish, ProducerFenced, StorageError, TablesDisagree
from spark_mq.ledger.intervals import Interval, SequenceRange
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice, MessageIndex, sequence
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.draft import Draft
from spark_mq.storage.placed_sequences import PlacedSequences
from spark_mq.storage.published_files import PublishedFiles
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import validate_name

__all__ = [
    "LogPlan",
    "MessageStore",
    "PublishReceipt",
    "check_txn",
    "producer_txn",
    "tables_disagree",
]


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
        return replace(self, sequences=PlacedSequences(self.sequences[0], written.places))

    def __post_init__(self) -> None:
        if isinstance(self.sequences, range):
            object.__setattr__(self, "sequences", SequenceRange(self.sequences))


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The planned recovery of the log of messages and its index."""

    index: MessageIndex  # of the log's messages, without the gap
    covered: int = -1  # the last version that ``commits/`` has
    agreed: int = -1  # the last version up to which ``commits/`` and the log agree
    gap: Interval | None = None  # sequences of commits that neither the log nor ``commits/`` has
    unknown: Sequence[AddFile] = field(default=())  # data files that no known commit added
    published: PublishedFiles | None = None

    @property
    def unknown_rows(self) -> int:
        return sum(file.rows or 0 for file in self.unknown)


class MessageStore(ABC):
    """The store of a queue's messages. ``storage/memory.py`` implements it in memory."""

    path: str
    files: ObjectStore
    notifier: Notifier  # notified after each publish
    lanes: int = 0

    def publish(
        self,
        table: pa.Table,
        *,
        txn: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish a table of messages as one durable commit. Errors as :meth:`commit`."""
        written = write_file(self.files, table, sync=False, lanes=self.lanes)
        try:
            return self.commit([written], txn=txn, note=note).placed(written)
        except (DuplicatePublish, TablesDisagree):
            self.discard(written)
            raise
        except StorageError as error:
            if (
                error.data["landed"] is False and self.files.is_local
            ):  # in an object store it may land later still
                self.discard(written)
            raise

    def discard(self, written: WrittenFile) -> None:
        """Delete a file that no commit will ever name."""
        with contextlib.suppress(OSError):
            self.files.delete(written.path)

    @abstractmethod
    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish files of :func:`write_file` as one commit, all or nothing.

        `txn` is a producer id and a number. Raise DuplicatePublish if it has published that number
        or a higher one. Raise ProducerFenced if its last number is not `after`, which is 0 for
        none. `note` is the commit's account of itself.
        """

    @abstractmethod
    def commit_unique(
        self,
        draft: Draft,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish the messages of a draft that are no duplicates. Errors as :meth:`commit`.

        Check and publish are one commit. A duplicate has an id that was published in the draft's
        window.
        """

    @abstractmethod
    def clean_ids(self) -> int:
        """Delete the files of ids that no publish needs. Return their number."""

    @abstractmethod
    def last_number(self, app: str) -> int | None:
        """Return the number last committed for `app`, or None."""

    @abstractmethod
    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        """Return the receipt of a number, or None without its commit."""

    def receipt_of(self, written: WrittenFile) -> PublishReceipt | None:
        """Return the receipt of a file, or None without its commit."""
        for file in reversed(self.index().files):
            if file.path == written.path:
                return PublishReceipt(
                    file.first >> ORDINAL_BITS,
                    SequenceRange(range(file.first, file.first + file.rows)),
                )
        return None

    def note(self, version: int) -> dict[str, Any]:
        """Return the note of a commit of spark_mq, or an empty one if it is unknown."""
        return {}

    @property
    def trimmed(self) -> int:
        """Return the last trimmed sequence as of the last look, or -1."""
        return -1

    @abstractmethod
    def index(self, reach: int | None = None) -> MessageIndex:
        """Return the commit index, with the latest commit.

        An index only grows. A store that forgets files makes another one. An index that already
        contains the sequence `reach` needs no look at the table.
        """

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        """Return the commit index for a lease of messages after a sequence.

        Over an object store it may be a moment old, if it has enough messages for the lease.
        """
        return self.index()

    @property
    @abstractmethod
    def description(self) -> str | None:
        """Return the text that describes the queue as of the last look, or None."""

    @abstractmethod
    def describe(self, text: Callable[[str | None], str], operation: str = "describe") -> None:
        """Change the description by a function, in one commit. An equal text makes no commit.

        The function may run again after a conflict.
        """

    @abstractmethod
    def known(self) -> MessageIndex:
        """Return the commit index without a look at the table."""

    @abstractmethod
    def drop(self, horizon: int) -> int:
        """Drop files wholly at or below `horizon`. Return their number. Safe to kill and repeat."""

    def full_index(self, first: int) -> MessageIndex:
        """Return the index with known forgotten files from `first` on."""
        return self.index()

    @abstractmethod
    def forget(self, up_to: int, keep_since: int) -> None:
        """Forget the index of trimmed commits that no group needs.

        `up_to` is the horizon of a trim that has dropped its files, or a lower floor of a group.
        :meth:`full_index` still has commits from `keep_since` on, in microseconds.
        """

    @abstractmethod
    def expect(self, reached: Callable[[bool], int]) -> None:
        """Refuse a log that the ledgers are ahead of, from now on.

        `reached` returns the last sequence that a ledger has reached. With True it looks for new
        commits.
        """

    @abstractmethod
    def plan_recovery(self) -> LogPlan:
        """Compare the log with ``commits/``. Change nothing."""

    @abstractmethod
    def publish_again(self, plan: LogPlan) -> None:
        """Publish the files that no known commit added."""

    @abstractmethod
    def rewrite_commits(self, plan: LogPlan) -> None:
        """Make ``commits/`` describe this log."""

    @abstractmethod
    def index_commits(self) -> int:
        """Write new commits to ``commits/``. Return their number."""

    @abstractmethod
    def index_progress(self) -> tuple[int, int | None]:
        """Return the last version in ``commits/``, or -1, and its time in microseconds, or None."""

    @abstractmethod
    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        """Delete old commits that ``commits/`` has. Return the number of files."""

    def read(
        self, slices: Iterable[FileSlice], columns: list[str] | None = None
    ) -> Iterator[tuple[FileSlice, pa.Table]]:
        """Yield slices with their messages, in order. Errors as :meth:`MessageReader.read`."""
        reader = MessageReader(self.files, columns)
        for piece in slices:
            yield piece, reader.read(piece)


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


def tables_disagree(path: str, reason: str) -> TablesDisagree:
    """Return the error for a table that was restored alone."""
    return TablesDisagree(
        f"the tables of a queue disagree: {reason}. One of them was restored alone. Restore all "
        "tables of one backup, or stop all workers and run Queue.recover(dry_run=True)",
        path=path,
        version=None,
    )
