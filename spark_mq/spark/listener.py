"""Report the groups that the streams of a session read."""

from __future__ import annotations

import atexit
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_mq.errors import InvalidOption
from spark_mq.ledger.budget import is_stopped
from spark_mq.ledger.stats import GroupStats, figures_of, state_figures
from spark_mq.spark.private_spark import wait_for_events
from spark_mq.streaming.source import check_offset
from spark_mq.telemetry import Destination, report_gauges

_log = logging.getLogger(__name__)

_FIGURES: Final = figures_of(GroupStats)
_KEPT_BATCHES: Final = 100  # of a stream. Spark reports a batch soon after its end.
_STATES: Final = [name for name in state_figures(GroupStats) if _FIGURES[name].progress]
_rows_read: dict[tuple[str, int], int] = {}  # by stream and batch


def note_rows(stream: str, n: int, rows: int) -> None:
    """Remember how many rows of a batch Spark's Parquet reader reads, which no source counts."""
    _rows_read[stream, n] = rows
    _rows_read.pop((stream, n - _KEPT_BATCHES), None)


def _input_rows(source: Mapping[str, Any]) -> int:
    offset = source.get("endOffset")
    with suppress(ValueError, InvalidOption):  # another source's
        offset = json.loads(offset) if isinstance(offset, str) else offset
        if rows := _rows_read.get(check_offset(offset)):
            return rows
    return int(source.get("numInputRows", 0))


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The state of a stream's group in its last batch.

    Attributes
    ----------
    query_id, query_name, batch_id
        The query, and Spark's number of the batch.
    queue, group
        The path of the queue, and the name of the group.
    input_rows
        Rows of the source that the batch has read. The queues of one source share this number.
        Spark's own ``numInputRows`` lacks those that its Parquet reader has read.
    ready, delayed, leased, dead, blocked
        Messages of the group by state.
    oldest_unsettled_age
        Time since the first unsettled message became due, or None if none is due.
    isolating, isolation_leases
        Suspects that wait to be leased in pieces, and about how many leases they need.
    blocked_because
        The cap, message, pause or breaker that stops the group, or an empty string.
    breaker
        "closed", "open" or "paused".
    """

    query_id: str
    query_name: str | None
    batch_id: int
    queue: str
    group: str
    input_rows: int
    batch_duration: timedelta
    ready: int
    delayed: int
    leased: int
    dead: int
    blocked: int
    oldest_unsettled_age: timedelta | None
    isolating: int
    isolation_leases: int
    blocked_because: str
    breaker: str


class SparkMQListener(StreamingQueryListener):
    """Reads the stats of groups from the progress of streams.

    It never reads the queue itself, and leaves out sources of other formats. If the driver has an
    OpenTelemetry SDK, it sets the gauges ``spark_mq.messages``, ``spark_mq.oldest_unsettled_age``
    and ``spark_mq.blocked``.

    Parameters
    ----------
    on_progress
        Called with each :class:`StreamProgress`, in a thread of Spark. Its errors are logged.

    Examples
    --------
    >>> listener = SparkMQListener()  # doctest: +SKIP
    >>> spark.streams.addListener(listener)  # doctest: +SKIP
    >>> listener.latest["/queues/orders", "billing"].ready  # doctest: +SKIP
    12
    """

    latest: dict[tuple[str, str], StreamProgress]
    """The last progress, by the path of the queue and the name of the group."""

    def __init__(self, on_progress: Callable[[StreamProgress], None] | None = None) -> None:
        self.latest = {}
        self._on_progress = on_progress
        # Otherwise the JVM logs an error, because it calls a process that has ended.
        atexit.register(wait_for_events)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing. Spark calls this when a query starts."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the groups of a batch."""
        try:
            self._report(json.loads(event.progress.json))
        except Exception:
            _log.exception("the progress of a stream could not be reported")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing. Spark calls this while a query has no new data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing. Spark calls this when a query has ended."""

    def _report(self, progress: Mapping[str, Any]) -> None:
        for source in progress.get("sources", ()):
            for stats in _groups(source.get("latestOffset")):
                state = _progress(progress, source, stats)
                self.latest[state.queue, state.group] = state
                stopped = is_stopped(state.blocked_because)
                group = Destination.of(state.queue, state.group)
                report_gauges(group, stats, _STATES, stopped=stopped)
                try:
                    if self._on_progress is not None:
                        self._on_progress(state)
                except (Exception, SystemExit):
                    _log.exception("the progress of group %s could not be reported", state.group)


def _groups(offset: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the stats in a source's latest offset. A source of several queues has several."""
    try:
        read = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:  # another source's
        return
    if not isinstance(read, Mapping):
        return
    for stats in (read, *read.values()):
        if isinstance(stats, Mapping) and stats.get("source") == "spark_mq":
            yield stats


def _progress(
    progress: Mapping[str, Any], source: Mapping[str, Any], stats: Mapping[str, Any]
) -> StreamProgress:
    own = {name: stats[name] for name in StreamProgress.__slots__ if name in stats}
    if (age := own.get("oldest_unsettled_age")) is not None:
        own["oldest_unsettled_age"] = timedelta(seconds=age)
    return StreamProgress(
        query_id=progress["id"],
        query_name=progress.get("name"),
        batch_id=progress["batchId"],
        input_rows=_input_rows(source),
        batch_duration=timedelta(milliseconds=progress.get("batchDuration", 0)),
        **own,
    )
