"""Find the leases of a foreachBatch batch, without a Spark job where the session allows that.

The batch's offsets hold the batch number n of each stream. The runner's random id is in the slices
of Spark's plan, and is read from them once a run. Spark Connect shows no plan, so there a job reads
the id from the rows. A worker's name would not do, because a zombie driver has the same.

A py4j call takes about 0.2 ms, so each batch makes few of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.serializers import CPickleSerializer

from spark_mq.errors import InvalidOption
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.spark.partitions import Piece, SlicePartition
from spark_mq.spark.settle_rows import check_columns
from spark_mq.streaming.offset import QUEUES, check_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchLeases", "BatchScan", "LeaseLookup"]


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


def _batch_scans(query: Any) -> list[BatchScan]:
    """Return the spark_mq scans in a query's running batch."""
    leaves = query.lastExecution().executedPlan().collectLeaves()
    return list(_scans(leaves.apply(i) for i in range(leaves.size())))


def _is_source_only(query: Any) -> bool:
    """Return whether a query only picks columns of one source."""
    # A stream with minPartitions does not count, because only the source's tasks obey it.
    node = query.logicalPlan()
    while (kind := _kind(node)) != _SOURCE:
        if kind == _PRUNING and not node.outputSet().subsetOf(node.child().outputSet()):
            return False
        if kind not in (_PRUNING, _NAMING, _SINK):
            return False
        node = node.children().apply(0)
    return int(node.relation().options().getOrDefault("minPartitions", "1")) == 1


def _is_output_of(query: Any, batch: Any) -> bool:
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


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLeases:
    lease_ids: list[str]
    fresh: bool  # may be a replay, which only the first batch of a run can be
    # Stream and n of a batch over several queues. Each queue has another id for the stream.
    base: tuple[str, int] | None = None
    # Stream, n and "over several queues" of each stream in the batch, also of one without a row.
    # Empty over Spark Connect.
    batches: tuple[tuple[str, int, bool], ...] = ()
    scan: BatchScan | None = None  # if the batch is the source's output and nothing else


class LeaseLookup:
    """Finds the lease ids of the batches of a query's run, and their scans if `scans`."""

    def __init__(self, *, scans: bool = True) -> None:
        self._scans = scans
        self._runners: dict[str, str] = {}  # of each stream, its runner in this run
        self._run: str | None = None
        self._known: Any = None  # this run's query
        self._checked = False  # whether this run's batches have the columns to settle their rows
        self._source_only: bool | None = None  # of this run's query. None until a batch needs it.

    def find(self, batch: DataFrame) -> BatchLeases:
        """Return a batch's lease ids, with its scan if Spark may read it. Raise InvalidSchema."""
        query = self._query(batch.sparkSession)
        if not self._checked:  # all batches of a run have the same columns
            check_columns(batch)
            self._checked = query is not None
        found = self._leases(batch, query)
        return (
            replace(found, scan=self._scan(batch, query))
            if query is not None and self._scans
            else found
        )

    def _leases(self, batch: DataFrame, query: Any) -> BatchLeases:
        batches = self._batches(query)
        shown = tuple((stream, n, several) for stream, (n, several) in batches.items())
        single = {stream: n for stream, (n, several) in batches.items() if not several}
        if (
            batches
            and len(single) == len(batches)
            and all(stream in self._runners for stream in single)
        ):
            return BatchLeases(
                [f"{stream}/{n}/{self._runners[stream]}" for stream, n in single.items()],
                False,
                batches=shown,
            )
        # A filter may have dropped every row, which only the rows show.
        ids = self._from_plan(query, batches) if self._reads_source_only(query) else None
        if ids is None:
            ids = self._from_rows(batch, len(batches) if len(single) == len(batches) else 2)
        parts = [parts for lease_id in ids if (parts := parse_lease_id(lease_id))]
        known = bool(parts) and all(
            self._runners.get(stream) == runner for stream, _, runner in parts
        )
        self._runners.update((stream, runner) for stream, _, runner in parts)
        base = (
            next(((stream, n) for stream, (n, several) in batches.items() if several), None)
            if len(batches) == 1
            else None
        )
        return BatchLeases(ids, not known, base, shown)

    def runner(self, stream: str) -> str | None:
        """Return the runner of a stream in this run, or None before its first batch."""
        return self._runners.get(stream)

    @staticmethod
    def _from_plan(query: Any, streams: Iterable[str]) -> list[str] | None:
        """Return the lease ids in the plan's slices, or None if it does not show each stream."""
        try:
            scans = _batch_scans(query) if query is not None else []
        except Exception as error:
            _log.debug("the batch's plan cannot be read. Its rows name the leases: %s", error)
            return None
        shown = {scan.stream for scan in scans}
        return (
            sorted(set().union(*(scan.lease_ids for scan in scans)))
            if shown and shown.issuperset(streams)
            else None
        )

    def _reads_source_only(self, query: Any) -> bool:
        """Return whether the batch is the source's output. Spark may have pruned columns."""
        if self._source_only is None:
            try:
                self._source_only = query is not None and _is_source_only(query)
            except Exception as error:
                _log.debug("the query's plan cannot be read: %s", error)
                self._source_only = False
        return self._source_only

    def _scan(self, batch: DataFrame, query: Any) -> BatchScan | None:
        """Return the batch's scan if Spark reads it alike, and sooner than Python, or None."""
        try:
            if not self._reads_source_only(query):
                return None
            (scan,) = _batch_scans(query)
            if not scan.pays_for_files(1) or not _is_output_of(query, batch):
                return None
        except Exception as error:
            _log.debug("the batch's plan cannot be read. Python reads its rows: %s", error)
            self._source_only = False
            return None
        return scan

    @staticmethod
    def _from_rows(batch: DataFrame, sources: int) -> list[str]:
        column = batch.select("lease_id").where("lease_id is not null")
        rows = column.limit(1).collect() if sources == 1 else column.distinct().collect()
        return sorted(row[0] for row in rows)

    @staticmethod
    def _batches(query: Any) -> dict[str, tuple[int, bool]]:
        """Return each spark_mq stream of the batch with its n, and if it has several queues."""
        try:
            return {} if query is None else dict(_offsets(query))
        except Exception as error:
            _log.debug("the batch's offsets cannot be read. Its rows name the leases: %s", error)
            return {}

    def _query(self, spark: Any) -> Any:
        """Return the query whose batch runs now, or None if Spark Connect hides it."""
        try:
            context = spark.sparkContext
            # Spark groups the jobs of a query by the id of its run. Unknown ids are looked up.
            if self._run and context.getLocalProperty("spark.jobGroup.id") == self._run:
                return self._known
            query_id = context.getLocalProperty("sql.streaming.queryId")
            # The batch's session is a clone and knows no queries. The shared state knows them.
            query = (
                spark._jsparkSession.sharedState()
                .activeStreamingQueries()
                .get(spark._jvm.java.util.UUID.fromString(query_id))
            )
            run = query.runId().toString()
            if run != self._run:
                self._run, self._runners = run, {}
                self._source_only, self._checked = None, False
            self._known = query
            return query
        except Exception as error:
            _log.debug("the batch's query is not visible. Its rows name the leases: %s", error)
            return None


def _offsets(query: Any) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Yield (stream, (n, over several queues)) of each spark_mq source in a query's batch."""
    # Our offsets are known by their form, because the plan is slow to show the sources' formats. A
    # source without new messages keeps its offset, so its last lease is not of this batch.
    sources, starts, ends = query.sources(), query.committedOffsets(), query.availableOffsets()
    for source in (sources.apply(i) for i in range(sources.size())):
        start, end = starts.get(source), ends.get(source)
        if end.isDefined() and not (start.isDefined() and start.equals(end)):
            with contextlib.suppress(InvalidOption):
                offset = json.loads(end.get().json())
                stream, n = check_offset(offset)
                yield stream, (n, QUEUES in offset)
