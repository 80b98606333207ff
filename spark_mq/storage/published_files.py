"""Read published files, rewritten files and producers' numbers from commits of ``messages/``.

The commits come from the log's own JSON, one by one, or from ``commits/``, which the sweep writes.
Files that were trimmed and that no group needs are forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Commit, RemovedFile, log_path, restore_hint
from spark_mq.delta.object_store import ObjectStore, is_data_path
from spark_mq.errors import CorruptLog
from spark_mq.ledger.data_files import FileList
from spark_mq.ledger.intervals import valid_replaced
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import ORDINAL_BITS, DataFile, MessageIndex, sequence
from spark_mq.ledger.slots import valid_slots
from spark_mq.parquet.files import unreadable_reason
from spark_mq.parquet.lease_columns import may_have, read_delivery_times, read_slots
from spark_mq.parquet.schema import TIME_COLUMNS
from spark_mq.parquet.writer import BATCH_TAG, GROUP_TAG, REPLACES_TAG, SLOTS_TAG
from spark_mq.storage.commit_rows import (
    COMMITS_SCHEMA,
    PRODUCER_NUMBER,
    REWRITE,
    file_columns,
    of_kind,
    producer_number_rows,
    publish_rows,
    rewrite_rows,
)
from spark_mq.util.columns import sort_rows
from spark_mq.util.show import show_name
from spark_mq.util.validation import is_name, short_repr

__all__ = ["COMMITS_SCHEMA", "PublishedFiles", "commit_matches"]

_log = logging.getLogger(__name__)

# The operation by which other engines add files of an older version again.
_RESTORE: Final = "RESTORE"
# A commit that claims more rows than this is believed only after a look at its files.
MAX_UNCHECKED_ROWS: Final = 2**20


class PublishedFiles:
    """The published files of ``messages/``, which grow commit by commit."""

    def __init__(
        self, files: ObjectStore, path: str, active: Callable[[str], bool], lanes: int = 0
    ) -> None:
        self.index = MessageIndex(lanes=lanes)
        # By app: its latest number, and the version of that.
        self.producer_numbers: dict[str, tuple[int, int]] = {}
        self._files, self._path, self._active = files, path, active
        # By path: the version, and the last sequence in it, at most, if known.
        self._rewritten: dict[str, tuple[int, int | None]] = {}

    def matches(self, commit: Commit) -> bool:
        """Return whether this is the applied commit of its version."""
        version, paths = commit.version, {file.path for file in commit.adds}
        files = self.index.files
        places = range(_begun(files, version), _begun(files, version + 1))
        published = {files[place].path for place in places}
        return published <= paths and all(self.knows(path) for path in paths)

    def knows(self, path: str) -> bool:
        """Return whether an applied commit has added a file."""
        return path in self._rewritten or self.index.files.find(path) is not None

    def version_of(self, path: str) -> int | None:
        place = self.index.files.find(path)
        return None if place is None else self.index.files.first_at(place) >> ORDINAL_BITS

    def forget(self, up_to: int) -> None:
        """Forget commits that all groups have settled and a trim has dropped, up to a sequence."""
        self.index = self.index.without_settled(up_to)
        forgotten = self.rewritten(self.index.forgotten_to)
        self._rewritten = {k: v for k, v in self._rewritten.items() if k not in forgotten}

    def forget_as(self, forgotten_to: int, forgotten: int) -> None:
        """Forget the messages that ``commits/`` has forgotten."""
        index = self.index
        if forgotten_to <= index.forgotten_to:
            return
        kept = index.without_settled(forgotten_to)
        if kept.forgotten_to < forgotten_to:  # the next commits that this index lacks
            kept = MessageIndex(
                version=index.version,
                forgotten_to=forgotten_to,
                forgotten=forgotten,
                lanes=index.layout.lanes,
            )
        self.index = kept

    def rewritten(self, horizon: int) -> set[str]:
        """Return the paths of rewritten files without a sequence above `horizon`."""
        return {
            path
            for path, (_, last) in self._rewritten.items()
            if last is not None and last <= horizon
        }

    # -- from the log's own JSON

    def apply(self, commit: Commit) -> None:
        """Apply the next commit. An error, such as CorruptLog, applies nothing of it."""
        version = commit.version
        commit.check_features(self._path)
        self._check_paths(commit)
        fresh = {file.path: file for file in commit.adds if not self.knows(file.path)}
        removes = commit.removes
        restored = commit.info.get("operation") == _RESTORE
        files = [] if removes or restored else self._publishes(commit, fresh)
        if any(file.data_change for file in removes):
            _log.warning(
                "commit %d of %s rewrites messages, or deletes some (%s). The messages that it "
                "adds are not published. The messages that it removes are delivered while their "
                "files exist. To take a message out of a queue, ack or reject it in a group",
                version,
                self._path,
                show_name(str(commit.info.get("operation"))),
            )
        last = self._newest_source(removes) if removes and fresh else None
        if restored and last is None and self.index.forgotten_to >= 0:
            last = self.index.forgotten_to  # all others are known
        index = self.index.extended(files, version)
        published = {file.path for file in files if file.rows}
        self._rewritten.update((path, (version, last)) for path in fresh if path not in published)
        self.producer_numbers.update(
            (app, (number, version)) for app, number in commit.txns.items()
        )
        self.index = index  # last, so that the commit of an interrupted call is applied again

    def _publishes(self, commit: Commit, fresh: Mapping[str, AddFile]) -> list[DataFile]:
        """Return the files that a commit without removes publishes, with their sequences."""
        version, files, ordinal = commit.version, [], 0
        claimed = sum(add.rows or 0 for add in fresh.values())
        for path, add in fresh.items():
            if add.data_change:
                rows = self.rows(add, version, check=claimed > MAX_UNCHECKED_ROWS)
                at, stats = commit.timestamp or add.modified * 1000, add.statistics
                times = None
                if may_have(stats, *TIME_COLUMNS):
                    times = read_delivery_times(self._files, path)
                slots = self._slots_of(add, stats, rows)
                batch, replaces = add.tags.get(BATCH_TAG), add.tags.get(REPLACES_TAG)
                first = sequence(version, ordinal)
                batch = batch if isinstance(batch, str) else ""
                replaces = replaces if replaces and valid_replaced(replaces, first) else ""
                group = add.tags.get(GROUP_TAG)
                group = group if is_name(group) else ""
                files.append(
                    DataFile(first, rows, path, add.size, at, times, slots, batch, replaces, group)
                )
                ordinal += rows
        return files

    def _slots_of(self, add: AddFile, stats: Mapping[str, Any], rows: int) -> str:
        """Return the slots of a file by its tag, or by its keys if no tag fits."""
        layout = self.index.layout
        text = add.tags.get(SLOTS_TAG)
        if text is not None and valid_slots(text, layout, rows):
            return str(text)
        if rows and (layout.lanes or may_have(stats, "priority")):
            slots = read_slots(self._files, add.path, layout.lanes)
            return slots if not slots or valid_slots(slots, layout, rows) else ""
        return ""

    def _newest_source(self, removes: list[RemovedFile]) -> int | None:
        """Return the highest sequence in a compacted file, or None if a source is unknown."""
        lasts = [self._last(file.path) for file in removes]
        known = [last for last in lasts if last is not None]
        return max(known) if len(known) == len(lasts) else None

    def _last(self, path: str) -> int | None:
        place = self.index.files.find(path)
        if place is not None:
            return self.index.files.last_at(place)
        return self._rewritten.get(path, (0, None))[1]

    def _check_paths(self, commit: Commit) -> None:
        for add in commit.adds:
            if not is_data_path(add.path):
                path = short_repr(add.path)
                raise self._refused(commit.version, f"it adds {path}, outside the table")

    def _refused(self, version: int, reason: str) -> CorruptLog:
        return CorruptLog(
            f"commit {version} of {self._path} is refused: {reason}. "
            f"{restore_hint(self._path, version)}",
            path=self._path,
            version=version,
        )

    def rows(self, add: AddFile, version: int, *, check: bool = False) -> int:
        """Return a file's rows by its statistics or footer. Raise CorruptLog if it has fewer."""
        count = add.rows
        if count is not None and not check:
            return int(count)
        path, name = add.path, show_name(add.path)
        try:
            stored_rows = _footer_rows(self._files, path)
            if count is not None and stored_rows < count:
                raise self._refused(version, f"{name} has {stored_rows} rows, and claims {count}")
            return stored_rows if count is None else int(count)
        except (OSError, pa.ArrowException) as error:
            again = partial(_footer_rows, path=path)
            why = unreadable_reason(self._files, path, error, again)
            if isinstance(error, FileNotFoundError) and not self._active(path):
                return int(count or 0)  # trimmed with its whole commit, so nobody reads it
            if count is not None:
                raise self._refused(version, f"{name} claims {count} rows, and {why}") from error
            raise CorruptLog(
                f"{why}, and commit {version} of {self._path} has no statistics of it: later "
                f"messages cannot get a sequence. "
                "Restore the file from a backup. Without one, give its messages up: put a "
                "Parquet file without rows in its place. To give up the whole commit, put a file "
                f'with the line {{"commitInfo":{{}}}} in the place of {log_path(version)}',
                path=self._path,
                version=version,
            ) from error

    # -- to and from commits/

    def rows_since(self, version: int, up_to: int | None = None) -> pa.Table:
        """Return the commits after `version`, up to `up_to`, as rows of ``commits/``."""
        end = self.index.version if up_to is None else up_to
        files = self.index.files
        rewrites = ((path, *place) for path, place in self._rewritten.items())
        numbers = ((app, *number) for app, number in self.producer_numbers.items())
        parts = [
            publish_rows(files.columns(_begun(files, version + 1), _begun(files, end + 1))),
            rewrite_rows(rewrite for rewrite in rewrites if version < rewrite[1] <= end),
            # A number may be newer than the batch. It shows all that an app has published.
            producer_number_rows(number for number in numbers if number[2] > version),
        ]
        return sort_rows(pa.concat_tables(parts), "version", "first")

    def version_after(self, version: int, files: int) -> int:
        """Return the last version of a batch of about `files` files."""
        known = self.index.files
        at = _begun(known, version + 1) + files
        return self.index.version if at >= len(known) else known.first_at(at) >> ORDINAL_BITS

    def load_rows(self, rows: pa.Table, version: int) -> None:
        """Add rows of ``commits/`` up to `version` that are not known yet."""
        is_new = pc.greater(rows["version"], self.index.version)
        for path, at, last in of_kind(rows, is_new, REWRITE, "path", "version", "last"):
            self._rewritten[path] = (at, None if last == MAX_SEQUENCE else last)
        for app, number, at in of_kind(rows, is_new, PRODUCER_NUMBER, "app", "number", "version"):
            self.producer_numbers[app] = max(
                (number, at), self.producer_numbers.get(app, (number, at))
            )
        is_kept = pc.greater(pc.fill_null(rows["last"], -1), self.index.forgotten_to)
        columns = file_columns(rows, pc.and_(is_new, is_kept))
        self.index = self.index.extended_columns(columns, version)
        # The rows are several times as large as the data that is kept of them.
        pa.default_memory_pool().release_unused()


def _begun(files: FileList, version: int) -> int:
    return files.begun_at(sequence(version, 0) - 1)


def _footer_rows(files: ObjectStore, path: str) -> int:
    with files.open(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def commit_matches(rows: pa.Table, commit: Commit, *, forgotten: bool = False) -> bool:
    """Return whether the rows of ``commits/`` describe this commit, or nothing if forgotten."""
    described = rows.filter(pc.equal(rows["version"], commit.version))
    paths = {path for path in described["path"].to_pylist() if path is not None}
    if not paths <= {file.path for file in commit.adds}:
        return False
    # Files without rows have no row here, and files that came back have an older one.
    counted = {file.path for file in commit.adds if file.rows}
    return forgotten or counted <= paths or counted <= set(rows["path"].to_pylist())
