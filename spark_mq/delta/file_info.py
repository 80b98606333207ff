"""Define the facts that a store knows about a file."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

__all__ = ["FileInfo", "FileInfos"]


class FileInfo(NamedTuple):
    """The facts about one file of a store."""

    path: str
    """Path relative to the root of the store."""
    size: int
    """Size in bytes."""
    modified: float
    """Time of the last write in seconds since 1970, by the store's clock."""
    etag: str | None = None
    """Version of the content. Another file at the path has another one."""


FileInfos: TypeAlias = list[FileInfo]
"""For classes with a method named list."""
