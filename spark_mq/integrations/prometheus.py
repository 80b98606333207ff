"""Turn overviews of queues into metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_mq.inspect.durations import BOUNDS, GroupDurations, Histogram
from spark_mq.inspect.lanes import LaneSummary
from spark_mq.inspect.overview import QueueOverview
from spark_mq.ledger.budget import is_stopped
from spark_mq.ledger.stats import GroupStats, Metric, figures_of
from spark_mq.util.clock import to_seconds

if TYPE_CHECKING:
    from prometheus_client import Metric as ClientMetric

__all__ = ["CONTENT_TYPE", "QueueCollector", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def _timestamp(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


_LANE_GAUGES: Final[Mapping[str, tuple[str, Callable[[LaneSummary], float | None]]]] = {
    "spark_mq_lanes_held_back": (
        "Lanes whose due messages wait for a retry, a delay or the owner.",
        lambda summary: summary.lanes_held_back,
    ),
    "spark_mq_held_back_messages": (
        "Due messages of these lanes.",
        lambda summary: summary.held_back,
    ),
    "spark_mq_oldest_lane_head_age_seconds": (
        "Seconds since the oldest first message of a lane became due.",
        lambda summary: to_seconds(summary.oldest_head_age),
    ),
}
"""The gauges of an ordered group. No lane is a label, because there may be a thousand."""
_QUEUE_GAUGES: Final[Mapping[str, tuple[str, Callable[[QueueOverview], float | None]]]] = {
    "spark_mq_sweep_waiting_commits": (
        "Commits that wait for a sweep.",
        lambda overview: overview.sweeps.unarchived_commits,
    ),
    "spark_mq_dead_letters": (
        "Dead letters that are neither redriven nor discarded.",
        lambda overview: overview.dead_letters,
    ),
    "spark_mq_last_sweep_timestamp_seconds": (
        "When a sweep last changed the queue.",
        lambda overview: _timestamp(overview.sweeps.last_change_at),
    ),
    "spark_mq_sweep_waiting_since_timestamp_seconds": (
        "Since when a commit or a schedule waits for a sweep.",
        lambda overview: _timestamp(overview.sweeps.waiting_since),
    ),
}

Overviews = Mapping[str, QueueOverview | None]
"""An overview of each queue by path. None if the queue cannot be read."""


_HISTOGRAMS: Final[Mapping[str, tuple[str, Callable[[GroupDurations], Histogram]]]] = {
    "spark_mq_time_to_lease_seconds": (
        "Seconds from when a message became due to its first lease.",
        lambda durations: durations.time_to_lease,
    ),
    "spark_mq_time_to_settle_seconds": (
        "Seconds from a lease to the ack, nack or reject of a message.",
        lambda durations: durations.time_to_settle,
    ),
}
_GROUP: Final = ("queue", "group")  # the labels of a group
_BOUNDS: Final = (*map(str, BOUNDS), "+Inf")


class _Family(NamedTuple):
    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], Any]]  # numbers, or histograms


class QueueCollector:
    """Collects the metrics of queues, with ``spark_mq_up`` 0 for one that cannot be read.

    It calls ``read`` for each request.
    """

    def __init__(self, read: Callable[[], Overviews]) -> None:
        self._read = read

    def describe(self) -> list[ClientMetric]:
        """Return no metric, because a registration must not look at a queue."""
        return []

    def collect(self) -> Iterable[ClientMetric]:
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(exposition(self._read()).decode())


def exposition(overviews: Overviews) -> bytes:
    """Return the metrics in Prometheus's text format, for which its own client is too slow."""
    parts, shown = [], cache(_escaped)
    for family in _families(overviews):
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        parts.append(f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n")
        labels = ",".join(f'{label}="%s"' for label in family.labels)
        if family.kind == "histogram":
            for given, value in family.samples:
                parts += _histogram_lines(name, labels % (*map(shown, given),), value)
            continue
        line = f"{name}{{{labels}}} %s\n"
        parts += [line % (*map(shown, given), value) for given, value in family.samples]
    return "".join(parts).encode()


def _histogram_lines(name: str, labels: str, value: Histogram) -> Iterator[str]:
    for bound, count in zip(_BOUNDS, value.counts, strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
    yield f"{name}_count{{{labels}}} {value.counts[-1]}\n"
    yield f"{name}_sum{{{labels}}} {value.seconds}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _families(overviews: Overviews) -> Iterator[_Family]:
    labels = ("queue",)
    queues = [overview for overview in overviews.values() if overview is not None]
    readable = [
        ((path,), int(overview is not None and not overview.damaged))
        for path, overview in overviews.items()
    ]
    yield _Family("spark_mq_up", "gauge", "1 if the queue can be read.", labels, readable)
    if queues:
        yield from _of_groups(queues)
        yield from _of_lanes(queues)
        yield from _measured(_HISTOGRAMS, "histogram", _GROUP, _by_group(queues, "durations"))
        published = [((queue.path,), queue.published) for queue in queues]
        yield _Family("spark_mq_published", "counter", "Messages published.", labels, published)
        yield from _measured(_QUEUE_GAUGES, "gauge", labels, [((q.path,), q) for q in queues])


def _by_group(overviews: list[QueueOverview], part: str) -> list[tuple[tuple[str, str], Any]]:
    """Return what a part of the overviews has of each group, with the labels of the group."""
    return [
        ((overview.path, name), own)
        for overview in overviews
        for name, own in getattr(overview, part).items()
    ]


def _of_groups(overviews: list[QueueOverview]) -> Iterator[_Family]:
    groups = _by_group(overviews, "groups")
    owner = type(groups[0][1]) if groups else GroupStats
    figures: dict[Metric, list[tuple[str, tuple[str, ...]]]] = {}
    for name, figure in figures_of(owner).items():
        if (metric := figure.metric) is not None:
            figures.setdefault(metric, []).append((name, (figure.label,) if metric.label else ()))
    for metric, named in figures.items():
        samples = [
            ((*group, *label), number)
            for group, stats in groups
            for name, label in named
            if (number := _number(getattr(stats, name))) is not None
        ]
        labels = (*_GROUP, *((metric.label,) if metric.label else ()))
        yield _Family(metric.name, metric.kind, metric.text, labels, samples)


def _number(value: Any) -> float | None:
    """Return a figure as a number: a duration in seconds, and 1 for what stops a group."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return int(is_stopped(value)) if isinstance(value, str) else value


def _of_lanes(overviews: list[QueueOverview]) -> Iterator[_Family]:
    groups = _by_group(overviews, "lanes")
    if not groups:
        return
    backlog = (
        (
            (*labels, str(priority.priority)),
            priority.ready + priority.delayed + priority.leased + priority.blocked,
        )
        for labels, own in groups
        for priority in own.priorities
    )
    text = "Messages of a group by priority that are neither settled nor dead."
    names = (*_GROUP, "priority")
    yield _Family("spark_mq_backlog_messages", "gauge", text, names, backlog)
    ordered = [(labels, own) for labels, own in groups if own.order == "key"]
    yield from _measured(_LANE_GAUGES, "gauge", _GROUP, ordered)


def _measured(
    metrics: Mapping[str, tuple[str, Callable[[Any], Any]]],
    kind: str,
    names: tuple[str, ...],
    owners: Sequence[tuple[tuple[str, ...], Any]],
) -> Iterator[_Family]:
    """Yield the metrics of some owners, each with its labels, that have a value in one of them."""
    for metric, (text, value) in metrics.items():
        samples = [(labels, value(own)) for labels, own in owners]
        known = [(labels, number) for labels, number in samples if number is not None]
        if known:
            yield _Family(metric, kind, text, names, known)
