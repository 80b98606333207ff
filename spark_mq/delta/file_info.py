"""Define the facts that a store knows about a file."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class FileInfo(NamedTuple):
    """The facts about one file of a store."""

    path: str  # relative to the root of the store
    size: int  # bytes
    modified: float  # time of the last write in seconds since 1970, by the store's clock
    etag: str | None = None  # version of the content: another file at the path has another one


FileInfos: TypeAlias = list[FileInfo]  # for classes with a method named list
