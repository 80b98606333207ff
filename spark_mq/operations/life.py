"""Define the records of the life of a message, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from spark_mq.ledger.log_fingerprints import REWOUND
from spark_mq.storage.history_table import FAILURES
from spark_mq.util.records import Record, rows_html
from spark_mq.util.show import show_moment, show_name, show_number

# Events that the owner of a group makes. A worker only held the message before.
_BY_OWNER: Final = ("discarded", "made_dead", "retried", "unblocked")
UNDOING: Final = ("seek", REWOUND)  # events that make messages unread again


@dataclass(frozen=True, slots=True)
class TraceEvent(Record):
    """One event in the life of a message.

    The event "redriven" of a copy, or "repaired" with a transform, is its publish. Its ``version``
    is that of ``messages/``, and its ``group`` is the one in which the message died. All groups get
    the copy.

    Attributes
    ----------
    version
        The version of ``leases/``.
    outcome
        How the message ended. None if the event did not end it.
    user
        The person who caused the event. None if no person did.
    error
        The message's own failure. Only the event of a failure has an error.
    batch_error
        The failure of the message's whole lease. Any message of the lease may have caused it.
    batch_size
        The number of messages in that lease.
    detail
        A person's request, such as the target of a seek.
    """

    at: datetime
    version: int
    group: str
    event: str
    state: str
    outcome: str | None
    operation: str | None
    lease_id: str | None
    worker_id: str | None
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    user: str | None = None
    batch_error: str | None = None
    batch_size: int | None = None
    detail: str | None = None

    def __str__(self) -> str:
        parts = [
            show_moment(self.at),
            self.group,
            self.event if self.event == self.state else f"{self.event} -> {self.shown_state}",
        ]
        parts += [self.shown_worker] if self.shown_worker else []
        parts += [f"user {self.user}"] if self.user else []
        parts += [f"lease {self.lease_id}"] if self.lease_id else []
        parts += [f"delivery {self.delivery_count}, failures {self.failure_count}"]
        detail = None if self.detail == self.reason else self.detail
        parts += _named(reason=self.reason, error=self.shown_error, detail=detail)
        return "  ".join(parts)

    @property
    def shown_state(self) -> str:
        """Return the state after the event for people, with the outcome if its name differs."""
        ended = self.outcome not in (None, self.event)
        return f"{self.state}: {self.outcome}" if ended else self.state

    @property
    def shown_worker(self) -> str:
        """Return "by" and the worker of the event, or "from" and the fenced one, or nothing."""
        if self.worker_id is None or self.event in _BY_OWNER:
            return ""
        return f"{'from' if self.event == 'fenced' else 'by'} {self.worker_id}"

    @property
    def shown_error(self) -> str | None:
        """Return the error as a text for people, which shows whether a whole batch failed."""
        return _error_text(self.error, self.batch_error, self.batch_size)


@dataclass(frozen=True, slots=True)
class MessageOutcome(Record):
    """How a message ended in one group. Print it to read it.

    Attributes
    ----------
    group
        The name of the group.
    outcome
        "acked", "dead_lettered", "dropped", "expired", "skipped", "lost" or "redriven".
    settled_at
        When the commit settled it (aware, UTC).
    delivery_count, failure_count
        Its deliveries and failures.
    reason, error
        Why it was dead or dropped, and the text of its own last failure, or None.
    batch_error, batch_size
        The text and the size, if its last failure was that of its whole lease.
    """

    group: str
    outcome: str
    settled_at: datetime
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    batch_error: str | None = None
    batch_size: int | None = None

    def __str__(self) -> str:
        # An acked message may have failed before. That is not why it ended.
        error = None if self.outcome == "acked" else self.shown_error
        return "  ".join([self.outcome, *_named(reason=self.reason, error=error)])

    @property
    def shown_error(self) -> str | None:
        """Return the error as a text for people, which shows whether a whole batch failed."""
        return _error_text(self.error, self.batch_error, self.batch_size)


def outcomes_in(rows: Iterable[Mapping[str, Any]]) -> tuple[MessageOutcome, ...]:
    """Return one message's last end in each group that no later event undid, by group."""
    ends: dict[str, MessageOutcome] = {}
    failures: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        group = row["consumer_group"]
        if row["event"] in UNDOING:
            ends.pop(group, None)
        if row["event"] in FAILURES:
            failures[group] = row
        if row["outcome"] is not None:
            ends[group] = _outcome(row, failures.get(group))
    return tuple(ends[group] for group in sorted(ends))


def _outcome(end: Mapping[str, Any], failure: Mapping[str, Any] | None) -> MessageOutcome:
    # A ledger keeps only the text of the last failure, which finds its event.
    error, size = end["error"], None
    if failure is not None and failure["error"] == error:
        size = failure["batch_size"]
    return MessageOutcome(
        group=end["consumer_group"],
        outcome=end["outcome"],
        settled_at=end["committed_at"],
        delivery_count=end["delivery_count"],
        failure_count=end["failure_count"],
        reason=end["reason"],
        error=error if size is None else None,
        batch_error=None if size is None else error,
        batch_size=size,
    )


@dataclass(frozen=True, slots=True)
class Trace(Record):
    """The life of a message, in all groups. Print it to read it.

    Attributes
    ----------
    message_id, retained
        Its id, and True. None and False if the payload was trimmed.
    events
        The events in each group, in order.
    blocked
        Groups that hold the message and are paused or have an open breaker, each with the reason.
    """

    sequence: int
    version: int
    published_at: datetime
    message_id: str | None
    retained: bool
    events: tuple[TraceEvent, ...]
    blocked: tuple[tuple[str, str], ...] = ()
    earlier: Trace | None = None
    """The message that this one was before a redrive."""
    later: tuple[Trace, ...] = ()
    """The messages that redrives made of this one."""
    redriven_at: datetime | None = None
    """When a redrive published this copy. ``published_at`` stays that of the first publish."""
    priority: int = 0
    lane: int | None = None
    """The lane of its key. None without a key, or if the queue has no lanes."""
    outcomes: tuple[MessageOutcome, ...] = ()
    """How it ended in each group that settled it, by group. Empty where the history lacks it."""

    def __str__(self) -> str:
        blocks = ["\n".join([*life.lines(), *life._ends()]) for life in self.chain()]
        return "\nredriven as\n".join(blocks)

    def chain(self) -> tuple[Trace, ...]:
        """Return this message with those before and after it by redrives, oldest first."""
        before = () if self.earlier is None else self.earlier.chain()
        return (*before, self, *(found for life in self.later for found in life.chain()))

    def lines(self) -> list[str]:
        """Return the text of this message's life, without redrives and outcomes."""
        lines = [str(event) for event in self.events]
        lines += [f"group {group} leases nothing now: {why}" for group, why in self.blocked]
        return [self._head(), *(f"  {line}" for line in lines)]

    def _ends(self) -> list[str]:
        return [f"  group {outcome.group} settled it: {outcome}" for outcome in self.outcomes]

    def _head(self) -> str:
        named = show_name(str(self.message_id)) if self.retained else "payload trimmed"
        when = f"published {show_moment(self.published_at)}"
        if self.redriven_at is not None:  # a redrive keeps the time of the publish
            when = f"first {when}, redriven {show_moment(self.redriven_at)}"
        place = f", priority {self.priority}" if self.priority else ""
        place += f", lane {self.lane}" if self.lane is not None else ""
        by = f"by version {self.version} of messages/"
        return f"message {self.sequence} ({named}), {when} {by}{place}"

    def _rows(self) -> Sequence[TraceEvent]:
        return self.events

    def _repr_html_(self) -> str:
        return "<p>redriven as</p>".join(life._own_html() for life in self.chain())

    def _own_html(self) -> str:
        blocked = [{"group": group, "leases nothing": why} for group, why in self.blocked]
        ends = rows_html(self.outcomes, title="Outcome in each group") if self.outcomes else ""
        events = rows_html(self.events, title=self._head())
        return events + (rows_html(blocked) if blocked else "") + ends


def _named(**texts: str | None) -> list[str]:
    return [f"{name}: {text}" for name, text in texts.items() if text]


def _error_text(error: str | None, of_batch: str | None, batch_size: int | None) -> str | None:
    if batch_size is None:
        return error
    why = f": {of_batch}" if of_batch else ""
    return f"its batch of {show_number(batch_size)} failed{why}"
