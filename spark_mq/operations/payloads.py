"""Check before the commit of a lease that its files are readable.

A data file never changes, so a process checks it once. A damaged file makes its messages dead. A
file out of reach only postpones them, because it may be sound and no outage of the store may cost
a message a delivery.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from spark_mq.delta.store_errors import to_storage_error, wrap_store_errors
from spark_mq.errors import SparkMQError, StorageError
from spark_mq.ledger.commands import FileProblems
from spark_mq.ledger.message_index import DataFile, FileSlice, MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.reader import verify_slice
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.recent import RecentSet

__all__ = ["FileChecks", "PayloadFiles", "read_whole"]

_log = logging.getLogger(__name__)

_REMEMBERED_FILES: Final = 10_000  # others are checked again
REACH_SECONDS: Final = 10.0  # for the check of a failed batch's files


class FileCheck:
    """The check of one file."""

    def __init__(self, messages: MessageTable, file: DataFile) -> None:
        self.file = file
        self.reason: str | None = None  # why it is damaged
        self.error: SparkMQError | None = None  # why it is out of reach
        self._messages = messages
        self.started = False
        self._ended = threading.Event()

    @property
    def readable(self) -> bool:
        return self._ended.is_set() and self.reason is None and self.error is None

    def run(self) -> None:
        """Check the file's footer."""
        self.started = True
        store, file = self._messages.files, self.file
        piece = FileSlice(file.path, 0, file.rows, file.first, file.committed_at, file.size)
        try:
            self.reason = next(why for _, why in verify_slice(store, piece, file.rows))
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
    """Return whether the files are in an object store, which may take minutes to fail."""
    return not messages.files.is_local


class PayloadFiles:
    """The payload files of one queue that this process has checked. Thread-safe."""

    def __init__(self, messages: MessageTable) -> None:
        self.readable: set[str] = RecentSet(_REMEMBERED_FILES)  # paths
        self.known = FileProblems(self.readable)
        self.messages = messages

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
        """Forget that the files of some messages were readable."""
        paths = {piece.path for r in ranges for piece in index.slices(r.first, r.last)}
        self.readable -= paths


class FileChecks:
    """The checks of payload files for one lease. What is out of reach is not tried twice."""

    def __init__(self, payloads: PayloadFiles) -> None:
        self._payloads = payloads
        self._checks: dict[str, FileCheck] = {}

    def problems(self) -> FileProblems:
        """Return what is known by now."""
        known = self._payloads.readable
        if not self._checks:
            return self._payloads.known
        ended = {path: check for path, check in self._checks.items() if check.has_ended(0.0)}
        for path in (path for path, check in ended.items() if check.readable):
            known.add(path)
        return FileProblems(
            known,
            {path: one.reason for path, one in ended.items() if one.reason is not None},
            {path: one.error for path, one in ended.items() if one.error is not None},
            self._checks.keys() - ended.keys(),
        )

    def all_readable(self, files: Iterable[DataFile], end: float) -> bool:
        """Check files until `end` in ``time.monotonic()``. The others stay unfinished."""
        messages = self._payloads.messages
        checks = [self._checks.setdefault(f.path, FileCheck(messages, f)) for f in files]
        for check in checks:
            if not check.started and is_remote(messages):
                check.start()
            elif not check.started and time.monotonic() < end:
                check.run()
        for check in checks:
            if check.started and check.has_ended(end) and check.readable:
                self._payloads.readable.add(check.file.path)
        return all(check.readable for check in checks)

    def runs_on(self) -> bool:
        """Return whether a check that was started has not ended."""
        return any(one.started and not one.has_ended(0.0) for one in self._checks.values())

    def finish(self) -> None:
        """Wait for the ends of all checks."""
        for check in self._checks.values():
            check.finish()


def read_whole(
    messages: MessageTable, piece: FileSlice, rows: int
) -> list[tuple[FileSlice, str | None]]:
    """Read all bytes of a slice. Return its parts, each with why it cannot be read, or None."""
    with wrap_store_errors(messages.files.root, "reading messages of"):
        return list(verify_slice(messages.files, piece, rows, whole=True))
