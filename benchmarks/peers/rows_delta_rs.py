"""A Delta table with one row a message and its state in columns, leased and acked by delta-rs
UPDATE.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from peers.base import Leased, Opener, Peer

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("value", pa.binary()),
        pa.field("state", pa.string()),
        pa.field("lease_id", pa.string()),
        pa.field("lease_expires_at", pa.int64()),
        pa.field("delivery_count", pa.int32()),
    ]
)
FILE_ROWS = 10_000
"""An update rewrites whole files: so small ones, in favour of the table."""


def rows(values: Sequence[bytes], first: int) -> pa.Table:
    """New messages as rows."""
    count = len(values)
    given: dict[str, Any] = {
        "id": pa.array(range(first, first + count), pa.int64()),
        "value": pa.array(values, pa.binary()),
        "state": pa.repeat("ready", count),
        "delivery_count": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    return pa.table([given.get(f.name, pa.nulls(count, f.type)) for f in SCHEMA], schema=SCHEMA)


class RowsDeltaRs(Peer):
    """``done``: up to which id all is acked, which spares a lease the look at what lies before.

    A luxury that competing workers lack.
    """

    survives = "what the system had written out: delta-rs does not sync local files"

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        write_deltalake(self.path, SCHEMA.empty_table())
        self.table = DeltaTable(self.path)
        self.last = self.done = -1

    def fill(self, values: Sequence[bytes]) -> None:
        for at in range(0, len(values), FILE_ROWS):
            self._append(values[at : at + FILE_ROWS])

    def publish(self, value: bytes) -> None:
        self._append([value])

    def publish_all(self, values: Sequence[bytes], at_once: int) -> None:
        for at in range(0, len(values), at_once):
            self._append(values[at : at + at_once])

    def _append(self, values: Sequence[bytes]) -> None:
        write_deltalake(self.table, rows(values, self.last + 1), mode="append")
        self.last += len(values)

    def query(self, what: str, where: str) -> pa.Table:
        self.table.update_incremental()
        found = (
            QueryBuilder()
            .register("queue", self.table)
            .execute(f"SELECT {what} FROM queue WHERE {where}")
        )
        return pa.table(found.read_all())

    def lease(self, count: int) -> Leased | None:
        ids = self.query("id", f"id > {self.done} AND state = 'ready' ORDER BY id LIMIT {count}")[
            "id"
        ].to_pylist()
        if not ids:
            return None
        lease, (first, last) = str(uuid.uuid4()), (ids[0], ids[-1])
        self.update(
            f"id >= {first} AND id <= {last} AND state = 'ready'",
            {
                "state": "'leased'",
                "lease_id": f"'{lease}'",
                "lease_expires_at": str(int(time.time()) + 60),
                "delivery_count": "delivery_count + 1",
            },
        )
        where = f"id >= {first} AND id <= {last} AND lease_id = '{lease}'"

        def read() -> list[bytes]:
            return self.query("value", where)["value"].to_pylist()

        return Leased(read, (where, last))

    def ack(self, leased: Leased) -> None:
        where, last = leased.token
        self.update(where, {"state": "'acked'"})
        self.done = last

    def update(self, where: str, new: dict[str, str]) -> None:
        self.table.update(new, predicate=where)


def opener() -> Opener:
    """Opens a new table."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Peer]:
        yield RowsDeltaRs(folder / "rows")

    return opened
