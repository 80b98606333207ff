"""Listings that are late: an object store may show a folder as it was some seconds ago, and delta-rs knows a log from listings only.

Asked for by its name, a file is there at once. An operation on an old version cannot commit, but it could say wrong things: that a lease
is lost which it does not see yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_mq.delta.actions import log_path
from spark_mq.delta.files import Files

__all__ = ["load", "mark", "newest", "update"]

PATIENCE: Final = 20.0
"""Seconds that a store's listings may be late, at most: longer, and what was committed meanwhile is not seen."""
_PAUSE: Final = 0.05
_CLEANED: Final = 3
"""So many times in a row; a file that is missing for good is told."""

T = TypeVar("T")


def load(path: str, storage_options: Mapping[str, str] | None = None, version: int | None = None) -> DeltaTable:
    """A table, at its latest version or a given one. Raises TableNotFoundError and other DeltaErrors."""
    files = Files(path, storage_options)

    table = _when_listed(files, lambda: _opened(files, version), version or 0)
    if version is None:
        _await(table, files)
    return table


def update(table: DeltaTable, files: Files) -> None:
    """Brings a handle to the latest version. Raises DeltaError where it is older than what is left of the log."""
    _when_listed(files, table.update_incremental, table.version() + 1)
    _await(table, files)


def mark(table: DeltaTable, app: str, files: Files) -> tuple[int | None, DeltaTable]:
    """The number that a log has for an application (``Transaction``) as of a handle's version, and the handle that knew it.

    delta-rs reads it when it is asked, from the files of the log that the handle found when it was opened, as long as they were then. One
    may be gone by now, or have been written once more, as a checkpoint is that two processes make: then the log is opened anew. Raises
    DeltaError where that version is not to be had any more.
    """
    version = table.version()

    def anew() -> tuple[int | None, DeltaTable]:
        opened = _opened(files, version)
        return opened.transaction_version(app), opened

    try:
        return table.transaction_version(app), table
    except DeltaError:
        return _when_listed(files, anew, version)


def _opened(files: Files, version: int | None) -> DeltaTable:
    return DeltaTable(files.root, version=version, storage_options=files.options)


def newest(files: Files, version: int) -> int:
    """The latest version of a log that has `version`, by the names of its files."""
    while files.exists(log_path(version + 1)):
        version += 1
    return version


def _when_listed(files: Files, attempt: Callable[[], T], version: int) -> T:
    """Tries something again while it fails because a listing is late: of a checkpoint, or of a `version` that is there by its name.

    Or of any store, some times: because a sweep has cleaned away a file of the log after it was listed, and before it was read; or has
    written the same checkpoint once more.
    """
    deadline, cleaned = time.monotonic() + PATIENCE, 0
    while True:
        try:
            return attempt()
        except DeltaError as error:
            text = str(error)
            gone, anew = "/_delta_log/" in text and "not found" in text, "range was invalid" in text or "Corrupt footer" in text
            if cleaned < _CLEANED and (gone or anew):
                cleaned += 1
                continue
            late = files.lists_late and ("_last_checkpoint hint" in text or files.exists(log_path(version)))
            if not late or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def _await(table: DeltaTable, files: Files) -> None:
    """Until the handle stands on all that was committed when this was called."""
    if not files.lists_late:
        return
    latest = newest(files, table.version())
    deadline = time.monotonic() + PATIENCE
    while table.version() < latest and time.monotonic() < deadline:
        _when_listed(files, table.update_incremental, latest)
        if table.version() < latest:
            time.sleep(_PAUSE)
