"""Append the rows of leases to a Delta table, each lease's once.

The write of a lease carries an application transaction in the table's own log: the name of a
writer and a number, see :mod:`spark_mq.ledger.sink_writes`. delta-rs commits by put-if-absent, and
refuses a commit if another one had the same name since the table was read. So:

- A lease whose messages had earlier leases looks for their writes first. One that is there has all
  of the lease's messages, and nothing is written.
- One that is not there is *fenced*: a commit without rows takes its number, so that its holder,
  which may only be slow, can never write it. The fence has a second name, so that nobody takes it
  for the write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from spark_mq.delta.store_errors import one_line, to_storage_error, wrap_store_errors
from spark_mq.errors import ContentionTimeout, InvalidOption, LeaseLost
from spark_mq.ledger.sink_writes import SinkWrite

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_TRIES: Final = 20  # of a commit whose race is lost only to a few others
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_MAPPING: Final = "delta.columnMapping.mode"
_ARROW: Final = ("__arrow_c_stream__", "__arrow_c_array__", "to_arrow", "dtypes")  # what rows have


class SinkFile(NamedTuple):
    """A Parquet file in the folder of a table, which no commit names yet."""

    path: str  # below the table
    size: int  # bytes
    partition: Mapping[str, str | None]  # its values by column
    statistics: str  # as JSON, by the Delta protocol


class SinkTable(NamedTuple):
    """What a table asks of the rows that are appended to it."""

    schema: str  # as JSON
    partition_columns: list[str]
    features: frozenset[str]  # that a writer must know
    properties: Mapping[str, str | None]


class DeltaSink:
    """One Delta table as the sink of a group, which had `table_id` when the sink was set.

    `names` is what the names of its writers begin with.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str], names: str = "", table_id: str = ""
    ) -> None:
        self.path, self.storage_options, self._names = path, dict(storage_options), names
        self._table_id = table_id

    def table_id(self) -> str:
        return str(self._open().metadata().id)

    def check(self) -> None:
        """Raise InvalidOption if the table cannot be a sink."""
        metadata = self._open().metadata()
        if metadata.configuration.get(_MAPPING, "none") != "none":
            raise self._refused(f"it has {_MAPPING}, which delta-rs ignores", "use another table")
        if '"format": "spark_mq' in (metadata.description or ""):
            raise self._refused("it is a table of a queue", "give the path of the queue itself")
        if _FORGETS in metadata.configuration:
            raise self._refused(
                f"it has {_FORGETS}, so it would forget which leases it has",
                "unset the property",
            )

    def has_one_of(self, writes: Sequence[SinkWrite]) -> bool:
        """Return whether the table has an earlier write of a lease. Fence the others."""
        # In order, because each holder fenced the writes before its own, before it wrote. Those
        # after it are fenced, too: once the messages are settled, their holders may not find it.
        found = [self._has(write) for write in writes]
        return any(found)

    def append(
        self, rows: Any, write: SinkWrite, schema_mode: Literal["merge"] | None = None
    ) -> None:
        """Append rows in the write of a lease, as :meth:`commit`."""
        from deltalake import write_deltalake

        if not any(hasattr(rows, name) for name in _ARROW):
            raise InvalidOption(
                f"rows is a {type(rows).__name__}: give an Arrow table, or a DataFrame of Polars "
                "or pandas",
                option="rows",
                value=type(rows).__name__,
            )

        def change(table: DeltaTable, transactions: CommitProperties) -> None:
            try:
                write_deltalake(
                    table, rows, mode="append", schema_mode=schema_mode,
                    commit_properties=transactions,
                )  # fmt: skip
            except Exception as error:
                if not _is_of_rows(error):
                    raise
                # Without its text, which may have values.
                raise InvalidOption(
                    f"the rows do not fit {self.path}: {_misfits(rows, table)}. Give rows of its "
                    'schema, or schema_mode="merge" for new columns or missing ones',
                    option="rows",
                    value=type(rows).__name__,
                ) from None

        self.commit(write, change)

    def append_files(self, files: Sequence[SinkFile], write: SinkWrite) -> None:
        """Add files that are in the table's folder in the write of a lease, as :meth:`commit`."""
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(file.path, file.size, file.partition, now, True, file.statistics)
            for file in files
        ]

        def change(table: DeltaTable, transactions: CommitProperties) -> None:
            _add_files(table, actions, transactions)

        self.commit(write, change)

    def add_columns(self, columns: Sequence[str]) -> None:
        """Add missing columns, given as JSON of Delta. Raise InvalidOption for another type."""
        from deltalake import Field
        from deltalake.exceptions import CommitFailedError, SchemaMismatchError

        fields = [Field.from_json(column) for column in columns]
        for _ in range(_TRIES):
            table = self.open()
            try:
                with wrap_store_errors(self.path, "adding columns to", landed=None):
                    table.alter.add_columns(fields)
            except CommitFailedError:
                continue  # others have changed the table
            except SchemaMismatchError as error:
                raise self._refused(one_line(error), "cast the column") from error
            return
        raise self._too_many_conflicts("columns could not be added to")

    def commit(
        self, write: SinkWrite, change: Callable[[DeltaTable, CommitProperties], None]
    ) -> None:
        """Make a change in the write of a lease, unless it is made. Raise LeaseLost for a fence."""
        from deltalake.exceptions import CommitFailedError

        table = self.open()
        # Of this handle, because delta-rs compares the commit with what the handle has seen.
        if self._number(table, write, "") >= write.number:
            self._check_own(table, write)
            return
        try:
            with wrap_store_errors(self.path, "appending to", landed=None):
                change(table, self._transactions(write))
        except CommitFailedError as error:
            table = self.open()
            if self._number(table, write, "") < write.number:
                raise to_storage_error(self.path, error, "appending to") from error
            self._check_own(table, write)

    def _check_own(self, table: DeltaTable, write: SinkWrite) -> None:
        if self._number(table, write, "/fence") >= write.number:
            raise LeaseLost(
                f"the rows were not appended to {self.path}: another worker has the lease's "
                "messages, and has made sure that only it can write them",
                lost=[],
            )

    def _has(self, write: SinkWrite) -> bool:
        """Return whether the table has a write. Fence it if not."""
        from deltalake.exceptions import CommitFailedError

        for _ in range(_TRIES):
            table = self.open()
            if self._number(table, write, "") >= write.number:
                return self._number(table, write, "/fence") < write.number
            try:
                with wrap_store_errors(self.path, "fencing a write to", landed=None):
                    _add_files(table, [], self._transactions(write, fence=True))
            except CommitFailedError:
                continue  # it was written or fenced meanwhile
            return False
        raise self._too_many_conflicts("the write of an earlier lease could not be fenced in")

    def _number(self, table: DeltaTable, write: SinkWrite, suffix: str) -> int:
        """Return the last number of a write's writer, or of its fences, or -1."""
        stored = table.transaction_version(self._name(write) + suffix)
        return -1 if stored is None else int(stored)

    def _transactions(self, write: SinkWrite, *, fence: bool = False) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        names = [self._name(write)] + ([f"{self._name(write)}/fence"] if fence else [])
        return CommitProperties(app_transactions=[Transaction(n, write.number) for n in names])

    def _name(self, write: SinkWrite) -> str:
        return f"{self._names}/{write.writer}"

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with wrap_store_errors(self.path, "opening"):
                return DeltaTable(self.path, storage_options=self.storage_options)
        except TableNotFoundError:
            pass
        raise self._refused("there is no Delta table", "create the table first")

    def describe(self) -> SinkTable:
        table = self.open()
        metadata = table.metadata()
        return SinkTable(
            table.schema().to_json(),
            list(metadata.partition_columns),
            frozenset(table.protocol().writer_features or ()),
            metadata.configuration,
        )

    def open(self) -> DeltaTable:
        """Return the table. Raise InvalidOption for a new one, which forgot the writes."""
        table = self._open()
        if str(table.metadata().id) != self._table_id:
            raise self._refused(
                "it is another table than when it was set, and does not know what the old one had",
                "configure the group with the sink again, and all unsettled messages are written",
            )
        return table

    def _too_many_conflicts(self, what: str) -> ContentionTimeout:
        return ContentionTimeout(
            f"{what} {self.path}, because {_TRIES} times other writers committed first. Retry",
            path=self.path,
        )

    def _refused(self, why: str, fix: str) -> InvalidOption:
        return InvalidOption(
            f"sink={self.path!r} cannot be used: {why}. To fix this, {fix}",
            option="sink",
            value=self.path,
        )


def _add_files(table: DeltaTable, actions: list[Any], transactions: CommitProperties) -> None:
    columns = table.metadata().partition_columns
    table.create_write_transaction(
        actions, "append", table.schema(), columns, commit_properties=transactions
    )


def _is_of_rows(error: Exception) -> bool:
    """Return whether an error of delta-rs is one of the rows, and nothing was written."""
    from deltalake.exceptions import DeltaError, SchemaMismatchError

    if isinstance(error, SchemaMismatchError):
        return True
    # For a cast that fails it raises a bare Exception, and for a null a DeltaError.
    text = str(error)
    is_bare = type(error) is Exception and text.startswith("Cast error")
    return is_bare or (type(error) is DeltaError and "failed validation check" in text)


def _misfits(rows: Any, table: DeltaTable) -> str:
    import pyarrow as pa

    wanted = {column["name"]: column for column in json.loads(table.schema().to_json())["fields"]}
    try:
        given = set(pa.schema(rows if hasattr(rows, "__arrow_c_schema__") else rows.schema).names)
    except (AttributeError, TypeError, ValueError):
        return "the columns or their types differ"
    pairs = (("missing", wanted.keys() - given), ("unknown", given - wanted.keys()))
    misfits = [f"{what} {', '.join(sorted(names))}" for what, names in pairs if names]
    required = ", ".join(sorted(name for name, column in wanted.items() if not column["nullable"]))
    null = f", or is null in {required}, which may not be" if required else ""
    return "; ".join(misfits) or f"a value cannot be cast to the type of its column{null}"
