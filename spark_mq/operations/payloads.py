"""Check before the commit of a lease that its files are readable.

A data file never changes, so a process checks it once. A damaged file makes its messages dead. A
file out of reach only postpones them, because it may be sound and no outage of the store may cost
a message a delivery.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from spark_mq.delta.store_errors import to_storage_error, wrap_store_errors
from spark_mq.errors import SparkMQError, StorageError
from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger.acquire import AcquireRequest, Grant
from spark_mq.ledger.intervals import Interval, format_intervals
from spark_mq.ledger.message_index import DataFile, FileSlice, MessageIndex
from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.unreadable import postpone_due, reject_unreadable
from spark_mq.parquet.reader import verify_slice
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import SECOND
from spark_mq.util.recent import RecentSet

__all__ = ["FileCheck", "PayloadFiles", "ReadableGrant", "acquire_readable", "read_whole"]

_log = logging.getLogger(__name__)

POSTPONE: Final = 10 * SECOND  # for messages of a file out of reach, if others can be delivered
MAX_OUT_OF_REACH: Final = 100  # files; the store is out of reach then, and a lease gives up
_REMEMBERED_FILES: Final = 10_000  # others are checked again
CHECK_SECONDS: Final = 0.25  # in one attempt to commit, for which other threads may wait
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
        self._messages = messages

    def check(
        self, index: MessageIndex, ranges: Iterable[Range], seen: dict[str, FileCheck], end: float
    ) -> list[FileCheck]:
        """Return the checks of files not known to be readable, and add new ones to `seen`.

        It stops at `end` in ``time.monotonic()``, so the caller finishes the other checks.
        """
        found = []
        for path, first in self._unknown(index, ranges):
            if path not in seen:
                seen[path] = FileCheck(self._messages, index.file_at(first))
                if is_remote(self._messages):
                    seen[path].start()
                elif time.monotonic() < end:
                    seen[path].run()
            found.append(seen[path])
        for check in found:
            if check.has_ended(end) and check.readable:
                self.readable.add(check.file.path)
        return [check for check in found if not check.readable]

    def require_reachable(self, index: MessageIndex, ranges: Iterable[Range]) -> None:
        """Raise StorageError if a file of some messages is out of reach. Takes seconds at most."""
        end = time.monotonic() + REACH_SECONDS
        for check in self.check(index, ranges, {}, end):
            if check.started and not check.has_ended(end):
                text = f"reading messages of {self._messages.path} takes too long. Retry"
                raise StorageError(text, path=self._messages.path, landed=False)
            if check.error is not None:
                raise check.error

    def _unknown(self, index: MessageIndex, ranges: Iterable[Range]) -> list[tuple[str, int]]:
        """Return the paths that no check found readable, each with a sequence in the file."""
        known, found = self.readable, dict[str, int]()
        for r in ranges:
            for path, first in index.paths_in(r.first, r.last):
                if path not in known:
                    found[path] = first
        return list(found.items())

    def forget(self, index: MessageIndex, ranges: Iterable[Range]) -> None:
        """Forget that the files of some messages were readable."""
        paths = {piece.path for r in ranges for piece in index.slices(r.first, r.last)}
        self.readable -= paths


@dataclass(frozen=True, slots=True)
class ReadableGrant:
    """A lease's messages, without those that cannot be read."""

    ledger: Ledger  # the next one, with messages of damaged files dead also without a grant
    grant: Grant
    rejected: tuple[Interval, ...] = ()  # dead because their file is damaged, by file
    dead: int = 0  # number of rejected messages
    error: SparkMQError | None = None  # why nothing is granted, if a file was out of reach
    unfinished: tuple[FileCheck, ...] = ()  # to wait for before the next attempt

    def commit_info(self) -> dict[str, object]:
        """Return the commit's note about rejected messages."""
        ranges = format_intervals(self.rejected)
        return {"operation": "reject", "messages": self.dead, "ranges": f"reject {ranges}"}


def acquire_readable(
    payloads: PayloadFiles,
    ledger: Ledger,
    index: MessageIndex,
    *,
    now: int,
    rules: GroupSettings,
    request: AcquireRequest,
    seen: dict[str, FileCheck],
) -> ReadableGrant:
    """Lease the readable messages that the rules allow, and reject those of damaged files.

    Messages of a file out of reach are due again later if others can be delivered. If none can,
    nothing is granted and nothing is postponed.
    """
    end = time.monotonic() + CHECK_SECONDS
    found = _Search(ledger, ledger)
    while True:
        after, grant = acquiring.acquire(found.ledger, index, now, rules, request)
        bad = payloads.check(index, grant.ranges, seen, end)
        if grant.ranges and not bad:
            return found.result(after, grant)
        unfinished = tuple(one for one in bad if not one.has_ended(end))
        if unfinished or not bad or found.out_of_reach >= MAX_OUT_OF_REACH:
            why, for_now = grant.blocked_because, grant.blocked_for_now
            nothing = Grant((), why, blocked_for_now=for_now)
            return replace(found.result(found.kept, nothing), unfinished=unfinished)
        for one in bad:
            interval = (one.file.first, one.file.last)
            if one.reason is None:
                found.postpone(
                    one, postpone_due(found.ledger, index, interval, now=now, until=now + POSTPONE)
                )
                continue
            reject = partial(
                reject_unreadable,
                index=index, now=now, rules=rules, interval=interval, error=one.reason,
            )  # fmt: skip
            found.reject(interval, reject)


class _Search:
    """The search for messages that can be delivered."""

    def __init__(self, ledger: Ledger, kept: Ledger) -> None:
        self.ledger, self.kept = ledger, kept  # kept lacks the postponements
        self.rejected: list[Interval] = []
        self.dead = self.out_of_reach = 0
        self.error: SparkMQError | None = None

    def postpone(self, check: FileCheck, ledger: Ledger) -> None:
        """Use the ledger in which the messages of a file wait."""
        self.error = self.error or check.error
        self.out_of_reach += 1
        self.ledger = ledger

    def reject(self, interval: Interval, reject: Callable[[Ledger], tuple[Ledger, int]]) -> None:
        """Reject the messages of a damaged file in both ledgers."""
        same = self.kept is self.ledger
        self.kept, count = reject(self.kept)
        self.ledger = self.kept if same else reject(self.ledger)[0]
        self.rejected.append(interval)
        self.dead += count

    def result(self, ledger: Ledger, grant: Grant) -> ReadableGrant:
        error = None if grant.ranges else self.error
        return ReadableGrant(ledger, grant, tuple(self.rejected), self.dead, error)


def read_whole(
    messages: MessageTable, piece: FileSlice, rows: int
) -> list[tuple[FileSlice, str | None]]:
    """Read all bytes of a slice. Return its parts, each with why it cannot be read, or None."""
    with wrap_store_errors(messages.files.root, "reading messages of"):
        return list(verify_slice(messages.files, piece, rows, whole=True))
