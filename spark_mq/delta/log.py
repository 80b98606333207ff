"""Follow the log of a Delta table by name, and commit to it.

A commit is two small writes: a data file, and then ``_delta_log/<N+1>.json`` if no file of that name
exists. Versions are dense, so the follower asks for the next one by its name and lists nothing.

A failed write may have landed, so each commit has an operation id, and after any failure the log reads
that number again before it reports a result. Between the read and the write other commits may land:
:meth:`Commit.conflict_with` decides if the change must be computed again or is put at the next number.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa

from spark_mq.delta.actions import (
    LOG_FOLDER,
    PREVIOUS_ID,
    Change,
    Commit,
    checkpoint_path,
    encode,
    log_path,
    missing_commit_error,
    parse_commit,
)
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import to_storage_error
from spark_mq.errors import CommitConflict, ContentionTimeout, CorruptLog, NotAQueue

__all__ = ["CHECKPOINT_INTERVAL", "DeltaLog"]

_logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL: Final = 100
"""Versions from one checkpoint to the next."""
GAP_CHECK_SECONDS: Final = 30.0
"""A follower that finds nothing new lists the log this often, to notice a missing commit."""
BASE_CHECK_SECONDS: Final = 5.0
"""On an object store, the follower checks this often that its last commit is still there."""
SLOW_COMMIT_SECONDS: Final = 10.0
"""A commit on an object store that took longer checks that the log was not cleaned meanwhile."""
_CACHED_COMMITS: Final = 128
_READ_AHEAD: Final = 16
"""Commits that a follower far behind requests from an object store at once."""
_CREATE_ATTEMPTS: Final = 3

T = TypeVar("T")


class DeltaLog:
    """The log of one table, and the table's state at the last look. Thread-safe.

    Parameters
    ----------
    store
        The files of the table.
    track_files
        Whether the state has the table's data files.
    on_checkpoint
        Called with a version that needs a checkpoint, after the commit of that version.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        track_files: bool = True,
        on_checkpoint: Callable[[ObjectStore, int], None] | None = None,
    ) -> None:
        self.store = store
        self.path = store.root
        self._track_files = track_files
        self._on_checkpoint = on_checkpoint
        self._lock = threading.RLock()
        self._state: TableState | None = None
        self._table_id: str | None = None
        self._highest = -1  # the highest version that this handle has seen
        self._commits: dict[int, Commit] = {}  # the last ones, parsed
        self._base_tag: tuple[int, str | None] | None = None  # the commit that the state stands on
        self._base_checked = self._gap_checked = time.monotonic()
        self.generation = 0
        """How often the table was opened: more than once if it was not as it was left."""
        self._own_streak = 0  # commits of this handle in a row, with no other commit between them

    # -- reading

    @property
    def alone(self) -> bool:
        """Whether the last commits of the table are this handle's own: nobody else seems to commit."""
        return self._own_streak >= 2

    @property
    def state(self) -> TableState:
        """The table as of the last look; looks if there was none yet."""
        return self._state or self.refresh()

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None if there is no table. Raise as :meth:`refresh`."""
        with self._lock:
            if self._state is None and self._find_start() is None:
                return None
            return self.refresh()

    def refresh(self) -> TableState:
        """Return the table at its latest version.

        Raises
        ------
        CorruptLog
            A commit or a checkpoint is missing or broken.
        NotAQueue
            There is no table any more, or another one than before.
        UnsupportedTable
            The table has a feature that spark_mq lacks.
        OSError
            The store does not answer.
        """
        with self._lock:
            if self._state is not None and not self._base_is_there():
                self.forget()
            if self._state is None:
                state = self._open()
            else:
                state = self._state
                self._follow(state)
            if state.version < self._highest:
                self._state = None
                raise missing_commit_error(self.path, self._highest)
            self._state, self._highest = state, state.version
            if self.store.is_local and (self._base_tag is None or self._base_tag[0] != state.version):
                self._base_is_there()  # remembers it; over a store that would cost a request
            return state

    def read_commit(self, version: int) -> Commit:
        """Return one commit. Raise FileNotFoundError if the log has it no more, CorruptLog if broken."""
        commit = self._commits.get(version)
        if commit is None:
            commit = parse_commit(version, self.store.read(log_path(version)), self.path)
        return commit

    def commits(self, first: int, last: int) -> Iterator[Commit]:
        """Iterate over the commits ``first..last`` that the log still has."""
        for version in range(first, last + 1):
            try:
                yield self.read_commit(version)
            except FileNotFoundError:
                continue

    def forget(self) -> None:
        """Forget the state: the next look opens the table again."""
        with self._lock:
            self._state = None
            self._commits.clear()

    # -- opening and following

    def _find_start(self) -> list[str] | tuple[()] | None:
        """Return the files of the newest checkpoint, none to start at version 0, None without a table."""
        hint = self._hinted_checkpoint()
        if hint is not None:
            return [hint]
        if self.store.exists(log_path(0)):
            return ()
        return self._listed_checkpoint()

    def _hinted_checkpoint(self) -> str | None:
        """Return the checkpoint that ``_last_checkpoint`` names, if it is a single file that exists."""
        try:
            hint = json.loads(self.store.read(f"{LOG_FOLDER}/_last_checkpoint"))
            path = checkpoint_path(int(hint["version"]))
        except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None  # it is a hint, and a broken one is none
        return path if self.store.exists(path) else None

    def _listed_checkpoint(self) -> list[str] | None:
        """Return the files of the newest complete checkpoint by a listing; None without any commit."""
        found: dict[int, list[str]] = {}
        any_commit = False
        for info in self.store.list(LOG_FOLDER):
            name = info.path.rpartition("/")[2]
            if not name[:20].isdigit():
                continue
            if ".checkpoint." in name and name.endswith(".parquet"):
                found.setdefault(int(name[:20]), []).append(info.path)
            any_commit |= name[20:] == ".json"
        complete = [version for version, paths in found.items() if _is_complete(paths)]
        if complete:
            return found[max(complete)]
        if any_commit:
            raise missing_commit_error(self.path, 0)
        return None

    def _open(self) -> TableState:
        start = self._find_start()
        if start is None:
            raise NotAQueue(f"there is no Delta table at {self.path}", path=self.path)
        state = self._started(list(start))
        self._follow(state)
        if start and not self.store.exists(log_path(state.version)):
            # A cleaner went past the checkpoint that the hint named.
            listed = self._listed_checkpoint()
            if listed and listed != start:
                state = self._started(listed)
                self._follow(state)
        if state.version < 0:
            raise missing_commit_error(self.path, 0)
        if self._table_id not in (None, state.table_id):
            raise NotAQueue(
                f"the Delta table at {self.path} was made again since this handle was opened. Open the queue again",
                path=self.path,
            )
        self._table_id = state.table_id
        self._base_tag = None
        self.generation += 1
        return state

    def _started(self, files: list[str]) -> TableState:
        """Return the state of a checkpoint, or the empty one to start at version 0."""
        if not files:
            return TableState(self._track_files)
        try:
            return self._loaded(files)
        except (pa.ArrowException, ValueError, FileNotFoundError) as error:
            return self._without_checkpoint(files[0], error)

    def _loaded(self, files: list[str]) -> TableState:
        state = TableState(self._track_files)
        version = int(files[0].rpartition("/")[2][:20])
        opened = [self.store.open(path) for path in files]
        try:
            state.load_checkpoint(opened, version, self.path)
        finally:
            for file in opened:
                file.close()
        return state

    def _without_checkpoint(self, path: str, error: Exception) -> TableState:
        """Start from an older checkpoint, or from version 0: a torn checkpoint loses nothing by itself."""
        broken = int(path.rpartition("/")[2][:20])
        infos = [info.path.rpartition("/")[2] for info in self.store.list(LOG_FOLDER)]
        commits = {int(name[:20]) for name in infos if name[20:] == ".json" and name[:20].isdigit()}
        older = sorted(
            {int(name[:20]) for name in infos if name[20:] == ".checkpoint.parquet" and int(name[:20]) < broken},
            reverse=True,
        )
        for version in (*older, -1):
            if all(following in commits for following in range(version + 1, broken + 1)):
                try:
                    state = self._loaded([checkpoint_path(version)]) if version >= 0 else TableState(self._track_files)
                except (pa.ArrowException, ValueError, FileNotFoundError):
                    continue
                _logger.warning("checkpoint %s of %s cannot be read: the log starts from an older one", path, self.path)
                return state
        raise CorruptLog(
            f"checkpoint {path} of {self.path} cannot be read: {error}. Restore it from a backup; or, as long as all commits "
            "from an older checkpoint on are there, remove it, and _last_checkpoint with it",
            path=self.path,
            version=broken,
        ) from error

    def _follow(self, state: TableState) -> None:
        """Apply all commits after the state's version."""
        started = state.version
        for commit in self.following(state.version + 1):
            self._apply(state, commit)
        if state.version == started and started >= 0:
            self._check_gap(state.version)

    def following(self, version: int) -> Iterator[Commit]:
        """Iterate over the commits from a version on, until one does not exist."""
        read = 0
        while True:
            if read >= 2 and not self.store.is_local:  # far behind: several requests at once
                commits = self._read_ahead(version)
                yield from commits
                if len(commits) < _READ_AHEAD:
                    return
                version += len(commits)
                continue
            try:
                yield self.read_commit(version)
            except FileNotFoundError:
                return
            version, read = version + 1, read + 1

    def _read_ahead(self, version: int) -> list[Commit]:
        with ThreadPoolExecutor(_READ_AHEAD) as pool:
            texts = list(pool.map(self._text, range(version, version + _READ_AHEAD)))
        there = texts[: texts.index(None)] if None in texts else texts
        return [parse_commit(version + at, text, self.path) for at, text in enumerate(there) if text is not None]

    def _text(self, version: int) -> bytes | None:
        try:
            return self.store.read(log_path(version))
        except FileNotFoundError:
            return None

    def _apply(self, state: TableState, commit: Commit) -> None:
        commit.check_features(self.path)
        changed = commit.metadata is not None and state.version >= 0
        if changed and str((commit.metadata or {}).get("id")) != state.table_id:
            raise NotAQueue(
                f"commit {commit.version} of {self.path} makes another table of it. Open the queue again", path=self.path
            )
        state.apply(commit)
        self._remember(commit)
        self._own_streak = 0

    def _remember(self, commit: Commit) -> None:
        self._commits[commit.version] = commit
        if len(self._commits) > _CACHED_COMMITS:
            del self._commits[min(self._commits)]

    # -- guards

    def _base_is_there(self) -> bool:
        """Whether the commit that the state stands on is there as it was.

        If not, the log was cleaned beyond it, or the table was made again.
        """
        assert self._state is not None
        version, now = self._state.version, time.monotonic()
        if not self.store.is_local and now - self._base_checked < BASE_CHECK_SECONDS:
            return True
        self._base_checked = now
        info = self.store.stat(log_path(version))
        if info is None:
            return False
        tag = (version, info.etag)
        if self._base_tag is not None and self._base_tag[0] == version:
            return self._base_tag == tag
        self._base_tag = tag
        return True

    def _check_gap(self, version: int) -> None:
        """Now and then, raise CorruptLog if commits lie beyond the missing one after `version`."""
        if time.monotonic() - self._gap_checked < GAP_CHECK_SECONDS:
            return
        names = (info.path.rpartition("/")[2] for info in self.store.list(LOG_FOLDER))
        beyond = any(n[20:] == ".json" and n[:20].isdigit() and int(n[:20]) > version + 1 for n in names)
        if beyond and not self.store.exists(log_path(version + 1)) and self.store.exists(log_path(version)):
            raise missing_commit_error(self.path, version + 1)
        self._gap_checked = time.monotonic()

    # -- committing

    def transact(
        self,
        compute: Callable[[TableState], tuple[Change | None, T]],
        *,
        timeout: float = 60.0,
        operation: str = "WRITE",
    ) -> tuple[int, T]:
        """Look, compute a change, commit it; from the start again after each conflict.

        Parameters
        ----------
        compute
            Returns the change for a state, or None for nothing to commit, and a result.
        timeout
            Seconds until the last conflict is raised.

        Returns
        -------
        tuple
            The version of the commit (of the state, if there was nothing to commit), and the result.
        """
        deadline, tries = time.monotonic() + timeout, 0
        while True:
            # Over a store a look costs a request, and the put finds out all the same.
            skip = tries == 0 and self.alone and not self.store.is_local
            state = self.state if skip else self.refresh()
            base = state.version
            change, result = compute(state)
            if change is None:
                return base, result
            try:
                return self.commit(change, base, operation), result
            except CommitConflict as error:
                tries += 1
                if time.monotonic() > deadline:
                    raise ContentionTimeout(
                        f"a commit to {self.path} lost {tries} races in {timeout:.0f} s. Nothing was changed. Try it again",
                        group=None,
                        attempts=tries,
                    ) from error
                time.sleep(min(0.2, 0.002 * 2 ** min(tries, 7)) * random.uniform(0.5, 1.5))

    def commit(self, change: Change, base: int, operation: str = "WRITE") -> int:
        """Commit a change that was computed from version `base`. Return its version.

        Other commits may have landed since: the change is put after those that it does not depend on.

        Raises
        ------
        CommitConflict
            A commit since `base` changed what the change depends on. Nothing was changed.
        StorageError
            The store failed. ``landed`` is False if nothing was changed, None if that is unknown.
        """
        started, version, previous = time.monotonic(), base, self._operation_id(base)
        while True:
            version += 1
            winner = self._known_winner(version, change)
            if winner is None and not self._create(version, change, previous, operation):
                winner = self._winner(version, change)
            if winner is None:
                self._landed(version, change, started)
                return version
            if reason := winner.conflict_with(change):
                raise CommitConflict(reason)
            previous = winner.operation_id

    def _operation_id(self, base: int) -> str | None:
        with self._lock:
            if self._state is not None and self._state.version == base:
                return self._state.operation_id
            commit = self._commits.get(base)
            return None if commit is None else commit.operation_id

    def _known_winner(self, version: int, change: Change) -> Commit | None:
        """Return the commit at a number that this handle has read already."""
        with self._lock:
            if self._state is None or self._state.version < version:
                return None
        return self._winner(version, change)

    def _create(self, version: int, change: Change, previous: str | None, operation: str) -> bool:
        """Put a commit if its number is free. Return whether this put certainly landed."""
        data = encode(change, previous, operation)
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                self.store.create(log_path(version), data)
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if self._number_is_taken(error, version):
                    return False
                # The put may still be on its way, so only the same number may be tried again.
                if self.store.is_local or attempt + 1 == _CREATE_ATTEMPTS:
                    raise to_storage_error(self.path, error, "committing to") from error
        raise AssertionError("unreachable")

    def _number_is_taken(self, error: OSError, version: int) -> bool:
        """Whether there is a commit at a number whose put has failed."""
        try:
            return self.store.exists(log_path(version))
        except OSError:
            raise to_storage_error(self.path, error, "committing to", landed=None) from error

    def _winner(self, version: int, change: Change) -> Commit | None:
        """Return the commit that took a number; None if it is the change's own."""
        try:
            winner = self.read_commit(version)
        except FileNotFoundError:
            self.forget()
            raise CommitConflict(f"commit {version} of {self.path} was cleaned meanwhile") from None
        except OSError as error:
            raise to_storage_error(self.path, error, "committing to", landed=None) from error
        if winner.operation_id == change.operation_id:
            return None
        with self._lock:
            if self._state is not None and self._state.version == version - 1:
                self._apply(self._state, winner)
                self._highest = max(self._highest, version)
        return winner

    def _landed(self, version: int, change: Change, started: float) -> None:
        """Check and take in an own commit."""
        slow = time.monotonic() - started > SLOW_COMMIT_SECONDS
        if (self.store.is_local or slow) and not self.store.exists(log_path(version - 1)):
            self._withdraw_stray(version, change)
        commit = Commit.of(version, change)
        with self._lock:
            if self._state is not None and self._state.version == version - 1:
                self._state.apply(commit)
                self._remember(commit)
                self._own_streak += 1
                self._highest = max(self._highest, version)
        if version % CHECKPOINT_INTERVAL == 0 and self._on_checkpoint is not None:
            self._on_checkpoint(self.store, version)

    def _withdraw_stray(self, version: int, change: Change) -> None:
        """Delete an own commit that nobody will read. Its writer was slower than the cleaner.

        The commit before it is gone. If the cleaner deleted the number's first commit too, the put
        found a free number in the past. If the number is the newest or the first of the log, or the next commit names
        this one as its predecessor, the cleaner came after the put.
        """
        if not self.store.exists(log_path(version)) or self.store.exists(checkpoint_path(version)):
            return
        try:
            following = self.read_commit(version + 1)
            if following.info.get(PREVIOUS_ID, change.operation_id) == change.operation_id:
                return
        except FileNotFoundError:
            pass
        self.store.delete(log_path(version))
        self.forget()
        raise CommitConflict(f"the log of {self.path} was cleaned beyond version {version} while it was written")


def _is_complete(paths: list[str]) -> bool:
    """Whether the files of one version make a whole checkpoint (single file, or all parts)."""
    if any(path.endswith("0.checkpoint.parquet") or path[-19:] == ".checkpoint.parquet" for path in paths):
        return True
    parts = [path.rpartition("/")[2].split(".") for path in paths]  # version.checkpoint.part.parts.parquet
    return len(parts[0]) == 5 and len(paths) == int(parts[0][3])
