"""Drop the data files of trimmed messages, with little memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Final

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.ledger.data_files import FileList

__all__ = ["TRIMMED", "drop_files"]

# App id of the transaction that notes the last sequence dropped by a trim.
TRIMMED: Final = "spark_mq.trimmed"
BLOCK_FILES: Final = 50_000  # that one step holds in memory
COMMIT_FILES: Final = 10_000  # that one commit removes


def drop_files(
    store: ObjectStore, files: FileList, count: int, rewritten: set[str], horizon: int
) -> int:
    """Delete the first `count` files and the `rewritten` ones. Return how many there were."""
    removed, folders = _remove(store, rewritten, horizon), _folders(rewritten)
    for paths in _blocks(files, count):
        removed += _remove(store, paths, horizon)
        folders |= _folders(paths)
    _delete(store, folders, files, count, rewritten)
    return removed


def _blocks(files: FileList, count: int) -> Iterator[set[str]]:
    for low in range(0, count, BLOCK_FILES):
        yield set(files.paths.to_arrow(low, min(count, low + BLOCK_FILES)).to_pylist())


def _folders(paths: set[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths}


def _remove(store: ObjectStore, paths: set[str], horizon: int) -> int:
    """Remove data files without a data change, so streams on the table continue."""
    if not paths:
        return 0
    log, total = DeltaLog(store, track_files=paths.__contains__), 0
    while True:
        operation_id = uuid.uuid4().hex

        def compute(
            state: TableState, operation_id: str = operation_id
        ) -> tuple[Change | None, int]:
            found: list[AddFile] = list(islice(state.files(), COMMIT_FILES))
            change = Change(
                operation_id,
                {"operation": "trim"},
                removes=found,
                # An older ``leases/`` cannot know the horizon.
                txns=[(TRIMMED, max(horizon, state.txns.get(TRIMMED, -1)))],
                data_change=False,
            )
            return change if found else None, len(found)

        removed = log.transact(compute)[1]
        if not removed:
            return total
        total += removed


def _delete(
    store: ObjectStore, folders: set[str], files: FileList, count: int, rewritten: set[str]
) -> None:
    """Delete all trimmed and rewritten files in some folders, also those of interrupted runs."""
    for folder in sorted(folders):
        for info in store.iterate(folder):
            place = files.find(info.path)
            if info.path in rewritten or (place is not None and place < count):
                store.delete(info.path)
