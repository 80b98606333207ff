"""Define what a store of the append-only log of messages offers."""

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
    "check_mark",
    "producer_txn",
    "tables_disagree",
]


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """Where messages landed: the Delta ``version`` of ``messages/`` and their ``sequences`` in the
    order given. The sequences behave as a ``range`` and equal a list of the same numbers. In a
    queue with lanes or priorities they are a sequence that equals such a list.

    ``duplicate``: the call published nothing, for its number, or a higher one, had landed before
    (``on_duplicate="skip"``), or all of its dedup ids had. For a number it is then the
    first call's receipt; for another number than the producer's latest, that is not known: version
    None, no sequences. A call without messages has these too, and is no duplicate.
    """

    version: int | None
    sequences: Sequence[int]
    duplicate: bool = False
    duplicates: tuple[int, ...] = ()
    """Positions of the given messages whose dedup id was published before. They have no
    sequence."""

    @classmethod
    def of_commit(cls, version: int, rows: int, duplicates: tuple[int, ...] = ()) -> PublishReceipt:
        """Return the receipt of a commit that published so many messages."""
        sequences = range(sequence(version, 0), sequence(version, rows))
        return cls(version, sequences, duplicates=duplicates)

    @property
    def published(self) -> int:
        """Return how many messages the call published. 0 for a duplicate and an empty list."""
        return 0 if self.duplicate else len(self.sequences)

    def sequence_of(self, position: int) -> int | None:
        """Return the sequence of a given message by its position; None for a duplicate."""
        before = bisect_left(self.duplicates, position)
        if self.duplicates[before : before + 1] == (position,):
            return None
        return self.sequences[position - before]

    def placed(self, written: WrittenFile) -> PublishReceipt:
        """Return the receipt of one file with the sequences in the order given."""
        if written.places is None or len(written.places) != len(self.sequences):
            return self
        return replace(self, sequences=PlacedSequences(self.sequences[0], written.places))

    def __post_init__(self) -> None:
        if isinstance(self.sequences, range):
            object.__setattr__(self, "sequences", SequenceRange(self.sequences))


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What a recovery has to do to the log of messages and its index."""

    index: MessageIndex
    """What the log publishes, without the gap."""
    covered: int = -1
    """The last version that ``commits/`` has."""
    agreed: int = -1
    """The last version up to which ``commits/`` and the log agree."""
    gap: Interval | None = None
    """Sequences of commits that neither the log nor ``commits/`` has."""
    unknown: Sequence[AddFile] = field(default=())
    """Data files of the table that no known commit added."""
    published: PublishedFiles | None = None

    @property
    def unknown_rows(self) -> int:
        """Return the number of messages in unknown files, as far as their writers noted it."""
        return sum(file.rows or 0 for file in self.unknown)


class MessageStore(ABC):
    """The log of one queue: the other half of the storage seam. ``storage/memory.py`` implements it
    in memory."""

    path: str
    files: ObjectStore
    bell: Notifier
    """Rung after each publish."""
    lanes: int = 0
    """The queue's number of lanes."""

    def publish(
        self,
        table: pa.Table,
        *,
        mark: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publishes a table of messages as one commit; durable, with its sequences, when this
        returns. Raises as :meth:`commit`."""
        written = write_file(self.files, table, sync=False, lanes=self.lanes)
        try:
            return self.commit([written], mark=mark, note=note).placed(written)
        except (DuplicatePublish, TablesDisagree):
            self.discard(written)
            raise
        except StorageError as error:
            if (
                error.data["landed"] is False and "://" not in self.path
            ):  # in an object store it may land later still
                self.discard(written)
            raise

    def discard(self, written: WrittenFile) -> None:
        """Deletes a file that no commit will ever know of."""
        with contextlib.suppress(OSError):
            self.files.delete(written.path)

    @abstractmethod
    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        mark: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publishes files that are written already (see :func:`write_file`), all or nothing.

        ``mark``: (producer id, number). Raises DuplicatePublish if the producer has published that
        number or a higher one. ``after``: the producer's last number, 0 for none. Raises
        ProducerFenced if it is another one.
        """

    @abstractmethod
    def commit_unique(
        self,
        draft: Draft,
        *,
        mark: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        """Publish the messages of a draft whose ids were not published in its window.

        Check and publish are one commit. Parameters and errors as :meth:`commit`.
        """

    @abstractmethod
    def clean_ids(self) -> int:
        """Delete the files of ids that no publish needs any more. Return their number."""

    @abstractmethod
    def last_number(self, app: str) -> int | None:
        """The last number that was committed with a mark of `app`, or None."""

    @abstractmethod
    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        """Return what the commit with that mark published, or None if the log no longer has it."""

    def receipt_of(self, written: WrittenFile) -> PublishReceipt | None:
        """Return what the commit of a file published, or None if no commit has it."""
        for file in reversed(self.index().files):
            if file.path == written.path:
                return PublishReceipt(
                    file.first >> ORDINAL_BITS,
                    SequenceRange(range(file.first, file.first + file.rows)),
                )
        return None

    def note(self, version: int) -> dict[str, Any]:
        """Return what a commit of spark_mq notes about itself. Empty if that is unknown."""
        return {}

    @property
    def trimmed(self) -> int:
        """The last sequence that a trim has dropped, as of the last look, or -1."""
        return -1

    @abstractmethod
    def index(self, reach: int | None = None) -> MessageIndex:
        """The commit index, brought up to the latest commit. It only grows: an index that forgets
        files is another object.

        ``reach``: no look at the table where the index reaches this sequence already, as for what
        has been leased.
        """

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        """Return the commit index for a lease of messages after a sequence.

        Over an object store it may be a moment old, if it has more messages than the lease wants.
        """
        return self.index()

    @property
    @abstractmethod
    def description(self) -> str | None:
        """Return the text that describes the queue, as of the last look. None: there is none."""

    @abstractmethod
    def describe(self, text: Callable[[str | None], str], operation: str = "describe") -> None:
        """Replace the description by what a function makes of it, in one commit.

        The function may run again after a conflict. An equal text makes no commit.
        """

    @abstractmethod
    def known(self) -> MessageIndex:
        """The commit index as it is, without a look at the table."""

    @abstractmethod
    def drop(self, horizon: int) -> int:
        """Drops the files whose messages all lie at or below `horizon`. Returns how many. Safe to
        kill and to repeat."""

    def full_index(self, first: int) -> MessageIndex:
        """Return the index with forgotten files from a sequence on, as far as they are known."""
        return self.index()

    @abstractmethod
    def forget(self, up_to: int, keep_since: int) -> None:
        """Forget the index of commits that were trimmed and that no group needs.

        Parameters
        ----------
        up_to
            The horizon of a trim that has dropped its files, or a lower floor of a group.
        keep_since
            :meth:`full_index` still has commits from this time on, in microseconds.
        """

    @abstractmethod
    def expect(self, reached: Callable[[bool], int]) -> None:
        """Refuse from now on to use a log that the ledgers are ahead of.

        Parameters
        ----------
        reached
            Returns the last sequence that a ledger has reached. With True it looks for new commits.
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
        """Write down in ``commits/`` what the commits say since the last time. Returns their
        number."""

    @abstractmethod
    def index_progress(self) -> tuple[int, int | None]:
        """Return the last version in ``commits/`` (-1: none), and the time of its last commit.

        The time is in microseconds since 1970, or None without ``commits/``.
        """

    @abstractmethod
    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        """Delete old commits that ``commits/`` knows. None keeps the default. Returns the number of
        files."""

    def read(
        self, slices: Iterable[FileSlice], columns: list[str] | None = None
    ) -> Iterator[tuple[FileSlice, pa.Table]]:
        """The messages of some slices, as ``(slice, table)`` in their order; null ids and times are
        filled in.

        Raises CorruptLog for a file that cannot be read, StorageError where that is the store's
        doing.
        """
        reader = MessageReader(self.files, columns)
        for piece in slices:
            yield piece, reader.read(piece)


def check_mark(last: int | None, mark: tuple[str, int], after: int | None = None) -> None:
    """Raises DuplicatePublish where a producer's `last` number is its new one, or higher.

    Raises ProducerFenced if `after` is given, and is not the last number.
    """
    if after is not None and after != (last or 0):
        producer = mark[0].rpartition(":")[2]
        raise ProducerFenced(
            f"another publisher has published as producer {producer!r}: its last number is {last}, "
            f"not {after}. Stop one of them, and make another publisher",
            producer_id=producer,
            last_sequence=last,
            expected=after,
        )
    if last is not None and last >= mark[1]:
        producer = mark[0].rpartition(":")[2]
        raise DuplicatePublish(
            f"producer {producer!r} has published number {last} already, so {mark[1]} is not "
            f"published again",
            producer_id=producer,
            last_sequence=last,
            receipt=None,
        )


def producer_txn(producer_id: str) -> str:
    """Return the app id of a producer's numbers in ``messages/``."""
    return "spark_mq.producer:" + validate_name("producer_id", producer_id)


def tables_disagree(path: str, reason: str) -> TablesDisagree:
    """Return the error for a table that is not of the same time as the queue's others."""
    return TablesDisagree(
        f"the tables of a queue disagree: {reason}. One of them was restored alone. Restore all "
        "tables of one backup, or stop all workers and run Queue.recover(dry_run=True)",
        path=path,
        version=None,
    )
