"""Delete old versions of tables, and the data files of trimmed messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Final

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.cleanup import FIND_ORPHANS, Keep, clean_table, delete_orphans, is_stale
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.tables import Secure, checkpoint_if_due, write_checkpoint
from spark_mq.ledger.data_files import FileList
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.id_files import DEDUP_APP, IdFiles, head_of

# How much of the log of messages/ stays, and of leases/ in an object store. A writer over a store
# looks each 5 to 10 s if the log was cleaned. The rest is for a pause of its machine that none of
# its clocks has noticed.
MESSAGE_VERSIONS: Final = 2_000
MESSAGE_SECONDS: Final = 600.0
# How much of leases/ stays on a local disk, for time travel.
LEDGER_VERSIONS: Final = 500
LEDGER_SECONDS: Final = 15.0
# App id of the transaction that notes the last sequence dropped by a trim.
TRIMMED: Final = "spark_mq.trimmed"
BLOCK_FILES: Final = 50_000  # that one step holds in memory
COMMIT_FILES: Final = 10_000  # that one commit removes


def clean_message_tables(
    log: DeltaLog, commits: CommitsTable, keep_versions: int | None, keep_seconds: float | None
) -> int:
    """Delete commits of ``messages/`` that ``commits/`` has. Return the number of files."""
    versions = MESSAGE_VERSIONS if keep_versions is None else keep_versions
    seconds = MESSAGE_SECONDS if keep_seconds is None else keep_seconds
    _checkpoint(log, now=keep_versions is not None)
    index = commits.open()
    covered = commits.up_to(index)
    cleaned = clean_table(log, Keep(versions, seconds, covered), data_files=False)
    return cleaned if index is None else cleaned + commits.clean()


def clean_ids(log: DeltaLog, ids: IdFiles) -> int:
    """Delete the files of ids that no publish needs. Return their number."""
    stale = {info.path for info in ids.listed() if is_stale(log.store, info)}
    # The look comes after the listing, because a commit may have landed meanwhile.
    head = head_of(log.refresh().txns) if stale else None
    if head is None:
        return 0
    return delete_orphans(log, stale - ids.named(head), _conflict_with_ids)


def _conflict_with_ids(state: TableState) -> Change:
    """Return a commit that publishes nothing, and conflicts with all that have ids."""
    return Change(uuid.uuid4().hex, FIND_ORPHANS, txns=[(DEDUP_APP, state.txns[DEDUP_APP])])


def clean_ledger_table(
    log: DeltaLog,
    keep_versions: int | None,
    keep_seconds: float | None,
    *,
    archived: int,
    secure: Secure | None,
) -> int:
    """Delete archived versions of ``leases/``. Return the number of files."""
    versions = LEDGER_VERSIONS if keep_versions is None else keep_versions
    kept = LEDGER_SECONDS if log.store.is_local else MESSAGE_SECONDS
    seconds = kept if keep_seconds is None else keep_seconds
    _checkpoint(log, now=keep_versions is not None, secure=secure)
    return clean_table(log, Keep(versions, seconds, archived), data_files=True)


def _checkpoint(log: DeltaLog, *, now: bool, secure: Secure | None = None) -> None:
    """Write a checkpoint now, or only if one is due."""
    if now:
        write_checkpoint(log.store, secure)
    else:
        checkpoint_if_due(log.store, log.state.version, secure)


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
        paths = files.columns(low, min(count, low + BLOCK_FILES)).paths
        yield set(paths.values.to_pylist())


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
            files: list[AddFile] = list(islice(state.files(), COMMIT_FILES))
            change = Change(
                operation_id,
                {"operation": "trim"},
                removes=files,
                # An older ``leases/`` cannot know the horizon.
                txns=[(TRIMMED, max(horizon, state.txns.get(TRIMMED, -1)))],
                data_change=False,
            )
            return change if files else None, len(files)

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
