"""Describe the store that holds the data files."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["FileStore"]


class FileStore(Protocol):
    """Read and write files by paths relative to one root."""

    root: str
    options: dict[str, str]

    def open(self, path: str) -> Any:
        """Open a random-access file for pyarrow. Raise FileNotFoundError if it is missing."""

    def read(self, path: str) -> bytes:
        """Return a whole file. Raise FileNotFoundError if it is missing."""

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a whole file. Without `sync` it is on the disk after a later commit."""
