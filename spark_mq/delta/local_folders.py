"""Create the folders of a table on a local disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

__all__ = ["LocalFolders"]


class LocalFolders:
    """Create folders under one root. If durable, wait until the disk has their entries."""

    def __init__(
        self,
        root: str,
        durable: bool,
        *,
        makedir: Callable[[str], None],
        sync_folder: Callable[[str], None],
    ) -> None:
        self._root = root
        self._durable = durable
        self._makedir = makedir
        self._sync_folder = sync_folder
        self.synced: set[str] = set()  # folders whose own entries this process has synced

    def make(self, folder: str) -> None:
        """Create missing folders and make their entries durable, once a process."""
        parent = os.path.dirname(folder)
        missing = not os.path.isdir(folder)
        if missing and not os.path.isdir(parent):
            self.make(parent)
        if missing:
            with contextlib.suppress(FileExistsError):
                self._makedir(folder)
        if self._durable:
            self._sync_entry_of(folder, missing)

    def _sync_entry_of(self, folder: str, made: bool) -> None:
        # Another process may have made the folder and not yet synced it. So do so here, too.
        inside = folder.startswith(f"{self._root}/")
        try:
            self._sync_folder(os.path.dirname(folder) or "/")
        except PermissionError:
            if made or inside:
                raise
        if inside and os.path.dirname(folder) not in self.synced:
            self._sync_entry_of(os.path.dirname(folder), made=False)
        self.synced.add(folder)
