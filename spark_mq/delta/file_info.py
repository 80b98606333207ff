"""What a store knows about one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["FileInfo", "FileInfos"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Describe one file of a store.

    Parameters
    ----------
    path : str
        Path relative to the root of the store.
    size : int
        Size in bytes.
    modified : float
        Time of the last write in seconds since 1970, by the store's clock.
    etag : str, optional
        Version of the content. Another file at the path has another one.
    """

    path: str
    size: int
    modified: float
    etag: str | None = None


FileInfos: TypeAlias = list[FileInfo]
"""For classes with a method named list."""
