"""Delegate commands to the next commit of any writer.

An object store has no lock to wait at, and each lost race costs several requests. So a writer that
meets others delegates its commands in a small file, and waits. The writer of the oldest file
commits all of them together, and everybody reads the outcomes in the note of that commit. Then it
leads: it makes the next commits, too, as long as others delegate. So nobody races meanwhile.

A writer alone needs one request for a commit, and so it would win each race against one that has to
look first. It looks for requests and for pleas beside some of its commits. Who can delegate nothing
leaves a plea: a file whose name says how long the others should wait once.

Requests to the store cost money, so there are few of them. Small commands are a part of their
file's name, and a listing is enough to read them. A leader's commits say how long it needs for
each, so that nobody looks for the next one too early.
"""

from __future__ import annotations

import base64
import logging
import re
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import FileInfo, ObjectStore
from spark_mq.delta.store_errors import STORE_ERRORS, wrap_store_errors
from spark_mq.storage.commit_turn import (
    CYCLE,
    LEADS,
    MAX_BYTES,
    MAX_REQUESTS,
    SERVED,
    CommitTurn,
    DelegatedRequest,
    base_of,
    id_of,
    is_request,
    packed_of,
)
from spark_mq.util.clock import SECOND
from spark_mq.util.recent import RecentSet

_ALL: Final = "_requests"  # also has folders of older versions, one for each group
FOLDER: Final = f"{_ALL}/leases"
# A sweep deletes requests of this age. It is long, because clocks of machines may differ.
OLD_SECONDS: Final = 3600.0

_log = logging.getLogger(__name__)
# A request that is this much older than another is from a dead writer. No writer runs it.
STALE_SECONDS: Final = 20.0
WAIT_PER_WRITER_SECONDS: Final = 1.0  # how long a writer waits for each writer before it
# So many requests in a row are before the commit that runs a new request. Nobody looks earlier.
REQUESTS_BEFORE_OUTCOME: Final = 2
# After so many requests in a row, the writers that a commit served may have delegated again.
REQUESTS_BEFORE_NEXT: Final = 2
# After so many requests in a row without a commit, the leader has ended.
REQUESTS_OF_A_LEADER: Final = 10
LEADER_SECONDS: Final = 0.1  # the same for its own work
POLL_SECONDS: Final = 0.01  # the shortest time between two looks
LATENCY_LIMIT: Final = 0.2  # one slow request does not show how long the others take
LONGEST_CYCLE: Final = 1.0  # that others believe, in seconds
LED_COMMITS: Final = 3  # a leader that runs a request at all does it with one of the next commits
# A writer that meets nobody looks for requests once in so many commits.
LOOK_EVERY: Final = 8
LONGEST_PLEA: Final = 1.0  # that others grant, in seconds
_PLEA: Final = re.compile(r"plea-([0-9]{1,5})-[0-9a-f]{32}")
# So many commits in a row that met nobody end the delegation.
QUIET_COMMITS: Final = 3
_KNOWN_COMMITS: Final = 100
# Servers that keep objects as files take 255 bytes for the last part of a name.
MAX_NAME_BYTES: Final = 240
MAX_PATH_BYTES: Final = 1024
# What most requests have in common. Another text needs another form of names.
_COMMON: Final = (
    b'","max_messages":100,"timeout":null,"fail_on_data_loss":true,"max_bytes":null,'
    b'"max_timeout":null,"intervals":null}}]]}{"extend":{"targets":[["',
    b'","intervals":null,"whole":false,"delay":null,"error":null,"reason":"rejected",'
    b'"jitter":0.0,"handler_failed":false}]}}]]}',
    b'{"format":2,"commands":[["default",{"lease":{"worker_id":"',
    b'{"format":2,"commands":[["default",{"settle":{"parts":[{"verb":"ack","lease_id":"',
)
_DICTIONARY: Final = b"".join(_COMMON)
# The requests that this process could not run, by root and path. Their own writers run them.
_left: Final[RecentSet[tuple[str, str]]] = RecentSet(10_000)


def delete_old_requests(files: ObjectStore) -> int:
    """Delete the requests of killed writers, and other old files. Return the number of files."""
    return files.delete_older(_ALL, files.now() - OLD_SECONDS)


def plead(files: ObjectStore, seconds: float) -> str:
    """Ask the other writers to wait for once. Return the path of the plea."""
    path = f"{FOLDER}/plea-{1_000 * min(seconds, LONGEST_PLEA):.0f}-{uuid.uuid4().hex}"
    with wrap_store_errors(files.root, "writing to"):
        files.write(path, b"")
    return path


def delete_soon(files: ObjectStore, paths: Sequence[str]) -> None:
    """Delete requests or pleas. The caller does not wait for it."""

    def delete() -> None:
        try:
            files.delete_many(paths)
        except STORE_ERRORS as error:
            _log.debug("requests in %s were not deleted: %s", files.root, error)

    _start(delete)


def _start(act: Callable[[], None]) -> None:
    """Let a thread do what nobody waits for. The end of the process may cut it short."""
    # The files of a killed process are stale soon.
    threading.Thread(target=act, name="spark_mq requests", daemon=True).start()


class Peers:
    """What a process knows of the other writers of a table."""

    def __init__(self) -> None:
        self._quiet_commits = QUIET_COMMITS
        self._lone_commits = 0  # since the last look for others
        self._known: Set[str] = frozenset()  # names in the last listing
        self._wait_once = 0.0  # seconds that others asked for
        self.leads = False  # whether a thread of this process commits for others
        self.led_until = 0.0  # until then, the next commit of a writer that leads is expected
        self.cycle = 0.0  # seconds from one commit of the leader to the next, lately, or 0
        self._known_at = 0.0  # when this process knew all commits
        self._delay = 0.0  # from the time in a commit of the leader to the earliest look at it
        self.due_at = 0.0  # when the leader's next commit is expected

    @property
    def delegate(self) -> bool:
        """Return whether others delegate their commands, or run those of others."""
        return self._quiet_commits < QUIET_COMMITS

    def met(self) -> None:
        """Note that others commit, too."""
        self._quiet_commits = 0

    def note_commit(self, *, shared: bool) -> None:
        """Note a commit that ran commands of this process, and perhaps those of others."""
        self._quiet_commits = 0 if shared else self._quiet_commits + 1

    def note_lone_commit(self, files: ObjectStore) -> None:
        """Note a commit without a turn. Look for others beside the next one now and then."""
        self.note_commit(shared=False)
        self._lone_commits += 1
        if self._lone_commits >= LOOK_EVERY:
            self._lone_commits = 0
            _start(partial(self._look_for_others, files))

    def _look_for_others(self, files: ObjectStore) -> None:
        try:
            if self.read_names(file.path for file in files.list(FOLDER)):
                self.met()
        except OSError as error:  # also a name that the store's client cannot read
            _log.debug("requests in %s were not listed: %s", files.root, error)

    def read_names(self, paths: Iterable[str]) -> Set[str]:
        """Note the pleas among the new names of a listing. Return the new names."""
        names = {path.rpartition("/")[2] for path in paths}
        new, self._known = names - self._known, names
        pleas = [_PLEA.fullmatch(name) for name in new]
        asked = [int(plea[1]) / 1_000 for plea in pleas if plea is not None]
        self._wait_once = min(max([self._wait_once, *asked]), LONGEST_PLEA)
        return new

    def grant_pleas(self) -> None:
        """Wait for once if another writer has asked for it."""
        seconds, self._wait_once = self._wait_once, 0.0
        if seconds:
            time.sleep(seconds)

    def read_note(self, note: Mapping[str, Any]) -> None:
        """Note what the commit of another writer says, perhaps one of some time ago."""
        served = note.get(SERVED)
        # A commit that served its own writer alone shows nobody that shares.
        if isinstance(served, dict) and (not served or any(served.values())):
            self.met()

    def follow_leader(self, note: Mapping[str, Any], seconds: float) -> None:
        """Note whether the writer of a new commit leads. It ends after `seconds` without one."""
        if LEADS not in note:  # its writer met nobody
            return
        self.led_until = time.monotonic() + seconds if note[LEADS] is True else 0.0
        cycle = note.get(CYCLE)
        if isinstance(cycle, float):
            known = min(max(0.0, cycle), LONGEST_CYCLE)
            self.cycle = (self.cycle + known) / 2 if self.cycle else known

    def knows_all(self, at: float) -> bool:
        """Return whether there is at most one new commit of the leader at a time."""
        return at < self._known_at + 2 * self.cycle

    def looked(self, at: float, written_at: float | None) -> None:
        """Note a look. It found a commit of a time by its writer's clock soon after that, or none.

        The other clock may be anything, because only its differences count.
        """
        self._known_at, self.due_at = at, 0.0  # any other look does not show when to look next
        if written_at is not None:
            delay = at - written_at
            later = delay - self._delay
            if not 0 <= later <= self.cycle:  # the look was early, or it is a new leader
                self._delay = delay
            self.due_at = written_at + self._delay + self.cycle


class DelegationTurn(CommitTurn):
    """The delegated commands of one writer, from the write of their file to their end."""

    _request: DelegatedRequest

    def __init__(
        self,
        files: ObjectStore,
        log: DeltaLog,
        commands: Sequence[Any],
        peers: Peers | None = None,
        is_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(log)
        self._files = files
        self._peers = peers or Peers()
        self._is_idle = is_idle  # whether the commands change nothing as of the last look
        request = DelegatedRequest(uuid.uuid4().hex, self._seen, commands)
        self._request = _with_packed_commands(request, files.root)
        self._latency = 0.0  # of the write of the file, in seconds
        self._look_at = 0.0  # the time before which there is no outcome
        self._looked = False  # for commits since the write of the file
        self._led_commits = 0  # that came since, and did not run the own request
        self._names: list[str] = []  # paths of the requests to run with the next own commit
        self._stale: list[str] = []

    @property
    def request_id(self) -> str:
        return self._request.request_id

    def wait(self, until: float) -> None:
        self.delegate()
        began, listed, listed_at = time.monotonic(), None, -1
        self._look_at = began + REQUESTS_BEFORE_OUTCOME * self._latency
        while self.request_id not in self._ran:
            now, led_until = time.monotonic(), min(until, self._peers.led_until)
            if now < led_until and self._led_commits < LED_COMMITS:
                self._wait_for_commit(led_until)
            elif listed is None or self._is_turn(listed, now - began) or now > until:
                if self._log.state.version == listed_at:
                    return
                listed, listed_at = self._look(), self._log.state.version
                # What commits nothing does not have to wait for those before it.
                if self._is_idle():
                    return
            else:
                self._wait_for_commit(min(until, now + WAIT_PER_WRITER_SECONDS))

    def delegate(self) -> None:
        """Write the request, if it is not there yet."""
        if self._delegated:
            return
        began = time.monotonic()
        self._delegated = True  # also if the write fails: a store may apply it all the same
        request = self._request
        with wrap_store_errors(self._files.root, "delegating commands in"):
            content = b"" if request.packed else request.encode()
            self._files.write(f"{FOLDER}/{request.name}", content)
        self._latency = min(time.monotonic() - began, LATENCY_LIMIT)

    def _wait_for_commit(self, until: float) -> None:
        """Wait for a commit, or until a time."""
        peers = self._peers
        while self._log.state.version <= self._seen and (now := time.monotonic()) <= until:
            look_at = max(self._look_at, peers.due_at)
            # While another thread leads, that makes the next commit.
            pause = POLL_SECONDS if peers.leads else min(look_at, until + POLL_SECONDS) - now
            if pause > 0.0:
                time.sleep(pause)
            else:
                self._look_for_commit(now)
                self._look_at = time.monotonic() + max(POLL_SECONDS, self._latency / 2)
        self._take_notes(self._log.state.version)

    def _look_for_commit(self, now: float) -> None:
        version, knows_all = self._log.state.version, self._looked or self._peers.knows_all(now)
        with wrap_store_errors(self._files.root, "reading"):
            state = self._log.step() if knows_all else self._log.refresh()
        found = self._log.known_commits(version + 1, state.version) if knows_all else []
        self._peers.looked(now, found[-1].timestamp / SECOND if found else None)
        self._led_commits += len(found)  # others may have landed before the request
        self._looked = True

    def find_more_requests(self, expected: int) -> None:
        """Look for the requests to run after those of the own commit, twice if not all are there.

        So many are expected, because most writers that a commit served delegate again at once.
        """
        time.sleep(REQUESTS_BEFORE_NEXT * self._latency)
        for _ in range(2):
            # A commit of another writer is rare now, and the own one finds out all the same.
            self._is_turn(self._look(follow=not self._log.is_own_turn), 0.0)
            if len(self._names) >= expected:
                return

    def _look(self, *, follow: bool = True) -> list[FileInfo]:
        """Look for requests, and for commits at the same time. Return the requests."""
        with (
            wrap_store_errors(self._files.root, "reading requests in"),
            ThreadPoolExecutor(1) as pool,
        ):
            listing = pool.submit(self._files.list, FOLDER)
            if follow:
                self._follow()
            try:
                listed = listing.result()
                self._peers.read_names(file.path for file in listed)
                return [file for file in listed if is_request(file.path)]
            except OSError as error:  # also a name that the store's client cannot read
                _log.debug("requests in %s were not listed: %s", self._files.root, error)
                return []

    def _take_note(self, note: Mapping[str, Any]) -> None:
        super()._take_note(note)
        self._peers.follow_leader(note, REQUESTS_OF_A_LEADER * self._latency + LEADER_SECONDS)

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
            if commit.version == known_after:  # else there is a gap
                known_after -= 1
                self._read_note(commit.note)
        return known_after

    def others_lead(self, count: int) -> bool:
        """Return whether one of the commits before the last one is by another leader."""
        version = self._log.state.version
        commits = self._log.known_commits(version - count, version - 1)
        return any(commit.note.get(LEADS) is True for commit in commits)

    def requests_to_run(self) -> list[DelegatedRequest]:
        paths = [path for path in self._names if id_of(path) not in self._ran][:MAX_REQUESTS]
        stored = [path for path in paths if not packed_of(path)]
        requests = [self._decoded(path, _unpacked(path)) for path in paths if packed_of(path)]
        requests += self._files.for_each(stored, self._read)
        known = (request for request in requests if request is not None)
        return sorted(known, key=lambda request: request.name)

    def _read(self, path: str) -> DelegatedRequest | None:
        try:
            return self._decoded(path, self._files.read(path))
        except OSError:
            return None  # its writer withdrew it, or will run it itself

    def _decoded(self, path: str, content: bytes) -> DelegatedRequest | None:
        request = DelegatedRequest.decode(path, content)
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
        paths = [f"{FOLDER}/{request.name}" for request in requests]
        delete_soon(self._files, [*paths, *self._stale])


def _with_packed_commands(request: DelegatedRequest, root: str) -> DelegatedRequest:
    """Return a request with its commands in its name, if they fit."""
    content = request.encode()
    room = MAX_PATH_BYTES - len(f"{root}/{FOLDER}/".encode())
    # The text of an error may quote a message, and stores log the names of objects.
    if b'"error":"' in content:
        return request
    packer = zlib.compressobj(zdict=_DICTIONARY)
    data = packer.compress(content) + packer.flush()
    packed = replace(request, packed=base64.urlsafe_b64encode(data).rstrip(b"=").decode())
    return packed if len(packed.name) <= min(room, MAX_NAME_BYTES) else request


def _unpacked(path: str) -> bytes:
    """Return what a request with its commands in its name would contain, nothing if unreadable."""
    packed = packed_of(path)
    try:
        data = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        return zlib.decompressobj(zdict=_DICTIONARY).decompress(data, MAX_BYTES)
    except (ValueError, zlib.error):
        return b""
