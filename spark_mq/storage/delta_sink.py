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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_mq.delta.store_errors import one_line, to_storage_error, wrap_store_errors
from spark_mq.errors import ContentionTimeout, InvalidOption, LeaseLost
from spark_mq.ledger.sink_writes import SinkWrite

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

__all__ = ["DeltaSink"]

_TRIES: Final = 20  # to fence a write; each lost race means that another worker has fenced it
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_MAPPING: Final = "delta.columnMapping.mode"


class DeltaSink:
    """One Delta table as the sink of a group, which had `table_id` when the sink was set.

    `names` is what the names of its writers begin with.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str], names: str = "", table_id: str = ""
    ) -> None:
        self.path, self._options, self._names = path, dict(storage_options), names
        self._table_id = table_id

    def check(self) -> str:
        """Return the id of the table. Raise InvalidOption if it cannot be a sink."""
        table = self._open()
        found = table.metadata()
        if found.configuration.get(_MAPPING, "none") != "none":
            raise self._refused(f"it has {_MAPPING}, which delta-rs ignores", "use another table")
        if _FORGETS in found.configuration:
            raise self._refused(
                f"it has {_FORGETS}, so it would forget which leases it has",
                "unset the property",
            )
        return str(found.id)

    def append(
        self,
        rows: Any,
        write: SinkWrite,
        earlier: Sequence[SinkWrite],
        schema_mode: Literal["merge"] | None = None,
    ) -> bool:
        """Append rows, unless one of the earlier writes of the lease's messages is there.

        Return whether this call wrote them. Raise LeaseLost if another worker has fenced the write.
        """
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError, SchemaMismatchError

        # In order, because each holder fenced the writes before its own, before it wrote.
        if any(self._has(one) for one in earlier):
            return False
        table = self._open_same()
        # Of this handle, because delta-rs compares the commit with what the handle has seen.
        if self._number(table, write, "") >= write.number:
            return self._is_own(table, write)
        try:
            with wrap_store_errors(self.path, "appending to", landed=None):
                write_deltalake(
                    table, rows, mode="append", schema_mode=schema_mode,
                    commit_properties=self._transactions(write),
                )  # fmt: skip
        except CommitFailedError as error:
            table = self._open_same()
            if self._number(table, write, "") >= write.number:
                return self._is_own(table, write)
            raise to_storage_error(self.path, error, "appending to") from error
        except SchemaMismatchError as error:
            raise InvalidOption(
                f"the rows do not fit the schema of {self.path}: {one_line(error)}. Give rows of "
                'its schema, or schema_mode="merge" for new columns',
                option="rows",
                value=type(rows).__name__,
            ) from error
        return True

    def _is_own(self, table: DeltaTable, write: SinkWrite) -> bool:
        """Return True if an earlier call wrote the lease's rows. Raise LeaseLost for a fence."""
        if self._number(table, write, "/fence") < write.number:
            return True
        raise LeaseLost(
            f"the rows were not appended to {self.path}: another worker has the lease's messages, "
            "and has made sure that only it can write them",
            lost=[],
        )

    def _has(self, write: SinkWrite) -> bool:
        """Return whether the table has a write. Fence it if not."""
        from deltalake.exceptions import CommitFailedError

        for _ in range(_TRIES):
            table = self._open_same()
            if self._number(table, write, "") >= write.number:
                return self._number(table, write, "/fence") < write.number
            try:
                with wrap_store_errors(self.path, "fencing a write to", landed=None):
                    table.create_write_transaction(
                        [], "append", table.schema(), table.metadata().partition_columns,
                        commit_properties=self._transactions(write, fence=True),
                    )  # fmt: skip
            except CommitFailedError:
                continue  # it was written or fenced meanwhile
            return False
        raise ContentionTimeout(
            f"the write of an earlier lease to {self.path} could not be fenced {_TRIES} times, "
            "because other writers commit all the time. Retry",
            path=self.path,
        )

    def _number(self, table: DeltaTable, write: SinkWrite, suffix: str) -> int:
        """Return the last number of a write's writer, or of its fences, or -1."""
        found = table.transaction_version(self._name(write) + suffix)
        return -1 if found is None else int(found)

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
                return DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError:
            pass
        raise self._refused("there is no Delta table", "create the table first")

    def _open_same(self) -> DeltaTable:
        """Open the table. Raise InvalidOption if it was made again, and so forgot its writes."""
        table = self._open()
        if str(table.metadata().id) != self._table_id:
            raise self._refused(
                "it is another table than when it was set, and does not know what the old one had",
                "configure the group with the sink again once no lease is open",
            )
        return table

    def _refused(self, why: str, fix: str) -> InvalidOption:
        return InvalidOption(
            f"sink={self.path!r} cannot be used: {why}. To fix this, {fix}",
            option="sink",
            value=self.path,
        )
