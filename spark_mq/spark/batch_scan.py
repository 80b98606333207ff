"""Read the slices of a running batch from Spark's plan, so that the driver needs no job for them.

A py4j call takes about 0.2 ms, so each batch makes few of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.serializers import CPickleSerializer

from spark_mq.errors import InvalidOption
from spark_mq.spark.partitions import Piece, SlicePartition
from spark_mq.streaming.offset import check_offset

__all__ = ["BatchScan", "batch_scans", "is_output_of", "reads_source_only"]

# Bytes that pass through Python in the time that Spark takes to plan the read of a file.
PLAN_BYTES: Final = 24 * 2**20
ROW_BYTES: Final = 1_000  # the bytes that take as long in Python as the overhead of a row
_SCAN: Final = "MicroBatchScanExec"
_SOURCE: Final = "StreamingDataSourceV2ScanRelation"
_SINK: Final = "WriteToMicroBatchDataSourceV1"
_NAMING: Final = "SubqueryAlias"
_PRUNING: Final = "Project"


@dataclass(frozen=True, slots=True)
class BatchScan:
    """The scan of one spark_mq source in a batch, with the slices in the source's order."""

    stream: str
    pieces: tuple[Piece, ...]
    node: Any = field(default=None, repr=False)
    keeps_lanes: bool = False  # whether each partition has all rows of its lanes

    @property
    def lease_ids(self) -> set[str]:
        return {of.lease_id for _, of in self.pieces if of.lease_id}

    def pays_for_files(self, files: int) -> bool:
        """Return whether Spark plans and reads this many files sooner than the source's tasks."""
        read = sum(piece.size + piece.rows * ROW_BYTES for piece, _ in self.pieces)
        return read >= files * PLAN_BYTES

    def count_rows(self) -> None:
        """Add the rows to the query's progress, as the source's own tasks do."""
        self.node.metrics().apply("numOutputRows").add(sum(piece.rows for piece, _ in self.pieces))


def batch_scans(query: Any) -> list[BatchScan]:
    """Return the spark_mq scans in a query's running batch."""
    leaves = query.lastExecution().executedPlan().collectLeaves()
    return list(_scans(leaves.apply(i) for i in range(leaves.size())))


def reads_source_only(query: Any) -> bool:
    """Return whether a query only picks columns of one source.

    A stream with ``minPartitions`` does not count, because only the source's tasks obey it.
    """
    node = query.logicalPlan()
    while (kind := _kind(node)) != _SOURCE:
        if kind == _PRUNING and not node.outputSet().subsetOf(node.child().outputSet()):
            return False
        if kind not in (_PRUNING, _NAMING, _SINK):
            return False
        node = node.children().apply(0)
    return int(node.relation().options().getOrDefault("minPartitions", "1")) == 1


def is_output_of(query: Any, batch: Any) -> bool:
    """Return whether a DataFrame is the query's batch itself, not one made from it."""
    plan = batch._jdf.queryExecution().logical()
    return _kind(plan) == "LogicalRDD" and plan.rdd().id() == query.lastExecution().toRdd().id()


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _scans(leaves: Iterable[Any]) -> Iterator[BatchScan]:
    for leaf in leaves:
        if _kind(leaf) == _SCAN and (stream := _stream(leaf)) is not None:
            parts = list(_partitions(leaf))
            pieces = _joined(piece for part in parts for piece in part.pieces)
            yield BatchScan(stream, pieces, leaf, any(part.keeps_lanes for part in parts))


def _stream(leaf: Any) -> str | None:
    """Return the stream of a scan, or None if another source made its offset."""
    try:
        return check_offset(json.loads(leaf.end().json()))[0]
    except (InvalidOption, ValueError):
        return None


def _partitions(leaf: Any) -> Iterator[SlicePartition]:
    partitions, serializer = leaf.inputPartitions(), CPickleSerializer()
    for at in range(partitions.size()):
        raw = bytes(partitions.apply(at).pickedPartition())
        part = serializer.loads(raw)  # type: ignore[no-untyped-call]
        if isinstance(part, SlicePartition):  # Spark has its own for a batch without slices
            yield part


def _joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join the slices that were cut between two tasks."""
    joined: list[Piece] = []
    for piece, of in pieces:
        last, whose = joined[-1] if joined else (None, None)
        if (
            last
            and whose == of
            and last.path == piece.path
            and last.offset + last.rows == piece.offset
        ):
            whole = replace(last, rows=last.rows + piece.rows, size=last.size + piece.size)
            joined[-1] = (whole, of)
        else:
            joined.append((piece, of))
    return tuple(joined)
