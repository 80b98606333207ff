"""Delegate commands to the next commit of any writer.

An object store has no lock to wait at, and each lost race costs several requests. So a writer that
meets others delegates its commands in a small file, and waits. The writer of the oldest file
commits all of them together, and everybody reads the outcomes in the note of that commit. Then it
leads: it makes the next commits, too, as long as others delegate. So nobody races meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import FileInfo, ObjectStore, is_data_path
from spark_mq.delta.store_errors import STORE_ERRORS, wrap_store_errors
from spark_mq.storage.commit_turn import (
    LEADS,
    MAX_BYTES,
    MAX_REQUESTS,
    SERVED,
    CommitTurn,
    DelegatedRequest,
    base_of,
    id_of,
    is_request,
)
from spark_mq.util.backoff import Backoff
from spark_mq.util.recent import RecentSet

__all__ = ["FOLDER", "DelegationTurn", "delete_old_requests"]

_ALL: Final = "_requests"  # also has folders of older versions, one for each group
FOLDER: Final = f"{_ALL}/leases"
# A sweep deletes requests of this age. It is long, because clocks of machines may differ.
OLD_SECONDS: Final = 3600.0

_log = logging.getLogger(__name__)
# A request that is this much older than another is from a dead writer. No writer runs it.
STALE_SECONDS: Final = 20.0
WAIT_PER_WRITER_SECONDS: Final = 1.0  # how long a writer waits for each writer before it
# So many requests in a row are before the commit that runs a new request. Nobody looks earlier.
REQUESTS_BEFORE_OUTCOME: Final = 4
# After so many requests in a row, the writers that a commit served may have delegated again.
REQUESTS_BEFORE_NEXT: Final = 2
# After so many requests in a row without a commit, the leader has ended.
REQUESTS_OF_A_LEADER: Final = 10
LEADER_SECONDS: Final = 0.1  # the same for its own work
POLL_SECONDS: Final = 0.01  # between two looks, or half of a request's time
LATENCY_LIMIT: Final = 0.2  # one slow request does not show how long the others take
LED_COMMITS: Final = 2  # a leader that runs a request at all does it with one of the next commits
_KNOWN_COMMITS: Final = 100
_THREADS: Final = 32
# The requests that this process could not run, by root and path. Their own writers run them.
_left: Final[RecentSet[tuple[str, str]]] = RecentSet(10_000)


def delete_old_requests(files: ObjectStore) -> int:
    """Delete the requests of killed writers, and other old files. Return the number of files."""
    before = time.time() - OLD_SECONDS
    old = [file.path for file in files.list_all(_ALL) if file.modified < before]
    old = [path for path in old if is_data_path(path)]  # others can be deleted by hand only
    files.delete_many(old)
    return len(old)


class DelegationTurn(CommitTurn):
    """The delegated commands of one writer, from the write of their file to their end."""

    _request: DelegatedRequest

    def __init__(
        self,
        files: ObjectStore,
        log: DeltaLog,
        commands: Sequence[Any],
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(log)
        self._files = files
        self._backoff = backoff or Backoff()
        self._request = DelegatedRequest(uuid.uuid4().hex, self._seen, commands)
        self._latency = 0.0  # of the write of the file, in seconds
        self._is_behind = False
        self._others_share = False
        self._led_commits = 0  # that came since, and perhaps did not run the own request
        self._names: list[str] = []  # paths of the requests to run with the next own commit
        self._stale: list[str] = []

    @property
    def request_id(self) -> str:
        return self._request.request_id

    def wait(self, until: float) -> Any | None:
        self.delegate()
        began, listed, listed_at = time.monotonic(), None, -1
        while self.request_id not in self._ran:
            now, led_until = time.monotonic(), min(until, self._backoff.led_until)
            if now < led_until and self._led_commits < LED_COMMITS:
                self._wait_for_commit(led_until)
            elif listed is None or self._is_turn(listed, now - began) or now > until:
                if self._log.state.version == listed_at:
                    return None
                listed, listed_at = self._look(), self._log.state.version
            else:
                self._wait_for_commit(min(until, now + WAIT_PER_WRITER_SECONDS))
        return self._ran[self.request_id]

    def delegate(self) -> None:
        """Write the request, if it is not there yet."""
        if self._delegated:
            return
        began = time.monotonic()
        self._delegated = True  # also if the write fails: a store may apply it all the same
        with wrap_store_errors(self._files.root, "delegating commands in"):
            self._files.write(f"{FOLDER}/{self._request.name}", self._request.encode())
        self._latency = min(time.monotonic() - began, LATENCY_LIMIT)

    def _wait_for_commit(self, until: float) -> None:
        """Wait for a commit, or until a time."""
        version = self._log.state.version
        pause = 0.0 if self._is_behind else REQUESTS_BEFORE_OUTCOME * self._latency
        self._is_behind = True  # if the first look finds a commit, there may be more
        while self._log.state.version == version:
            if time.monotonic() > until:
                return
            if self._backoff.leads:  # another thread makes the next commit
                time.sleep(POLL_SECONDS)
            else:
                time.sleep(pause)
                pause = max(POLL_SECONDS, self._latency / 2)
                with wrap_store_errors(self._files.root, "reading"):
                    self._log.step()
            self._take_notes(self._log.state.version)
            self._is_behind = self._is_behind and self._log.state.version > version
        self._led_commits += not self._is_behind  # else it may have landed before the request

    def find_more_requests(self) -> None:
        """Look for the requests to run after those of the own commit."""
        time.sleep(REQUESTS_BEFORE_NEXT * self._latency)
        self._is_turn(self._look(), 0.0)

    def _look(self) -> list[FileInfo]:
        """Look for commits and for requests at the same time. Return the requests."""
        with (
            wrap_store_errors(self._files.root, "reading requests in"),
            ThreadPoolExecutor(1) as pool,
        ):
            listing = pool.submit(self._files.list, FOLDER)
            self._follow()
            try:
                return [file for file in listing.result() if is_request(file.path)]
            except OSError as error:  # also a name that the store's client cannot read
                _log.debug("requests in %s were not listed: %s", self._files.root, error)
                return []

    def _take_note(self, note: Mapping[str, Any]) -> None:
        super()._take_note(note)
        self._note_leader(note)

    def _note_leader(self, note: Mapping[str, Any]) -> None:
        """Note whether the writer of a new commit leads."""
        if LEADS not in note:  # its writer met nobody
            return
        leads = note.get(LEADS) is True
        wait = REQUESTS_OF_A_LEADER * self._latency + LEADER_SECONDS
        self._backoff.led_until = time.monotonic() + wait if leads else 0.0

    def _is_turn(self, listed: Sequence[FileInfo], waited: float) -> bool:
        """Note the requests to run. Return whether this writer must commit."""
        own_path = f"{FOLDER}/{self._request.name}"
        own = next((file for file in listed if file.path == own_path), None)
        # By the store's clock alone: this machine's may be ahead of it.
        now = max((file.modified for file in listed), default=0.0) if own is None else own.modified
        known_after, self._names, self._stale = self._known_after(), [], []
        before = 0
        for info in listed:
            if id_of(info.path) == self.request_id or id_of(info.path) in self._ran:
                continue  # the writer that ran it deletes it
            if now - info.modified > STALE_SECONDS:
                self._stale.append(info.path)
            elif info.size > MAX_BYTES or (self._files.key, info.path) in _left:
                continue
            elif known_after <= base_of(info.path) <= self._log.state.version:
                self._names.append(info.path)
                before += info.path < own_path
        return waited >= WAIT_PER_WRITER_SECONDS * before

    def _known_after(self) -> int:
        """Return the version after which this handle knows all commits. Read their notes."""
        version = self._log.state.version
        known_after = version
        for commit in reversed(self._log.known_commits(version - _KNOWN_COMMITS, version)):
            if commit.version != known_after:
                break
            known_after -= 1
            self._read_note(commit.note)
        return known_after

    def _read_note(self, note: Mapping[str, Any]) -> None:
        super()._read_note(note)
        self._others_share = self._others_share or isinstance(note.get(SERVED), dict)

    def others_share(self) -> bool:
        """Return whether a commit since then ran requests. Its writer looks for them."""
        self._take_notes(self._log.state.version)
        return self._others_share

    def others_lead(self, count: int) -> bool:
        """Return whether one of the commits before the last one is by another leader."""
        version = self._log.state.version
        commits = self._log.known_commits(version - count, version - 1)
        return any(commit.note.get(LEADS) is True for commit in commits)

    def requests_to_run(self, meanwhile: Callable[[], object]) -> list[DelegatedRequest]:
        names = [path for path in self._names if id_of(path) not in self._ran]
        names = names[:MAX_REQUESTS]
        if not names:
            return []
        with ThreadPoolExecutor(min(_THREADS, len(names)) + 1) as pool:
            pool.submit(meanwhile)
            requests = list(pool.map(self._read, names))
        return [request for request in requests if request is not None]

    def _read(self, path: str) -> DelegatedRequest | None:
        try:
            request = DelegatedRequest.decode(path, self._files.read(path))
        except OSError:
            return None  # its writer withdrew it, or will run it itself
        if request is None:
            _left.add((self._files.key, path))
        return request

    def leave(self, requests: Iterable[DelegatedRequest]) -> None:
        for request in requests:
            _left.add((self._files.key, f"{FOLDER}/{request.name}"))

    def close(self, ran: Sequence[DelegatedRequest] = ()) -> None:
        if self._delegated and self.request_id not in self._ran:
            self._delegated = False
            self.delete((self._request, *ran))  # else the writer that ran the own one deletes it

    def delete(self, requests: Iterable[DelegatedRequest]) -> None:
        """Delete requests. The caller does not wait for it."""
        # The files of a killed process are stale soon.
        threading.Thread(
            target=self._delete,
            args=([*(f"{FOLDER}/{request.name}" for request in requests), *self._stale],),
            name="spark_mq requests",
            daemon=True,
        ).start()

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            self._files.delete_many(paths)
        except STORE_ERRORS as error:
            _log.debug("requests in %s were not deleted: %s", self._files.root, error)
