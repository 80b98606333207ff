"""Count a group's messages. Each figure is one field, with the rule that makes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

from spark_mq.ledger.acquire import AcquireRequest, acquire
from spark_mq.ledger.breaker import CLOSED
from spark_mq.ledger.isolation import NOTHING_ISOLATED, Isolation, estimate_isolation
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, SETTLED, TRANSFERRING, UNREAD, Ledger
from spark_mq.ledger.schedule import split_due
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.states import DELAYED, READY
from spark_mq.ledger.walk import LATE, StateSum, oldest_due, sum_states, walk_unread
from spark_mq.util.records import Record, with_attributes
from spark_mq.util.show import show_count

_T = TypeVar("_T")
EXPIRED: Final = "expired"
_NOTHING: Final = StateSum()


class Metric(NamedTuple):
    """A metric of Prometheus. Figures with the same one differ in the value of its label."""

    name: str
    kind: str  # "gauge" or "counter"
    text: str
    label: str | None = None


MESSAGES: Final = Metric("spark_mq_messages", "gauge", "Messages of a group by state.", "state")
_OUTCOMES: Final = Metric("spark_mq_settled", "counter", "Messages settled by outcome.", "outcome")
_FAILURES: Final = Metric("spark_mq_failures", "counter", "Failed deliveries by reason.", "reason")

_OLDEST_UNSETTLED: Final = Metric(
    "spark_mq_oldest_unsettled_age_seconds",
    "gauge",
    "Seconds since the first unsettled message became due.",
)
_OLDEST_LEASE: Final = Metric(
    "spark_mq_oldest_lease_age_seconds",
    "gauge",
    "Seconds since the start of the oldest live lease.",
)
_RANGES: Final = Metric("spark_mq_ledger_ranges", "gauge", "Ranges in the ledger.")
_SUSPECTS: Final = Metric(
    "spark_mq_isolating_messages", "gauge", "Suspects that wait to be leased in pieces."
)
_ISOLATION_LEASES: Final = Metric(
    "spark_mq_isolation_leases", "gauge", "About how many leases the suspects need if none fails."
)
_STOPPED: Final = Metric(
    "spark_mq_blocked",
    "gauge",
    "1 if a pause, the breaker, a blocked message or a full ledger stops the group.",
)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the figures of a group are made of: its messages summed up by state, and its header."""

    sums: Mapping[str, StateSum]
    """By state of STATE_NAMES, LATE, and EXPIRED for what is past its ``expires_at`` and unread."""
    counters: Mapping[str, int]
    start_sequence: int
    index: MessageIndex
    now: int
    blocked_because: str = ""
    breaker: str = CLOSED
    happened: Mapping[str, int] = field(default_factory=dict)
    oldest_due_at: int | None = None
    """Since when the oldest unsettled message is due, in a group with ``deliver_at``."""
    isolation: Isolation = NOTHING_ISOLATED
    filtered: bool = False

    def sum(self, state: str) -> StateSum:
        return self.sums.get(state, _NOTHING)

    @property
    def oldest_since(self) -> int | None:
        if self.index.has_times_after(self.start_sequence):
            return self.oldest_due_at
        # The lowest range of a ledger is never settled.
        first = min(_known(state.first for state in self.sums.values()), default=None)
        return None if first is None else self.index.file_at(first).committed_at


def _known(values: Iterable[int | None]) -> Iterator[int]:
    return (value for value in values if value is not None)


def with_unread(
    sums: Mapping[str, StateSum],
    start: int,
    index: MessageIndex,
    now: int,
    rules: GroupSettings,
    *,
    group: str,
) -> dict[str, StateSum]:
    """Return the sums of a ledger together with the unread messages that follow it."""
    with_unread = dict(sums)
    reach = max([start, *_known(state.last for state in sums.values())])
    for piece in walk_unread(index, reach + 1, now, rules, group):
        if piece.state == SETTLED and not piece.expired:
            continue
        count = index.count(piece.first, piece.last)
        state = EXPIRED if piece.expired and piece.state != DEAD else piece.state
        for name in (READY, UNREAD) if state == READY else (state,):
            own = with_unread.get(name, _NOTHING)
            first = piece.first if own.first is None else own.first
            with_unread[name] = own._replace(messages=own.messages + count, first=first)
    return with_unread


def age_at(instant: int | None, now: int) -> timedelta | None:
    return None if instant is None else timedelta(microseconds=max(0, now - instant))


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is made, and where it is shown."""

    fold: Callable[[GroupFacts], Any]
    doc: str
    unit: str = "messages"  # "sequence", "version", "ranges", "leases", "text", "s" for durations
    metric: Metric | None = None
    label: str = ""  # the value of its metric's label
    heading: str = ""  # of its column in tables of groups, which leave it out without one
    fact: str = ""  # its name on the page of a group, which leaves it out without one
    progress: bool = False  # whether the progress of a stream shows it


def figure(fold: Callable[[GroupFacts], Any], doc: str, unit: str = "messages", **more: Any) -> Any:
    """Return the field of a figure. All that show statistics show it, too."""
    return field(metadata={"figure": Figure(fold, doc, unit, **more)})


def _in_state(state: str, doc: str, **more: Any) -> Any:
    return figure(
        lambda facts: facts.sum(state).messages, doc, metric=MESSAGES, label=state, **more
    )


def _ended(counter: str, doc: str, **more: Any) -> Any:
    return figure(
        lambda facts: facts.counters.get(counter, 0), doc, metric=_OUTCOMES, label=counter, **more
    )


def _happened(metric: Metric, doc: str, *names: str, **more: Any) -> Any:
    return figure(
        lambda facts: sum(facts.happened.get(name, 0) for name in names), doc, metric=metric, **more
    )


def _age(since: Callable[[GroupFacts], int | None], doc: str, **more: Any) -> Any:
    return figure(lambda facts: age_at(since(facts), facts.now), doc, "s", **more)


def figures_of(owner: type[Any]) -> Mapping[str, Figure]:
    """Return the figures of a dataclass by name, in the order of its fields."""
    return _figures(cast(Hashable, owner))


@cache
def _figures(owner: Any) -> Mapping[str, Figure]:
    figures = ((field.name, field.metadata.get("figure")) for field in fields(owner))
    return {name: figure for name, figure in figures if figure is not None}


def state_figures(owner: type[Any]) -> list[str]:
    """Return the figures that count messages by state, which together are all unsettled ones."""
    return [name for name, figure in figures_of(owner).items() if figure.metric is MESSAGES]


def documented(owner: type[_T]) -> type[_T]:
    """Describe the figures of a dataclass in its docstring."""
    docs = {name: figure.doc for name, figure in figures_of(owner).items()}
    return with_attributes(owner, docs)


@documented
@dataclass(frozen=True, slots=True)
class GroupStats(Record):
    """Messages of a group by state.

    Messages of a lease past its deadline count as ready.
    """

    ready: int = figure(
        lambda facts: facts.sum(READY).messages + facts.sum(LATE).messages,
        "Due now: unread ones, and available ones whose time has come.",
        metric=MESSAGES,
        label=READY,
        heading="READY",
        progress=True,
    )
    unread: int = figure(
        lambda facts: facts.sum(UNREAD).messages, "Due now and never leased, part of ``ready``."
    )
    unexamined: int = figure(
        lambda facts: facts.sum(UNREAD).messages if facts.filtered else 0,
        "The part of ``unread`` that the group's filter still has to examine, so that a lease may "
        "skip some. 0 without a filter.",
        fact="Not examined by the filter",
    )
    delayed: int = _in_state(
        DELAYED,
        "Due later, by ``deliver_at`` or after a nack or release.",
        heading="DELAYED",
        progress=True,
    )
    leased: int = _in_state(LEASED, "Held by a lease.", heading="LEASED", progress=True)
    dead: int = _in_state(
        DEAD, "Dead, waiting for a sweep to route them.", heading="DEAD", progress=True
    )
    blocked: int = _in_state(
        BLOCKED, "Past a limit in a group that blocks.", heading="BLOCKED", progress=True
    )
    transferring: int = _in_state(TRANSFERRING, "Being copied to another queue.")
    acked: int = _ended("acked", "Acked since the group began.", heading="ACKED", fact="Acked")
    dead_lettered: int = _ended(
        "dead_lettered", "Routed to the dead-letter queue since the group began."
    )
    dropped: int = _ended(
        "dropped", "Dropped since the group began, at a limit, by a reject or by the owner."
    )
    skipped: int = _ended(
        "skipped",
        "Skipped by seeks, purges and the filter, replaced, or redriven for another group, since "
        "the group began.",
    )
    expired: int = figure(
        lambda facts: facts.counters.get("expired", 0) + facts.sum(EXPIRED).messages,
        "Past their ``expires_at`` since the group began.",
        metric=_OUTCOMES,
        label="expired",
    )
    lost: int = _ended("lost", "Trimmed before the group settled them, since the group began.")
    leases: int = _happened(
        Metric("spark_mq_leases", "counter", "Leases granted."),
        "Leases granted since the group began.",
        "leases",
    )
    deliveries: int = _happened(
        Metric("spark_mq_deliveries", "counter", "Messages handed over by leases and replays."),
        "Messages handed over by leases, and again by replays of a stream, since the group began.",
        "leased", "replayed",
    )  # fmt: skip
    nacked: int = _happened(
        _FAILURES, "Messages that failed by a nack since the group began.", "nacked", label="nack"
    )
    rejected: int = _happened(
        _FAILURES,
        "Messages that failed by a reject since the group began, also unreadable ones.",
        "rejected",
        label="reject",
    )
    lease_expired: int = _happened(
        _FAILURES,
        "Messages whose lease expired since the group began.",
        "lease_expired",
        label="lease_expired",
    )
    released: int = _happened(
        Metric("spark_mq_released", "counter", "Messages given back uncounted."),
        "Messages given back since the group began. Their deliveries do not count as attempts.",
        "released",
    )
    start_sequence: int = figure(
        lambda facts: facts.start_sequence,
        "All messages up to this sequence are settled.",
        "sequence",
    )
    latest_sequence: int = figure(
        lambda facts: facts.index.last_sequence, "The last published sequence, or -1.", "sequence"
    )
    latest_version: int = figure(
        lambda facts: facts.index.version,
        "The version of ``messages/`` that the numbers belong to.",
        "version",
    )
    oldest_unsettled_age: timedelta | None = _age(  # noqa: RUF009 - it is a field
        lambda facts: facts.oldest_since,
        "Time since the first unsettled message became due, by its publish or its later "
        "``deliver_at``. Messages that are scheduled for later have no age. None without one.",
        metric=_OLDEST_UNSETTLED,
        heading="OLDEST",
        fact="Oldest unsettled",
        progress=True,
    )
    oldest_lease_age: timedelta | None = _age(  # noqa: RUF009 - it is a field
        lambda facts: facts.sum(LEASED).leased_at,
        "Time since the start of the oldest live lease. None without one.",
        metric=_OLDEST_LEASE,
        heading="LEASE",
        fact="Oldest lease",
    )
    ledger_ranges: int = figure(
        lambda facts: sum(state.ranges for state in facts.sums.values()),
        "Ranges in the ledger.",
        "ranges",
        metric=_RANGES,
        heading="RANGES",
        fact="Ledger ranges",
    )
    isolating: int = figure(
        lambda facts: facts.isolation.suspects,
        "Suspects that wait to be leased in pieces, part of ``ready`` and ``delayed``.",
        metric=_SUSPECTS,
        heading="ISOLATING",
        progress=True,
    )
    isolation_leases: int = figure(
        lambda facts: facts.isolation.leases,
        "About how many leases the suspects need if none fails.",
        "leases",
        metric=_ISOLATION_LEASES,
        progress=True,
    )
    blocked_because: str = figure(
        lambda facts: facts.blocked_because,
        "The cap, limit, message, pause or breaker that prevents leases, or an empty string.",
        "text",
        metric=_STOPPED,
        heading="BLOCKED BECAUSE",
        progress=True,
    )
    breaker: str = figure(
        lambda facts: facts.breaker,
        '"closed", "open" or "paused".',
        "text",
        fact="Breaker",
        progress=True,
    )

    @classmethod
    def of(cls, facts: GroupFacts) -> Self:
        return cls(**{name: figure.fold(facts) for name, figure in figures_of(cls).items()})

    @property
    def isolation(self) -> str:
        """Return how far the isolation of suspects is, for people, or an empty string."""
        if not self.isolating:
            return ""
        leases = show_count(self.isolation_leases, "lease")
        return f"isolating {show_count(self.isolating, 'suspect')}, about {leases} left"

    @property
    def backlog(self) -> int:
        """Return the number of messages that workers or the owner still have to settle."""
        return self.ready + self.delayed + self.leased + self.blocked

    @property
    def unsettled(self) -> int:
        """Return the number of messages that are not settled, dead ones included."""
        return self.backlog + self.dead + self.transferring


def facts_of(
    ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int, worker_id: str = ""
) -> GroupFacts:
    """Return what figures are made of. The caller has expired leases already.

    The reason for no lease is that of a worker, by default of one that holds nothing.
    """
    ledger = split_due(ledger, index, now, now, rules)
    _, grant = acquire(ledger, index, now, rules, AcquireRequest("stats", worker_id, 1, now))
    head = ledger.head
    sums = sum_states(ledger.ranges, now).get(0, {})
    timed = index.has_times_after(head.start_sequence)
    return GroupFacts(
        with_unread(sums, head.start_sequence, index, now, rules, group=head.group),
        head.counters,
        head.start_sequence,
        index,
        now,
        grant.blocked_because,
        head.breaker.state(rules, now),
        head.happened,
        oldest_due(ledger, index, now) if timed else None,
        estimate_isolation(ledger, rules),
        rules.filter is not None,
    )


def compute_stats(
    ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int, worker_id: str = ""
) -> GroupStats:
    """Return the stats of a ledger, as :func:`facts_of`."""
    return GroupStats.of(facts_of(ledger, index, rules, now, worker_id))
