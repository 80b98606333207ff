"""Define what a store knows about a file, and what most places for files have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias


class FileInfo(NamedTuple):
    """The facts about one file of a store."""

    path: str  # relative to the root of the store
    size: int  # bytes
    modified: float  # time of the last write in seconds since 1970, by the store's clock
    etag: str | None = None  # version of the content: another file at the path has another one


FileInfos: TypeAlias = list[FileInfo]  # for classes with a method named list


class Backend:
    """A place for files, by default one without folders, where every write lasts."""

    def sync(self, path: str) -> None:
        """Do nothing, because a file lasts once its write has succeeded."""

    def delete(self, path: str) -> None:
        raise NotImplementedError

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def delete_empty_folders(self, names: Iterable[str]) -> None:
        """Do nothing, because a folder is a part of a name."""

    def delete_stale_temporaries(self, folder: str, older_than_seconds: float) -> int:
        """Return 0, because no write leaves a temporary file."""
        return 0
