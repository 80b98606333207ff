"""Find the leases of a foreachBatch batch, without a Spark job where the session allows that.

The batch's offsets hold the batch number n of each stream. The runner's random id is in the slices
of Spark's plan, and is read from them once a run. Spark Connect shows no plan, so there a job reads
the id from the rows. A worker's name would not do, because a zombie driver has the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_mq.errors import InvalidOption
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.spark.partitions import Piece, SlicePartition
from spark_mq.spark.private_spark import RunningQuery, running_query
from spark_mq.spark.settle_rows import check_columns
from spark_mq.streaming.lanes import append_piece
from spark_mq.streaming.source import QUEUES, check_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bytes that pass through Python in the time that Spark takes to plan the read of a file.
PLAN_BYTES: Final = 24 * 2**20
ROW_BYTES: Final = 1_000  # the bytes that take as long in Python as the overhead of a row


@dataclass(frozen=True, slots=True)
class BatchScan:
    """The scan of one spark_mq source in batch n, with the slices in the source's order."""

    stream: str
    n: int
    pieces: tuple[Piece, ...]
    keeps_lanes: bool = False  # whether each partition has all rows of its lanes

    @property
    def lease_ids(self) -> set[str]:
        return {of.lease_id for _, of in self.pieces if of.lease_id}

    @property
    def row_count(self) -> int:
        return sum(piece.rows for piece, _ in self.pieces)

    def pays_for_files(self, files: int) -> bool:
        """Return whether Spark plans and reads this many files sooner than the source's tasks."""
        read = sum(piece.size for piece, _ in self.pieces) + self.row_count * ROW_BYTES
        return read >= files * PLAN_BYTES


def _batch_scans(query: RunningQuery) -> list[BatchScan]:
    scans = []
    for offset, partitions in query.scans(lambda text: _own_offset(text) is not None):
        stream, n, _ = _own_offset(offset) or ("", 0, False)
        # Spark has a partition of its own for a batch without slices.
        own = [part for part in partitions if isinstance(part, SlicePartition)]
        pieces = list[Piece]()  # without the cuts between two tasks
        for part in own:
            for piece, of in part.pieces:
                append_piece(pieces, piece, of)
        scans.append(BatchScan(stream, n, tuple(pieces), any(part.keeps_lanes for part in own)))
    return scans


def _own_offset(text: str) -> tuple[str, int, bool] | None:
    """Return (stream, n, over several queues) of an offset, or None if another source made it."""
    try:
        offset = json.loads(text)
        return *check_offset(offset), QUEUES in offset
    except (InvalidOption, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class BatchLeases:
    lease_ids: list[str]
    fresh: bool  # may be a replay, which only the first batch of a run can be
    # Stream and n of a batch over several queues. Each queue has another id for the stream.
    union_batch: tuple[str, int] | None = None
    # Stream, n and "over several queues" of each stream in the batch, also of one without a row.
    # Empty over Spark Connect.
    batches: tuple[tuple[str, int, bool], ...] = ()
    scan: BatchScan | None = None  # if the batch is the source's output and nothing else


class LeaseLookup:
    """Finds the lease ids of the batches of a query's run, and their scans if `scans`."""

    def __init__(self, *, scans: bool = True) -> None:
        self._scans = scans
        self._query: RunningQuery | None = None  # of this run
        self._runners: dict[str, str] = {}  # of each stream, its runner in this run
        self._checked = False  # whether this run's batches have the columns to settle their rows
        self._source_only = False  # whether this run's query only picks columns of one source

    def find(self, batch: DataFrame) -> BatchLeases:
        """Return a batch's lease ids, with its scan if Spark may read it. Raise InvalidSchema."""
        query = running_query(batch.sparkSession, self._query)
        if query is not None and (self._query is None or query.run_id != self._query.run_id):
            self._runners, self._checked = {}, False
            self._source_only = query.only_reads_one_source()
        self._query = query or self._query
        if not self._checked:  # all batches of a run have the same columns
            check_columns(batch)
            self._checked = query is not None
        leases = self._leases(batch, query)
        if query is None or not self._scans:
            return leases
        return replace(leases, scan=self._scan(batch, query))

    def _leases(self, batch: DataFrame, query: RunningQuery | None) -> BatchLeases:
        offsets = query.new_offsets() if query else []
        batches = tuple(dict.fromkeys(filter(None, map(_own_offset, offsets))))
        single = {stream: n for stream, n, several in batches if not several}
        all_single = len(single) == len(batches)
        if batches and all_single and all(stream in self._runners for stream in single):
            lease_ids = [f"{stream}/{n}/{self._runners[stream]}" for stream, n in single.items()]
            return BatchLeases(lease_ids, False, batches=batches)
        # A filter may have dropped every row, which only the rows show.
        ids = self._from_plan(query, {stream for stream, _, _ in batches}) if query else None
        if ids is None:
            ids = self._from_rows(batch, len(batches) if all_single else 2)
        parts = [parts for lease_id in ids if (parts := parse_lease_id(lease_id))]
        known = bool(parts) and all(
            self._runners.get(stream) == runner for stream, _, runner in parts
        )
        self._runners.update((stream, runner) for stream, _, runner in parts)
        union_batch = batches[0][:2] if len(batches) == 1 and not all_single else None
        return BatchLeases(ids, not known, union_batch, batches)

    def runner(self, stream: str) -> str | None:
        """Return the runner of a stream in this run, or None before its first batch."""
        return self._runners.get(stream)

    def _from_plan(self, query: RunningQuery, streams: set[str]) -> list[str] | None:
        """Return the lease ids in the plan's slices, or None if it does not show each stream."""
        scans = _batch_scans(query) if self._source_only else []
        if not scans or not streams.issubset(scan.stream for scan in scans):
            return None
        return sorted(set().union(*(scan.lease_ids for scan in scans)))

    def _scan(self, batch: DataFrame, query: RunningQuery) -> BatchScan | None:
        """Return the batch's scan if Spark reads it alike, and sooner than Python, or None."""
        scans = _batch_scans(query) if self._source_only else []
        if len(scans) != 1 or not scans[0].pays_for_files(1) or not query.puts_out(batch):
            return None
        return scans[0]

    @staticmethod
    def _from_rows(batch: DataFrame, sources: int) -> list[str]:
        column = batch.select("lease_id").where("lease_id is not null")
        rows = column.limit(1).collect() if sources == 1 else column.distinct().collect()
        return sorted(row[0] for row in rows)
