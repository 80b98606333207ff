"""Whether the log of ``messages/`` is still the one that was read: commits that are gone, or others than before, are noticed and told."""

from __future__ import annotations

import time
from typing import Final

from spark_mq.delta import legacy as delta
from spark_mq.delta.store_errors import gone
from spark_mq.errors import CorruptLog
from spark_mq.storage.published_files import PublishedFiles

__all__ = ["HOLE_LOOK", "LogWatch", "Stamp"]

Stamp = tuple[int, tuple[int, int]]
"""A commit's version, size and time of writing."""

HOLE_LOOK: Final = 30.0
"""Seconds after which a look that finds nothing new makes sure that nothing lies beyond a commit that is gone."""


class LogWatch:
    """What one handle remembers of the log. ``files``: those of the table at `path`."""

    def __init__(self, files: delta.Files, path: str) -> None:
        self.stood: Stamp | None = None
        """Of the commit that the handle's table stands on."""
        self.known: Stamp | None = None
        """Of the last commit that the state knows."""
        self._files, self._path = files, path
        self._reached = -1  # the latest version that this handle has seen, or committed
        self._listed = time.monotonic()  # when it was last made sure that the log has no hole

    def stamp_of(self, version: int) -> Stamp | None:
        """What tells a commit from another one of its version; None where it is gone."""
        stamp = self._files.stamp(delta.log_path(version))
        return None if stamp is None else (version, stamp)

    def is_as_it_was(self, stamp: Stamp | None) -> bool:
        """Whether a commit that was seen is there as it was. If not, the log was cleaned beyond it, or the table made anew."""
        return stamp is not None and self.stamp_of(stamp[0]) == stamp

    def reached(self, version: int) -> None:
        """Takes note of the latest version. Raises CorruptLog where it was higher: a commit there would be one that others never see."""
        if version < self._reached:
            raise gone(self._path, self._reached)
        self._reached = version

    def stands_on(self, version: int) -> None:
        """Takes note of where the handle's table stands."""
        self.reached(version)
        if self.stood is None or self.stood[0] != version:
            self.stood = self.stamp_of(version)

    def check_known(self, state: PublishedFiles, latest: int) -> None:
        """Whether the last commit that a state knows is still the one that was read. Raises CorruptLog."""
        version = state.index.version
        if latest < version:
            raise gone(self._path, version)
        try:
            same = version < 0 or state.knows(version, delta.read_commit(self._files, version, self._path))
        except FileNotFoundError:
            return  # cleaned
        if not same:
            raise CorruptLog(
                f"commit {version} of {self._path} is another one than was read before: its messages have the sequences that others had. "
                "Open the queue again; groups that had settled those do not get these",
                path=self._path, version=version,
            )  # fmt: skip
        self.known = self.stamp_of(version)

    def check_beyond(self, version: int) -> None:
        """Now and then: whether commits lie beyond the one after `version`, which is not there. Raises CorruptLog."""
        if time.monotonic() - self._listed < HOLE_LOOK:
            return
        following = version + 1
        names = (path.rpartition("/")[2] for path in self._files.list("_delta_log"))
        beyond = any(name[20:] == ".json" and name[:20].isdigit() and int(name[:20]) > following for name in names)
        if beyond and not self._files.exists(delta.log_path(following)) and self.is_as_it_was(self.known):
            raise gone(self._path, following)
        self._listed = time.monotonic()
