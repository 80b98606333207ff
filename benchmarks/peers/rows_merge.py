"""The same table, leased and acked by MERGE of delta-spark."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.base import Leased, Opener, Peer
from peers.rows_delta_rs import RowsDeltaRs


class RowsMerge(RowsDeltaRs):
    """Filled by delta-rs, so with the same files.

    ``vectors``: deletion vectors, so a MERGE writes the rows that it changes, not files.
    """

    survives = "what the system had written out: Hadoop does not sync local files"

    def __init__(self, path: Path, spark: Any, vectors: bool) -> None:
        super().__init__(path)
        self.spark = spark
        self._to_enable = vectors

    def lease(self, count: int) -> Leased | None:
        if self._to_enable:  # from here on delta-rs can no longer write it
            self.spark.sql(
                f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES "
                "('delta.enableDeletionVectors' = 'true')"
            )
            self._to_enable = False
        table = self.spark.read.format("delta").load(self.path)
        found = (
            table.where(f"id > {self.done} AND state = 'ready'")
            .orderBy("id")
            .limit(count)
            .select("id")
            .collect()
        )
        if not found:
            return None
        lease, (first, last) = str(uuid.uuid4()), (found[0].id, found[-1].id)
        self._merge(
            f"t.id >= {first} AND t.id <= {last} AND t.state = 'ready'", first, last,
            {"state": "'leased'", "lease_id": f"'{lease}'",
             "lease_expires_at": str(int(time.time()) + 60),
             "delivery_count": "t.delivery_count + 1"},
        )  # fmt: skip
        held = table.where(f"id >= {first} AND id <= {last} AND lease_id = '{lease}'").select(
            "value"
        )
        return Leased(lambda: [bytes(row.value) for row in held.collect()], (lease, first, last))

    def ack(self, leased: Leased) -> None:
        lease, first, last = leased.token
        self._merge(
            f"t.id >= {first} AND t.id <= {last} AND t.lease_id = '{lease}'",
            first,
            last,
            {"state": "'acked'"},
        )
        self.done = last

    def _merge(self, where: str, first: int, last: int, new: dict[str, str]) -> None:
        from delta.tables import DeltaTable

        table = DeltaTable.forPath(self.spark, self.path).alias("t")
        taken = self.spark.range(first, last + 1).alias("s")
        table.merge(taken, f"t.id = s.id AND {where}").whenMatchedUpdate(set=new).execute()


def opener(spark: Any, vectors: bool) -> Opener:
    """Opens a new table."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Peer]:
        yield RowsMerge(folder / "rows", spark, vectors)

    return opened
