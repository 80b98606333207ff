"""Commit to the log of a Delta table.

A commit writes a data file, and then ``_delta_log/<N+1>.json``, which fails if a file of that name
exists. A failed write may have landed, so each commit has an operation id. After any failure the
log reads that number again, before it reports a result.

Other commits may land between the look and the write. :meth:`Commit.conflict_with` decides whether
the change must be computed again, or is put at the next number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from spark_mq.delta.actions import PREVIOUS_ID, Change, Commit, checkpoint_path, encode, log_path
from spark_mq.delta.follower import LogFollower, LogReplaced
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState, TrackFiles
from spark_mq.delta.store_errors import REFUSALS, to_storage_error, wrap_store_errors
from spark_mq.errors import CommitConflict, CorruptLog
from spark_mq.util.backoff import Backoff, too_many_conflicts
from spark_mq.util.clock import Instant

CHECKPOINT_INTERVAL: Final = 100  # versions from one checkpoint to the next
# Seconds since the last look, after which a remote commit checks if the log was cleaned meanwhile.
SLOW_COMMIT_SECONDS: Final = 10.0
_CREATE_ATTEMPTS: Final = 3

T = TypeVar("T")


class DeltaLog(LogFollower):
    """Read and write the log of one table. Thread-safe.

    `track_files` says which data files the state has. A `replaceable` table may be deleted and made
    again under this handle. `on_checkpoint` is called after the commit of a version that needs one.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        track_files: TrackFiles = True,
        replaceable: bool = False,
        on_checkpoint: Callable[[ObjectStore, int], None] | None = None,
    ) -> None:
        super().__init__(store, track_files=track_files, replaceable=replaceable)
        self._on_checkpoint = on_checkpoint

    def transact(
        self,
        compute: Callable[[TableState], tuple[Change | None, T]],
        *,
        timeout: float = 60.0,
    ) -> tuple[int, T]:
        """Compute and commit a change, again after each conflict. Raise ContentionTimeout."""
        started, losses, backoff = time.monotonic(), 0, Backoff()
        while True:
            began = time.monotonic()
            state = self.state if not losses and self.may_skip_look else self.refresh()
            base = state.version
            change, result = compute(state)
            if change is None:
                return base, result
            try:
                return self.commit(change, base), result
            except CommitConflict as error:
                losses, now = losses + 1, time.monotonic()
                if now - started > timeout:
                    raise too_many_conflicts(f"a commit to {self.path}", losses, timeout) from error
                backoff.lost(now - began)
                backoff.wait()

    def commit(self, change: Change, base: int) -> int:
        """Commit a change of version `base`. Return its version, or raise CommitConflict."""
        with self._lock:  # another thread may look while this one puts
            version, sure_at = base, self._sure_at
        previous = self._operation_id(base)
        unsynced = [file.path for file in change.adds] if change.unsynced else []
        unsynced += change.companions
        while True:
            version += 1
            started, now = self.clock.now(), int(self.store.now() * 1000)
            winner = self._known_winner(version, change)
            if winner is None:
                commit = Commit.of(version, change, now)
                data = encode(change, commit, previous)
                if not self.put(version, data, unsynced):
                    winner = self._winner(version, change)
                unsynced = []
            if winner is None:
                with wrap_store_errors(self.path, "committing to", landed=None):
                    self._check_place(version, change, sure_at)
                    self._take_own(commit, started)
                if version % CHECKPOINT_INTERVAL == 0 and self._on_checkpoint is not None:
                    self._on_checkpoint(self.store, version)
                return version
            if reason := winner.conflict_with(change):
                raise CommitConflict(reason)
            previous = winner.operation_id

    def _operation_id(self, version: int) -> str | None:
        """Return the operation of a commit, or None if it is not known."""
        with self._lock:
            state = self._state
            if state is not None and state.version == version and state.operation_id is not None:
                return state.operation_id
        with wrap_store_errors(self.path, "committing to"):
            try:
                return self.read_commit(version).operation_id  # the state may be of a checkpoint
            except (FileNotFoundError, CorruptLog):
                return None

    def _known_winner(self, version: int, change: Change) -> Commit | None:
        """Return the foreign commit at a number that this handle has read already, or None."""
        with self._lock:
            if self._state is None or self._state.version < version:
                return None
        return self._winner(version, change)

    def put(self, version: int, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        """Put a commit if its number is free. Return whether this put certainly landed.

        If not, the caller reads the commit that has the number, because it may be its own. Raise
        StorageError, whose ``landed`` is False only if the store refused each put, because it may
        still apply one that failed otherwise. Files in `unsynced` are synced first.
        """
        refused = True
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                self.store.create(log_path(version), data, after=unsynced)
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if self._number_is_taken(error, version):
                    return False
                refused = refused and (self._local or isinstance(error, REFUSALS))
                # The put may still be on its way, so only the same number may be tried again.
                if self._local or attempt + 1 == _CREATE_ATTEMPTS:
                    landed = False if refused else None
                    raise to_storage_error(
                        self.path, error, "committing to", landed=landed
                    ) from error
        raise AssertionError("unreachable")

    def _number_is_taken(self, error: OSError, version: int) -> bool:
        try:
            return self.store.exists(log_path(version))
        except OSError:
            raise to_storage_error(self.path, error, "committing to", landed=None) from error

    def foreign_commit(self, version: int, operation_id: str) -> Commit | None:
        """Return a number's commit, None if it is that operation's. Raise FileNotFoundError."""
        try:
            commit = self.read_commit(version)
            if commit.operation_id != operation_id:
                return commit
            self.store.sync(log_path(version))  # the put has failed, perhaps at its own sync
        except FileNotFoundError:
            raise
        except OSError as error:
            raise to_storage_error(self.path, error, "committing to", landed=None) from error
        return None

    def _winner(self, version: int, change: Change) -> Commit | None:
        """Return the foreign commit that took a number, or None if it is the change's own."""
        try:
            winner = self.foreign_commit(version, change.operation_id)
        except FileNotFoundError:
            self.forget()
            raise CommitConflict(f"commit {version} of {self.path} was cleaned meanwhile") from None
        if winner is None:
            return None
        with self._lock:
            if self._state is not None and self._state.version == version - 1:
                try:
                    self._apply(self._state, winner)
                except LogReplaced as error:
                    self.forget()
                    raise CommitConflict(str(error)) from None
                self._highest = max(self._highest, version)
        return winner

    def _check_place(self, version: int, change: Change, sure_at: Instant | None) -> None:
        """Withdraw an own commit and raise CommitConflict if the log was cleaned beyond it."""
        slow = self.clock.since(sure_at) > SLOW_COMMIT_SECONDS
        if (self._local or slow) and not self.store.exists(log_path(version - 1)):
            self._delete_unread_commit(version, change)

    def _delete_unread_commit(self, version: int, change: Change) -> None:
        """Delete an own commit that nobody will read, because the cleaner overtook its writer."""
        # The commit before it is gone. If the cleaner deleted the number's first commit too, the
        # put found a free number in the past. In three cases the cleaner came after the put, so the
        # commit counts. It is deleted as well, its number has a checkpoint, or the next commit
        # names it as its predecessor. If another engine made the next commit, it names nothing, so
        # this one is made again, unless its caller finds that it counts.
        if not self.store.exists(log_path(version)) or self.store.exists(checkpoint_path(version)):
            return
        try:
            following = self.read_commit(version + 1)
            if following.info.get(PREVIOUS_ID) == change.operation_id:
                return
        except FileNotFoundError:
            pass
        self.store.delete(log_path(version))
        self.forget()
        raise CommitConflict(
            f"the log of {self.path} was cleaned beyond version {version} while it was written"
        )
