"""Which lease a foreachBatch batch belongs to, found without a Spark job wherever the session allows.

The batch number n of each stream is in the batch's own offsets; the runner's nonce is in its rows, and learned from them once
a run. Never from a worker's name: a zombie driver has the same.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_mq.errors import InvalidOption
from spark_mq.streaming.offset import QUEUES, check_offset, parse_lease_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchLeases", "LeaseLookup"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLeases:
    """The leases of a batch. ``fresh``: they may belong to a replay, as the first batch of a run may.

    ``base``: stream and n of a batch over several queues, each of which knows the stream by an id of its own. ``batches``: (stream, n, over
    several queues) of each stream in the batch, also of one without a row, where the session tells.
    """

    lease_ids: list[str]
    fresh: bool
    base: tuple[str, int] | None = None
    batches: tuple[tuple[str, int, bool], ...] = ()


class LeaseLookup:
    """Finds the lease ids of the batches of one run of a query."""

    def __init__(self) -> None:
        self._runners: dict[str, str] = {}  # of each stream, its runner in this run
        self._run: str | None = None

    def find(self, batch: DataFrame) -> BatchLeases:
        """The lease ids of a batch, none if no row tells, and what else is known of it."""
        batches = self._batches(batch.sparkSession)
        told = tuple((stream, n, several) for stream, (n, several) in batches.items())
        single = {stream: n for stream, (n, several) in batches.items() if not several}
        if batches and len(single) == len(batches) and all(stream in self._runners for stream in single):
            return BatchLeases([f"{stream}/{n}/{self._runners[stream]}" for stream, n in single.items()], False, batches=told)
        ids = self._from_rows(batch, len(batches) if len(single) == len(batches) else 2)
        parts = [parts for lease_id in ids if (parts := parse_lease_id(lease_id))]
        known = bool(parts) and all(self._runners.get(stream) == runner for stream, _, runner in parts)
        self._runners.update((stream, runner) for stream, _, runner in parts)
        base = next(((stream, n) for stream, (n, several) in batches.items() if several), None) if len(batches) == 1 else None
        return BatchLeases(ids, not known, base, told)

    def runner(self, stream: str) -> str | None:
        """The runner of a stream in this run, once a batch has told."""
        return self._runners.get(stream)

    @staticmethod
    def _from_rows(batch: DataFrame, sources: int) -> list[str]:
        column = batch.select("lease_id").where("lease_id is not null")
        rows = column.limit(1).collect() if sources == 1 else column.distinct().collect()
        return sorted(row[0] for row in rows)

    def _batches(self, spark: Any) -> dict[str, tuple[int, bool]]:
        """n of each spark_mq stream in the batch that runs now, and whether it is over several queues.

        Empty where the session does not tell (Spark Connect).
        """
        try:
            context = spark.sparkContext
            query_id = context.getLocalProperty("sql.streaming.queryId")
            # The batch's session is a clone and knows no queries; the shared state knows all that run.
            query = spark._jsparkSession.sharedState().activeStreamingQueries().get(spark._jvm.java.util.UUID.fromString(query_id))
            run = query.runId().toString()
            if run != self._run:
                self._run, self._runners = run, {}
            return dict(_offsets(query))
        except Exception as error:
            _log.debug("the batch's offsets are not to be had, so its rows are asked: %s", error)
            return {}


def _offsets(query: Any) -> Iterator[tuple[str, tuple[int, bool]]]:
    """(stream, (n, over several queues)) of each spark_mq source that the current batch of a running query reads, from its end offsets.

    Ours are told by their form: asking the plan for the sources' formats took 15 to 150 ms. One that had nothing new (of several) stands
    where it stood: its last lease is none of this batch's.
    """
    sources, starts, ends = query.sources(), query.committedOffsets(), query.availableOffsets()
    for source in (sources.apply(i) for i in range(sources.size())):
        start, end = starts.get(source), ends.get(source)
        if end.isDefined() and not (start.isDefined() and start.equals(end)):
            with contextlib.suppress(InvalidOption):
                offset = json.loads(end.get().json())
                stream, n = check_offset(offset)
                yield stream, (n, QUEUES in offset)
