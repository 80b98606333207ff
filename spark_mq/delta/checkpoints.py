"""Checkpoints of a table's log, where several sweeps write and clean them at once."""

from __future__ import annotations

import json
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_mq.delta.files import Files
from spark_mq.delta.listings import load
from spark_mq.delta.store_errors import telling

__all__ = ["checkpoint", "last_checkpoint"]

_ATTEMPTS: Final = 10


def checkpoint(files: Files, table: DeltaTable | None = None, every: int = 1) -> DeltaTable:
    """Writes a checkpoint of a table's latest version, unless the last one is fewer than `every` versions old.

    ``table``: a handle that has just been opened, if there is one. Returns the handle that stands on what has been looked at.

    delta-rs reads the log once more to write one. A sweep beside may have cleaned it by then, as far as a newer checkpoint of its own, or
    written the very same: then it is looked at anew. Raises CorruptLog, StorageError.
    """
    with telling(files.root, files.options, "writing a checkpoint of"):
        table = table or load(files.root, files.options)
        for left in reversed(range(_ATTEMPTS)):
            version = table.version()
            if version - last_checkpoint(files) < every:
                break
            try:
                table.create_checkpoint()
                break
            except DeltaError:
                table = load(files.root, files.options)
                if not left or last_checkpoint(files) < version == table.version():
                    raise  # it is nobody else's doing
        return table


def last_checkpoint(files: Files) -> int:
    """The version of the last checkpoint, or -1."""
    try:
        return max(-1, int(json.loads(files.read("_delta_log/_last_checkpoint"))["version"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return -1  # it is a hint, and a broken one is none: a checkpoint more does no harm
