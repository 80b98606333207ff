"""Stand in line to commit on a local disk. The first in line commits for everybody who waits.

A queue has one line for all of its groups. It is a lock on a file, which the system frees when its
holder dies. A writer that finds it held delegates its commands: it writes them to a file in a
folder beside the lock, and waits. The next holder runs the commands of all files in its commit, and
then deletes the files. So a writer whose file is gone finds its outcome in the note of a commit, or
learns that it must run its commands by itself.

The line only saves work. The compare-and-swap commit keeps the ledger right, also if there are two
holders, because a frozen one is passed after two seconds.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakSet

from spark_mq.delta.log import DeltaLog
from spark_mq.storage.commit_turn import (
    MAX_BYTES,
    MAX_REQUESTS,
    SERVED,
    CommitTurn,
    DelegatedRequest,
    base_of,
    id_of,
    is_request,
)
from spark_mq.util.process import call_in_forks

try:
    import fcntl
except ImportError:  # this system has no file locks, so its processes do not stand in line
    fcntl = None  # type: ignore[assignment]

PATIENCE_SECONDS: Final = 2.0  # without a commit, after which a holder counts as frozen
POLL_SECONDS: Final = 0.001  # a commit takes 2 ms
# The longest wait for writers that shared the last commit, and so are likely to come back.
GATHER_SECONDS: Final = 0.004
_GATHER_POLL: Final = 0.0003
MAX_COMMITS: Final = 100  # whose notes a holder reads to run an old request

_log = logging.getLogger(__name__)
_locked: Final[WeakSet[io.FileIO]] = WeakSet()  # the files that this process has locked


def has_lines() -> bool:
    """Return whether processes of this system can stand in line."""
    return fcntl is not None


def _close_in_fork() -> None:
    """Close the parent's files, or its locks would last as long as this process."""
    for file in list(_locked):
        _close(file)


call_in_forks(_close_in_fork)


class LocalTurn(CommitTurn):
    """The turn of one writer in the line of a queue, whose files begin with `path`.

    `delegable` returns the writer's commands as JSON, or None if only its own process can run them.
    """

    # Of the class, because __del__ also runs after an interrupted __init__.
    _line: io.FileIO | None = None  # kept before it is locked, so that close() frees it
    _file: io.FileIO | None = None  # of the own request, locked while this writer waits

    def __init__(
        self,
        path: str,
        log: DeltaLog,
        delegable: Callable[[], Sequence[Any] | None],
    ) -> None:
        super().__init__(log)
        self._lock_path, self._folder = f"{path}.lock", f"{path}.requests"
        self._delegable = delegable
        self.is_first = False  # whether this writer holds the line
        self._has_asked = False  # others to run the commands, if they can

    def wait(self, until: float) -> None:
        if self.is_first:
            return
        try:
            self._stand_in_line(until)
        except OSError as error:  # a full or read-only disk, or a file system without locks
            _log.debug("no place in the line %s: %s", self._lock_path, error)

    def _stand_in_line(self, until: float) -> None:
        frozen_at = time.monotonic() + PATIENCE_SECONDS
        while not self._step_up():
            now = time.monotonic()
            if not self._has_asked:
                self._has_asked = True
                self._delegate()
            elif self._file is not None and _is_deleted(self._file):
                self._withdraw()
                self._follow()
            if now > until or self.outcome is not None:
                return
            if now > frozen_at:
                if not self._others_commit():
                    self._pass_holder()
                frozen_at = now + PATIENCE_SECONDS
            time.sleep(POLL_SECONDS)

    def _step_up(self) -> bool:
        """Lock the line. Return False if another writer holds it."""
        self._line = _open(self._lock_path)
        self.is_first = _lock(self._line)
        if not self.is_first:
            _close(self._line)
        return self.is_first

    def _others_commit(self) -> bool:
        before = self._seen
        self._follow()
        return self._seen > before

    def _pass_holder(self) -> None:
        """Let a new file be the line, because the holder of this one is frozen."""
        # Another waiter may have done so already. Then this one makes the line once more, and two
        # writers commit at the same time.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._lock_path)

    # -- the own request

    def _delegate(self) -> None:
        """Write the own commands for others, unless only this process can run them."""
        commands = self._delegable()
        if commands is None:
            return
        self._follow()  # a holder reads fewer notes then
        request = DelegatedRequest(uuid.uuid4().hex, self._seen, commands)
        data = request.encode()
        if len(data) > MAX_BYTES:
            return
        path = f"{self._folder}/{request.name}"
        try:
            file = _open(path, "xb")
        except OSError as error:
            _log.debug("no request in %s: %s", self._folder, error)
            return
        # In this order, because a holder takes a file that it can lock for one of a dead writer.
        self._file, self._request = file, request
        if not _lock(file) or _is_deleted(file):
            self._withdraw()
            return
        self._delegated = True
        try:
            file.write(data)
        except OSError as error:
            _log.debug("no request in %s: %s", self._folder, error)
            self._withdraw()

    def _withdraw(self) -> None:
        if self._file is not None and self._request is not None:
            self._delete([f"{self._folder}/{self._request.name}"])
            _close(self._file)
            self._file = None

    # -- the requests of others

    def requests_to_run(self) -> list[DelegatedRequest]:
        self._withdraw()
        if not self.is_first:
            return []
        requests = list(self._readable(self._gathered()))
        self._seen = min([self._seen, *(request.base for request in requests)])
        return requests

    def _gathered(self) -> list[str]:
        """Return the paths of all requests, after a short wait for those that are likely."""
        end, expected = time.monotonic() + GATHER_SECONDS, self._expected()
        while True:
            try:
                names = os.listdir(self._folder)
            except OSError:  # nobody has waited yet
                names = []
            if len(names) >= expected or time.monotonic() > end:
                return [f"{self._folder}/{name}" for name in sorted(names) if is_request(name)]
            time.sleep(_GATHER_POLL)

    def _expected(self) -> int:
        """Return how many requests of others the last commit ran."""
        for commit in self._log.known_commits(self._seen, self._seen):
            served = commit.note.get(SERVED)
            if isinstance(served, dict):
                return sum(outcome is not None for outcome in served.values())
        return 0

    def _readable(self, paths: Sequence[str]) -> Iterator[DelegatedRequest]:
        """Yield the requests of writers that live. Delete those of dead ones."""
        oldest = self._seen - MAX_COMMITS
        for path in paths[:MAX_REQUESTS]:
            try:
                with io.FileIO(path) as file:
                    if _lock(file, fcntl.LOCK_SH):
                        self._delete([path])
                    elif base_of(path) >= oldest and id_of(path) not in self._ran:
                        # One that is not complete yet is none.
                        request = DelegatedRequest.decode(path, file.read(MAX_BYTES))
                        if request is not None:
                            yield request
            except OSError as error:  # withdrawn, or of a user whose files this one may not read
                _log.debug("no request in %s: %s", path, error)

    def not_run(self, requests: Sequence[DelegatedRequest]) -> Sequence[DelegatedRequest]:
        left = super().not_run(requests)
        # The writer that ran them died before it deleted them.
        self.leave(request for request in requests if request.request_id in self._ran)
        return left

    def leave(self, requests: Iterable[DelegatedRequest]) -> None:
        self._delete([f"{self._folder}/{request.name}" for request in requests])

    def close(self, ran: Sequence[DelegatedRequest] = ()) -> None:
        """Let the writers that were served see it, and give the line back. May be called again."""
        try:
            self.leave(ran)
            self._withdraw()
        finally:
            if self._line is not None:
                _close(self._line)

    def __del__(self) -> None:
        for file in (self._line, self._file):
            if file is not None:
                _close(file)

    @staticmethod
    def _delete(paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):  # a file of another user: the note says what ran
                os.unlink(path)


def _open(path: str, mode: str = "ab") -> io.FileIO:
    """Open a file. Create it and its folder if needed."""
    try:
        return io.FileIO(path, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return io.FileIO(path, mode)


def _lock(file: io.FileIO, kind: int | None = None) -> bool:
    """Lock an open file. Return False if another one has locked it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if kind is None else kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _locked.add(file)
    return True


def _close(file: io.FileIO) -> None:
    """Close a file, which frees its lock."""
    with contextlib.suppress(OSError):  # a network disk: the file is closed all the same
        file.close()


def _is_deleted(file: io.FileIO) -> bool:
    return os.fstat(file.fileno()).st_nlink == 0
