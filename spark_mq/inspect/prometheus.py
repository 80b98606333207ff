"""Turn overviews of queues into metrics for Prometheus (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from spark_mq.inspect.overview import QueueOverview
from spark_mq.ledger.stats import GroupStats
from spark_mq.util.clock import to_seconds

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["QueueCollector"]


def _timestamp(overview: QueueOverview) -> float | None:
    at = overview.sweeps.last_change_at
    return None if at is None else at.timestamp()


_STATES: Final = ("ready", "delayed", "in_flight", "dead", "blocked", "routing")
_OUTCOMES: Final = ("acked", "dead_lettered", "dropped", "skipped", "expired", "lost")
_GAUGES: Final[Mapping[str, tuple[str, Callable[[GroupStats], float | None]]]] = {
    "spark_mq_oldest_unsettled_age_seconds": (
        "Seconds since the publish of the first unsettled message.",
        lambda stats: to_seconds(stats.oldest_unsettled_age),
    ),
    "spark_mq_oldest_lease_age_seconds": (
        "Seconds since the start of the oldest live lease.",
        lambda stats: to_seconds(stats.oldest_lease_age),
    ),
    "spark_mq_blocked": (
        "1 if the group leases nothing because of a cap or a blocked message.",
        lambda stats: int(bool(stats.blocked_because)),
    ),
    "spark_mq_ledger_ranges": ("Ranges in the ledger.", lambda stats: stats.ledger_ranges),
}
"""The gauges of a group: their help, and how to get them from its stats."""
_QUEUE_GAUGES: Final[Mapping[str, tuple[str, Callable[[QueueOverview], float | None]]]] = {
    "spark_mq_sweep_waiting_commits": (
        "Commits that wait for a sweep.",
        lambda overview: overview.sweeps.unarchived_commits,
    ),
    "spark_mq_dead_letters": (
        "Dead letters that were not redriven.",
        lambda overview: overview.dead_letters,
    ),
    "spark_mq_last_sweep_timestamp_seconds": (
        "When a sweep last changed the queue.",
        _timestamp,
    ),
}
"""The gauges of a queue."""

Looks = Mapping[str, QueueOverview | None]
"""An overview of each queue by path. None: the queue cannot be read."""


class QueueCollector:
    """Collects the metrics of queues. One that cannot be read shows as ``spark_mq_up`` 0.

    Parameters
    ----------
    look
        Looks at the queues. It runs for each request.
    """

    def __init__(self, look: Callable[[], Looks]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Return no metric: registering must not look at a queue."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one look."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        looks = self._look()
        up = GaugeMetricFamily("spark_mq_up", "1 if the queue can be read.", labels=["queue"])
        published = CounterMetricFamily(
            "spark_mq_published", "Messages published.", labels=["queue"]
        )
        for path, overview in looks.items():
            up.add_metric([path], int(overview is not None and not overview.damaged))
            if overview is not None:
                published.add_metric([path], overview.published)
        found = [one for one in looks.values() if one is not None]
        yield up
        if found:
            yield from _of_groups(found)
            yield published
            yield from _of_queues(found)


def _of_groups(overviews: list[QueueOverview]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["queue", "group"]
    messages = GaugeMetricFamily(
        "spark_mq_messages", "Messages of a group by state.", labels=[*labels, "state"]
    )
    settled = CounterMetricFamily(
        "spark_mq_settled", "Messages settled by outcome.", labels=[*labels, "outcome"]
    )
    groups = [(one.path, *item) for one in overviews for item in one.groups.items()]
    for path, name, stats in groups:
        for state in _STATES:
            messages.add_metric([path, name, state], getattr(stats, state))
        for outcome in _OUTCOMES:
            settled.add_metric([path, name, outcome], getattr(stats, outcome))
    yield from (messages, settled)
    for metric, (text, value) in _GAUGES.items():
        family = GaugeMetricFamily(metric, text, labels=labels)
        for path, name, stats in groups:
            if (found := value(stats)) is not None:
                family.add_metric([path, name], found)
        yield family


def _of_queues(overviews: list[QueueOverview]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for metric, (text, value) in _QUEUE_GAUGES.items():
        family = GaugeMetricFamily(metric, text, labels=["queue"])
        for overview in overviews:
            if (found := value(overview)) is not None:
                family.add_metric([overview.path], found)
        if family.samples:
            yield family
