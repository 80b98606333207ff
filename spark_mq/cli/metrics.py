"""``spark-mq metrics``: serve the metrics of a queue to Prometheus (extra ``metrics``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_mq.cli.options import QueuePath, StorageOptions, open_queue, option
from spark_mq.cli.workers import stopping
from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.ledger.stats import GroupStats

if TYPE_CHECKING:
    from prometheus_client import Metric

    from spark_mq.inspect.overview import QueueOverview

__all__ = ["register"]

_STATES: Final = ("ready", "delayed", "in_flight", "dead", "blocked", "routing")
_OUTCOMES: Final = ("acked", "dead_lettered", "dropped", "skipped", "expired", "lost")
_GAUGES: Final[Mapping[str, tuple[str, Callable[[GroupStats], float | None]]]] = {
    "spark_mq_oldest_unsettled_age_seconds": (
        "Seconds since the publish of the first unsettled message.",
        lambda stats: stats.oldest_unsettled_age,
    ),
    "spark_mq_oldest_lease_age_seconds": (
        "Seconds since the start of the oldest live lease.",
        lambda stats: stats.oldest_lease_age,
    ),
    "spark_mq_blocked": (
        "1 if the group leases nothing because of a cap or a blocked message.",
        lambda stats: int(bool(stats.blocked_because)),
    ),
    "spark_mq_ledger_ranges": ("Ranges in the ledger.", lambda stats: stats.ledger_ranges),
}
"""The gauges of a group: their help, and how to get them from its stats."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(metrics)


def metrics(
    queue: QueuePath,
    port: Annotated[int, option("--port", min=0, max=65_535, help="0: any free port.")] = 9464,
    address: Annotated[str, option("--address", help="Where to listen.")] = "127.0.0.1",
    storage_option: StorageOptions = None,
) -> None:
    """Serve the metrics of a queue to Prometheus until SIGTERM. Each request looks at the queue."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "metrics need prometheus_client, which is not installed. Run: pip install "
            "'spark-mq[metrics]'",
            option="metrics",
            value=None,
        ) from error
    registry = CollectorRegistry()
    registry.register(_Collector(open_queue(queue, storage_option)))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {address}:{port}: {error.strerror}. Give another --port",
            option="--port",
            value=port,
        ) from error
    print(
        f"listening on http://{address}:{server.server_port}/metrics", file=sys.stderr, flush=True
    )
    with stopping() as stop:
        stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()


class _Collector:
    """Looks at a queue for each request. A look that fails shows as ``spark_mq_up`` 0."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def describe(self) -> list[Metric]:
        """Return no metric: registering must not look at the queue."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one look."""
        from prometheus_client.core import GaugeMetricFamily

        up = GaugeMetricFamily("spark_mq_up", "1 if the queue can be read.", labels=["queue"])
        try:
            overview = self._queue.describe()
        except (SparkMQError, OSError) as error:
            print(f"spark-mq: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            up.add_metric([self._queue.path], 0)
            yield up
            return
        up.add_metric([overview.path], int(not overview.damaged))
        yield up
        yield from _of_groups(overview.path, overview.groups)
        yield from _of_queue(overview)


def _of_groups(path: str, groups: Mapping[str, GroupStats]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["queue", "group"]
    messages = GaugeMetricFamily(
        "spark_mq_messages", "Messages of a group by state.", labels=[*labels, "state"]
    )
    settled = CounterMetricFamily(
        "spark_mq_settled", "Messages settled by outcome.", labels=[*labels, "outcome"]
    )
    for name, stats in groups.items():
        for state in _STATES:
            messages.add_metric([path, name, state], getattr(stats, state))
        for outcome in _OUTCOMES:
            settled.add_metric([path, name, outcome], getattr(stats, outcome))
    yield from (messages, settled)
    for metric, (text, value) in _GAUGES.items():
        family = GaugeMetricFamily(metric, text, labels=labels)
        for name, stats in groups.items():
            if (found := value(stats)) is not None:
                family.add_metric([path, name], found)
        yield family


def _of_queue(overview: QueueOverview) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels, path, sweeps = ["queue"], [overview.path], overview.sweeps
    published = CounterMetricFamily("spark_mq_published", "Messages published.", labels=labels)
    published.add_metric(path, overview.published)
    yield published
    waiting = GaugeMetricFamily(
        "spark_mq_sweep_waiting_commits", "Commits that wait for a sweep.", labels=labels
    )
    waiting.add_metric(path, sweeps.unarchived_commits)
    yield waiting
    if overview.dead_letters is not None:
        letters = GaugeMetricFamily(
            "spark_mq_dead_letters", "Dead letters that were not redriven.", labels=labels
        )
        letters.add_metric(path, overview.dead_letters)
        yield letters
    if sweeps.last_change_at is not None:
        swept = GaugeMetricFamily(
            "spark_mq_last_sweep_timestamp_seconds",
            "When a sweep last changed the queue.",
            labels=labels,
        )
        swept.add_metric(path, sweeps.last_change_at.timestamp())
        yield swept
