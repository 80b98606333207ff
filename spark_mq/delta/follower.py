"""Follow a Delta table's log by name, and keep its state.

Versions are dense, so the follower asks for the next commit by its name and lists nothing. Guards
notice a log that was cleaned past the follower, a table that was made again, and a gap.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from spark_mq.delta.actions import AddFile, Commit, log_path, missing_commit_error, parse_commit
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import (
    LogListing,
    TableState,
    TrackFiles,
    find_start,
    listed_checkpoint,
    starting_state,
)
from spark_mq.errors import CorruptLog, NotAQueue
from spark_mq.util.clock import ElapsedClock, Instant

_log = logging.getLogger(__name__)

# A follower that finds nothing new lists the log this often, to notice a missing commit.
GAP_CHECK_SECONDS: Final = 30.0
# On an object store, the follower checks this often that its last commit is still there.
BASE_CHECK_SECONDS: Final = 5.0
_OPEN_ATTEMPTS: Final = 3
_CACHED_COMMITS: Final = 128
# Commits of others after each of the last two own ones, if nobody else commits, or in turn.
_ALONE: Final = deque([0, 0])
_IN_TURN: Final = deque([1, 1])
_READ_AHEAD: Final = 16  # commits that a late follower requests from an object store at once


class LogReplaced(Exception):
    """The log is not the one that was read, so the handle must open the table again."""


class LogFollower:
    """Follow the log of one table, and keep its state. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        track_files: TrackFiles = True,
        replaceable: bool = False,
    ) -> None:
        self.store = store
        self.path = store.root
        self._local = store.is_local
        self._track_files = track_files
        self._replaceable = replaceable
        self._lock = threading.RLock()
        self._state: TableState | None = None
        self._table_id: str | None = None
        self._highest = -1  # the highest version that this handle has seen
        self._commits: dict[int, Commit] = {}  # the last ones, parsed
        self._base_tag: tuple[int, str | None] | None = None  # the commit that the state stands on
        self.clock = ElapsedClock()  # a test replaces it
        self._base_checked: Instant | None = None
        self._gap_checked: Instant | None = None
        self.generation = 0  # how often it was opened: again if it was not as it was left
        # How many commits of others came after each of the last two commits of this handle.
        self._others: deque[int] = deque(maxlen=2)
        self._takes_turns = False  # whether the last look saw just one new commit
        # When the state was certainly the latest, before any cleaning.
        self._sure_at: Instant | None = None

    # -- reading

    @property
    def is_own_turn(self) -> bool:
        """Return whether the next commit is probably this handle's own, so a look finds nothing.

        Its commits follow each other, or one commit of somebody else came between the last two and
        another one since, as when a stream leases in one process and settles in a second one.
        """
        # Not if the last one is some time ago: a cleaner may be beyond it. Not for long either: all
        # clocks of a paused machine may have missed the pause.
        return (
            self._others in (_ALONE, _IN_TURN)
            and self.seconds_since_look < BASE_CHECK_SECONDS
            and self.clock.since(self._gap_checked) < GAP_CHECK_SECONDS
        )

    @property
    def may_skip_look(self) -> bool:
        """Return whether a look would probably find nothing, and costs a request."""
        return not self._local and self.is_own_turn  # the put finds out all the same

    @property
    def seconds_since_look(self) -> float:
        """Return the seconds since the state was certainly the latest, or infinity."""
        return self.clock.since(self._sure_at)

    @property
    def state(self) -> TableState:
        """Return the table as of the last look. Look if there was none."""
        return self._state or self.refresh()

    @property
    def known_version(self) -> int:
        """Return the version as of the last look, or -1 if there was none."""
        state = self._state
        return -1 if state is None else state.version

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None. Raise as :meth:`refresh`."""
        with self._lock:
            if self._replaceable and self._state is not None and not self._base_is_there():
                self.forget()
            if self._state is None:
                start = find_start(self.store)
                return None if start is None else self._accept(self._open(start))
            return self.refresh()

    def refresh(self) -> TableState:
        """Return the latest state. Raise CorruptLog, NotAQueue, UnsupportedTable or OSError."""
        with self._lock:
            started = self.clock.now()
            if self._state is not None and not self._base_is_there():
                self.forget()
            if self._state is None or not self._catch_up(self._state):
                self.forget()
                state = self._open(find_start(self.store))
            else:
                state = self._state
            self._sure_at = started
            return self._accept(state)

    def step(self) -> TableState:
        """Return the table after at most one more commit, by one request with fewer guards."""
        with self._lock:
            if self._state is None or self._local:
                return self.refresh()
            state = self._state
            commit = next(self.following(state.version + 1), None)
            if commit is None:
                return state
            try:
                self._apply(state, commit)
            except LogReplaced:
                return self.refresh()
            return self._accept(state)

    def _accept(self, state: TableState) -> TableState:
        """Keep a state that was brought up to date. Raise CorruptLog if the log went back."""
        if state.version < self._highest:
            self._state = None
            raise missing_commit_error(self.path, self._highest)
        self._state, self._highest = state, state.version
        if self._local and (self._base_tag is None or self._base_tag[0] != state.version):
            self._base_is_there()  # remembers it; over a store that would cost a request
        return state

    def partition_at(
        self, values: Mapping[str, str | None], *, refresh: bool = True
    ) -> tuple[int, tuple[AddFile, ...]]:
        """Return the table's version, and the files of one partition then, sorted by path."""
        with self._lock:  # other threads advance the state
            state = self.refresh() if refresh or self._state is None else self._state
            files = state.partition(values).values()
            return state.version, tuple(sorted(files, key=lambda file: file.path))

    def read_commit(self, version: int) -> Commit:
        """Return one commit. Raise FileNotFoundError if it is gone, CorruptLog if broken."""
        commit = self._commits.get(version)
        if commit is None:
            commit = parse_commit(version, self.store.read(log_path(version)), self.path)
        return commit

    def commits(self, first: int, last: int) -> Iterator[Commit]:
        for version in range(first, last + 1):
            try:
                yield self.read_commit(version)
            except FileNotFoundError:
                continue

    def known_commits(self, first: int, last: int) -> list[Commit]:
        """Return the commits ``first..last`` that this handle has in memory."""
        with self._lock:
            return [
                self._commits[version]
                for version in range(first, last + 1)
                if version in self._commits
            ]

    def commit_time(self, version: int) -> int | None:
        """Return a commit's time in microseconds since 1970, or None if it was cleaned."""
        try:
            return self.read_commit(version).timestamp
        except FileNotFoundError:
            return None

    def forget(self) -> None:
        """Forget the state, so that the next look opens the table again."""
        with self._lock:
            self._state, self._sure_at = None, None
            self._others.clear()
            self._commits.clear()
            if self._replaceable:
                self._table_id, self._highest = None, -1

    # -- opening and following

    def _open(self, start: Sequence[str] | None) -> TableState:
        if start is None:
            no = "no" if self._table_id is None else "no longer a"
            raise NotAQueue(f"there is {no} Delta table at {self.path}", path=self.path)
        state = self._read_from(start)
        for _ in range(_OPEN_ATTEMPTS):
            if state.version >= 0 and self.store.exists(log_path(state.version)):
                break
            # A cleaner went past this start, or the commit is gone and only its checkpoint is left.
            listed = listed_checkpoint(self.store)
            if not listed or listed == list(start):
                break
            start, state = listed, self._read_from(listed)
        if state.version < 0:
            raise missing_commit_error(self.path, 0)
        self._look_for_gap(state.version)
        if self._table_id not in (None, state.table_id):
            raise NotAQueue(
                f"the Delta table at {self.path} was created again after this handle was opened. "
                "Open the queue again",
                path=self.path,
            )
        self._table_id = state.table_id
        self._base_tag, self._base_checked = None, self.clock.now()
        self.generation += 1
        return state

    def _read_from(self, start: Sequence[str]) -> TableState:
        state = starting_state(self.store, start, self._track_files)
        self._follow(state)
        return state

    def _catch_up(self, state: TableState) -> bool:
        """Apply the later commits. Return False if the table must be opened again."""
        known_for = self.seconds_since_look
        try:
            self._follow(state)
        except LogReplaced:
            return False
        if self._local or known_for < BASE_CHECK_SECONDS:
            return True
        # A cleaner may have overtaken: then the next commit is not missing but deleted.
        return self.store.exists(log_path(state.version))

    def _follow(self, state: TableState) -> None:
        started = state.version
        for commit in self.following(state.version + 1, read=2 if self._takes_turns else 0):
            self._apply(state, commit)
        self._takes_turns = state.version == started + 1
        if state.version == started and started >= 0:
            self._check_gap(state.version)

    def following(self, version: int, read: int = 0) -> Iterator[Commit]:
        """Iterate over the commits from a version on, up to the first missing one.

        `read` is how many were read before. Several requests are made at once after two commits, or
        if the last look found one. Then this one often does, too, and sees that it is the last.
        """
        while True:
            if read >= 2 and not self._local:
                ahead = min(read, _READ_AHEAD)
                commits = self._read_ahead(version, ahead)
                yield from commits
                if len(commits) < ahead:
                    return
                version, read = version + ahead, read + ahead
                continue
            try:
                yield self.read_commit(version)
            except FileNotFoundError:
                return
            version, read = version + 1, read + 1

    def _read_ahead(self, version: int, count: int) -> list[Commit]:
        """Return up to `count` commits, up to the first missing one."""

        def text(at: int) -> bytes | None:
            try:
                return self.store.read(log_path(at))
            except FileNotFoundError:
                return None

        numbers = range(version, version + count)
        texts = self.store.for_each(numbers, text)
        commits: list[Commit] = []
        for at, data in zip(numbers, texts, strict=True):
            if data is None:
                break
            commits.append(parse_commit(at, data, self.path))
        return commits

    def _apply(self, state: TableState, commit: Commit) -> None:
        commit.check_features(self.path)
        if self._state is not None and not commit.follows(state.operation_id):
            raise self._replaced(f"commit {commit.version} does not follow the commit before it")
        made = None if commit.metadata is None else str(commit.metadata.get("id"))
        if state.version >= 0 and made not in (None, state.table_id):
            raise NotAQueue(
                f"commit {commit.version} of {self.path} replaced the table. Open the queue again",
                path=self.path,
            )
        self._take_in(state, commit)
        if self._others:
            self._others[-1] += 1

    def _take_own(self, commit: Commit, started: Instant) -> None:
        """Apply a commit of this handle. Its put began at `started`."""
        with self._lock:
            if self._state is not None and self._state.version == commit.version - 1:
                self._take_in(self._state, commit)
                self._others.append(0)
                self._sure_at = started
                if self._local:
                    self._base_is_there()  # remembers it
                self._highest = max(self._highest, commit.version)

    def _take_in(self, state: TableState, commit: Commit) -> None:
        try:
            state.apply(commit)
            self._remember(commit)
        except BaseException:  # an interrupt: half of the commit may be in the state
            self.forget()
            raise

    def _remember(self, commit: Commit) -> None:
        self._commits[commit.version] = commit
        if len(self._commits) > _CACHED_COMMITS:
            del self._commits[min(self._commits)]

    # -- guards

    @property
    def _last_is_own(self) -> bool:
        return bool(self._others) and not self._others[-1]

    def _base_is_there(self) -> bool:
        """Return whether the last commit was neither cleaned nor made again with its table."""
        assert self._state is not None
        version = self._state.version
        if not self._local:
            if self.clock.since(self._base_checked) < BASE_CHECK_SECONDS:
                return True
            self._base_checked = self.clock.now()
        info = self.store.stat(log_path(version))
        if info is None:
            return False
        known, self._base_tag = self._base_tag, (version, info.etag)
        return known is None or known[0] != version or known == self._base_tag

    def _check_gap(self, version: int) -> None:
        if self.clock.since(self._gap_checked) < GAP_CHECK_SECONDS:
            return
        try:
            self._look_for_gap(version)
        except CorruptLog as error:
            if self._local or not self._last_is_own:
                raise
            # This machine was paused, no clock has noticed, and a cleaner went beyond its commits.
            raise self._replaced(str(error)) from error

    def _replaced(self, why: str) -> LogReplaced:
        if self._last_is_own:
            _log.error("the last commits of this process to %s may be lost: %s", self.path, why)
        return LogReplaced(f"the log of {self.path} is another one: {why}")

    def _look_for_gap(self, version: int) -> None:
        """Raise CorruptLog if only the commit after `version` is missing."""
        store, following = self.store, version + 1
        beyond = any(other > following for other in LogListing.of(store).commits)
        if beyond and not store.exists(log_path(following)) and store.exists(log_path(version)):
            raise missing_commit_error(self.path, following)
        self._gap_checked = self.clock.now()
