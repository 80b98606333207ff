"""Check before the commit of a lease that its files are readable.

A data file never changes, so a process checks it once. A damaged file makes its messages dead. A
file out of reach only postpones them, because it may be sound and no outage of the store may cost
a message a delivery. For a group with a filter, a check also finds the rows that match it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from spark_mq.delta.store_errors import to_storage_error, wrap_store_errors
from spark_mq.errors import SparkMQError, StorageError
from spark_mq.ledger.commands import FileProblems
from spark_mq.ledger.message_filter import RowRuns, filter_id
from spark_mq.ledger.message_index import DataFile, FileSlice, MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.lease_columns import match_rows
from spark_mq.parquet.reader import verify_slice
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.recent import RecentDict, RecentSet

_log = logging.getLogger(__name__)

_REMEMBERED_FILES: Final = 10_000  # others are checked again
_REMEMBERED_RUNS: Final = 4_000_000  # of rows that match a filter, in 8 bytes each
_FILE_WEIGHT: Final = 50  # of a file, in runs
REACH_SECONDS: Final = 10.0  # for the check of a failed batch's files


class FileCheck:
    """The check of one file, also for a filter if it is given."""

    def __init__(
        self, messages: MessageTable, file: DataFile, wanted: Mapping[str, Any] | None
    ) -> None:
        self.file, self.wanted = file, wanted
        self.matches: RowRuns | None = None  # of the filter
        self.reason: str | None = None  # why it is damaged
        self.error: SparkMQError | None = None  # why it is out of reach
        self._messages = messages
        self.started = False
        self._ended = threading.Event()

    @property
    def readable(self) -> bool:
        return self._ended.is_set() and self.reason is None and self.error is None

    @property
    def delivers_all(self) -> bool:
        """Return whether a lease may deliver all messages of the file."""
        return self.readable and (self.matches is None or self.matches.all_match)

    def run(self) -> None:
        """Check the file's footer, and find the rows that match."""
        self.started = True
        store, file = self._messages.files, self.file
        piece = FileSlice(file.path, 0, file.rows, file.first, file.committed_at, file.size)
        try:
            self.reason = next(why for _, why in verify_slice(store, piece, file.rows))
            if self.reason is None and self.wanted is not None:
                self.matches = match_rows(store, piece, self.wanted)
        except Exception as error:  # Also errors that no store should raise. The file may be sound.
            self.error = to_storage_error(store.root, error, "reading messages of")
        finally:
            self._ended.set()
        if self.reason is not None:
            _log.error(
                "messages %d..%d of %s cannot be read: %s",
                file.first, file.last, store.root, self.reason,
            )  # fmt: skip

    def start(self) -> None:
        """Check the file in a thread, because the store may take minutes to fail."""
        self.started = True
        threading.Thread(target=self.run, name="spark_mq file check", daemon=True).start()

    def has_ended(self, end: float) -> bool:
        """Wait until `end` in ``time.monotonic()``. Return whether the check has ended."""
        return self._ended.wait(max(0.0, end - time.monotonic()))

    def finish(self) -> None:
        """Wait for the end of the check. Run it if no thread does."""
        if not self.started:
            self.run()
        self._ended.wait()


def is_remote(messages: MessageTable) -> bool:
    return not messages.files.is_local


class FilteredFiles(Mapping[str, RowRuns]):
    """The rows of data files that match one filter, by path, as of the first look at each file."""

    # Otherwise, what another thread finds meanwhile would be known after a lease has taken a file's
    # messages, as if the lease had known it.

    def __init__(self, known: Mapping[tuple[str, str], RowRuns], name: str) -> None:
        self._known, self._name = known, name
        self._seen: dict[str, RowRuns | None] = {}

    def __getitem__(self, path: str) -> RowRuns:
        if path not in self._seen:
            self._seen[path] = self._known.get((self._name, path))
        if (check := self._seen[path]) is None:
            raise KeyError(path)
        return check

    def __iter__(self) -> Iterator[str]:
        return (path for path in [path for _, path in list(self._known)] if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PayloadFiles:
    """The payload files of one queue that this process has checked. Thread-safe."""

    def __init__(self, messages: MessageTable) -> None:
        self.readable: set[str] = RecentSet(_REMEMBERED_FILES)  # paths
        self.known = FileProblems(self.readable)
        # By filter and path.
        self.matches: RecentDict[tuple[str, str], RowRuns] = RecentDict(
            _REMEMBERED_RUNS, lambda runs: len(runs.ends) + _FILE_WEIGHT
        )
        self.messages = messages

    def problems(self, wanted: Mapping[str, Any] | None) -> FileProblems:
        """Return what is known by now about the files of a group with a filter, or without one."""
        if wanted is None:
            return self.known
        return FileProblems(self.readable, matches=self.filtered(wanted))

    def filtered(self, wanted: Mapping[str, Any]) -> Mapping[str, RowRuns]:
        return FilteredFiles(self.matches, filter_id(wanted))

    def require_reachable(self, index: MessageIndex, ranges: Sequence[Range]) -> None:
        """Raise StorageError if a file of some messages is out of reach. Takes seconds at most."""
        end, checks = time.monotonic() + REACH_SECONDS, FileChecks(self)
        checks.all_readable(self.known.unsure(index, ranges), end)
        if checks.runs_on():
            text = f"reading messages of {self.messages.path} takes too long. Retry"
            raise StorageError(text, path=self.messages.path, landed=False)
        for error in checks.problems().out_of_reach.values():
            raise error

    def forget(self, index: MessageIndex, ranges: Iterable[Range]) -> None:
        paths = {piece.path for r in ranges for piece in index.slices(r.first, r.last)}
        self.readable -= paths


class FileChecks:
    """The checks of payload files for one lease. What is out of reach is not tried twice."""

    def __init__(self, payloads: PayloadFiles) -> None:
        self._payloads = payloads
        self._checks: dict[str, FileCheck] = {}

    def problems(self, wanted: Mapping[str, Any] | None = None) -> FileProblems:
        checks = {path: check for path, check in self._checks.items() if check.wanted == wanted}
        if not checks:
            return self._payloads.problems(wanted)
        ended = {path: check for path, check in checks.items() if check.has_ended(0.0)}
        matching = {path: c.matches for path, c in ended.items() if c.matches is not None}
        return FileProblems(
            self._payloads.readable,
            {path: check.reason for path, check in ended.items() if check.reason is not None},
            {path: check.error for path, check in ended.items() if check.error is not None},
            checks.keys() - ended.keys(),
            None if wanted is None else _joined(matching, self._payloads.filtered(wanted)),
        )

    def all_readable(
        self, files: Iterable[DataFile], end: float, wanted: Mapping[str, Any] | None = None
    ) -> bool:
        """Check files until `end` in ``time.monotonic()``. The others stay unfinished.

        Return whether a group with this filter may get all of their messages.
        """
        checks = [self._check_of(file, wanted) for file in files]
        for check in checks:
            if not check.started and is_remote(self._payloads.messages):
                check.start()
            elif not check.started and time.monotonic() < end:
                check.run()
        for check in checks:
            if check.started and check.has_ended(end) and check.readable:
                self._remember(check)
        return all(check.delivers_all for check in checks)

    def start(self, files: Iterable[DataFile], wanted: Mapping[str, Any] | None) -> None:
        """Begin to check files in threads. None of them may have been given before."""
        for file in files:
            self._check_of(file, wanted).start()

    def _check_of(self, file: DataFile, wanted: Mapping[str, Any] | None) -> FileCheck:
        check = self._checks.get(file.path)
        if check is None or check.wanted != wanted:
            check = self._checks[file.path] = FileCheck(self._payloads.messages, file, wanted)
        return check

    def _remember(self, check: FileCheck) -> None:
        self._payloads.readable.add(check.file.path)
        if check.wanted is not None and check.matches is not None:
            key = (filter_id(check.wanted), check.file.path)
            if key not in self._payloads.matches:
                self._payloads.matches[key] = check.matches

    def wait(self, seconds: float) -> None:
        """Wait for the checks that run, so long at most."""
        end = time.monotonic() + seconds
        for check in self._checks.values():
            if check.started:
                check.has_ended(end)

    def runs_on(self) -> bool:
        return any(check.started and not check.has_ended(0.0) for check in self._checks.values())

    def finish(self) -> None:
        for check in self._checks.values():
            check.finish()
            if check.readable:
                self._remember(check)


def _joined(new: dict[str, RowRuns], known: Mapping[str, RowRuns]) -> Mapping[str, RowRuns]:
    """Return both. The lease keeps what it has found, even if the process forgets it."""
    return ChainMap(new, known)  # type: ignore[arg-type]


def read_whole(
    messages: MessageTable, piece: FileSlice, rows: int
) -> list[tuple[FileSlice, str | None]]:
    """Read all bytes of a slice. Return its parts, each with why it cannot be read, or None."""
    with wrap_store_errors(messages.files.root, "reading messages of"):
        return list(verify_slice(messages.files, piece, rows, whole=True))
