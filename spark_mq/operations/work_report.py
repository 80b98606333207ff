"""Report the work of a worker: a span for each lease, verdicts in sums, and totals at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import DEAD, TRANSFERRING, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleCommand, SettleOutcome
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.parquet.reader import MessageReader
from spark_mq.telemetry.conventions import Destination, trace_headers
from spark_mq.telemetry.reporter import MAX_LINKS, WorkReport, current_reporter
from spark_mq.util.records import Record
from spark_mq.util.show import printable

__all__ = [
    "VerdictLog",
    "WorkSummary",
    "describe_settled",
    "has_ended",
    "reported_work",
    "why_left",
]

_log = logging.getLogger("spark_mq.worker")
_verdict_log = logging.getLogger("spark_mq.verdicts")

EVERY: Final = 10.0  # seconds between two lines of one group
_MAX_ERROR: Final = 200  # characters of an error in a line
_PAST: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}
"""What messages are after a verb, in the order of a line."""

Held = tuple[GroupLedger, Callable[[], Sequence[Range]]]  # a group, and the messages of a lease


@contextmanager
def reported_work(held: Sequence[Held], worker_id: str | None) -> Iterator[Callable[..., Any]]:
    """Yield ``run(handler, *arguments)``, which reports the work if the program has an SDK.

    A settle in the block belongs to the trace, but its time to no span of the work.
    """
    reporter = current_reporter()
    if reporter is None:
        yield _run
        return
    with ExitStack() as stack:
        reports = []
        for ledger, find in held:
            if ranges := find():
                reports.append(
                    stack.enter_context(
                        reporter.processing(
                            Destination.of(ledger.queue_path, ledger.name),
                            sum(r.message_count for r in ranges),
                            client_id=worker_id,
                            created=_creation_headers(ledger, ranges),
                        )
                    )
                )
        yield partial(_run_reported, reports)


def _run(handler: Callable[..., Any], *arguments: Any) -> Any:
    return handler(*arguments)


def _run_reported(
    reports: Sequence[WorkReport], handler: Callable[..., Any], *arguments: Any
) -> Any:
    failure: BaseException | None = None
    try:
        return handler(*arguments)
    except BaseException as error:
        failure = error
        raise
    finally:
        for report in reversed(reports):
            report.end(failure)


def _creation_headers(ledger: GroupLedger, ranges: Sequence[Range]) -> Iterator[dict[str, str]]:
    """Yield the trace headers of the first messages, until a file cannot be read."""
    try:
        messages = ledger.messages
        index = messages.index(max(r.last for r in ranges))
        reader = MessageReader(messages.files, ["headers"])
        for piece in _first_rows(index, ranges, MAX_LINKS):
            yield from trace_headers(reader.read(piece)["headers"])
    except (SparkMQError, *STORE_ERRORS):
        return


def _first_rows(index: MessageIndex, ranges: Sequence[Range], rows: int) -> Iterator[FileSlice]:
    """Yield the slices of the first rows of some ranges."""
    for r in ranges:
        for piece in index.slices(r.first, r.last):
            yield replace(piece, rows=min(piece.rows, rows))
            rows -= piece.rows
            if rows <= 0:
                return


@dataclass(slots=True)
class WorkSummary(Record):
    """The results of a worker loop.

    Messages that a handler settled itself are not counted.

    Attributes
    ----------
    leases
        Leases handed to the handler.
    failed
        Those of them whose handler failed. With ``mode="message"``: messages.
    settled
        Messages that ended: acked or rejected. They are not delivered again.
    acked
        Messages of these that were acked.
    rejected
        Messages of these that were made dead.
    nacked
        Messages given back after a failure. They are redelivered, except after their last attempt.
    released
        Messages given back uncounted, for later.
    blocked_because
        Why the loop ended by ``until="empty"`` although messages are due: a pause, the breaker, a
        cap or a blocking message. Otherwise an empty string.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    acked: int = 0
    rejected: int = 0
    nacked: int = 0
    released: int = 0
    blocked_because: str = ""

    def count(self, verb: str, messages: int) -> None:
        """Add messages that a verb settled or gave back. The caller holds the lock."""
        name = _PAST[verb]
        setattr(self, name, getattr(self, name) + messages)
        self.settled = self.acked + self.rejected


def has_ended(ledger: GroupLedger, until: str) -> bool:
    """Return whether a worker ends now that there is nothing to lease."""
    if until == "empty":
        return True
    stats = ledger.stats()
    return not (stats.ready or stats.delayed or stats.leased or stats.blocked)


def why_left(ledgers: Sequence[GroupLedger]) -> str:
    """Return why groups keep due messages after the end, and log it. Empty if none does."""
    found = []
    for ledger in ledgers:
        try:
            stats = ledger.stats()
        except OUTAGES as error:
            _log.warning("group %s: its counts cannot be read at the end: %s", ledger.name, error)
            continue
        if (why := stats.blocked_because) and (stats.ready or stats.blocked):
            text = "group %s leases nothing, so the work ends: %s. Ready: %d messages, blocked: %d"
            _log.warning(text, ledger.name, why, stats.ready, stats.blocked)
            found.append(why if len(ledgers) == 1 else f"group {ledger.name}: {why}")
    return "; ".join(found)


def describe_settled(commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]) -> str:
    """Return how many messages each verb settled, for a log."""
    done: Counter[str] = Counter()
    for command, outcome in zip(commands, outcomes, strict=True):
        done[command.verb] += outcome.settled
    return ", ".join(f"{count} {_PAST[verb]}" for verb, count in done.items())


class VerdictLog:
    """Logs the numbers of acked, nacked, rejected and dead messages. Thread-safe.

    The first failure is logged at once. Later ones are summed up, one line every ten seconds. A
    group without failures logs nothing.
    """

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._error: str | None = None
        self._logged_at = float("-inf")

    def add(self, commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]) -> None:
        """Count verdicts, and log them if a line is due."""
        with self._lock:
            for command, outcome in zip(commands, outcomes, strict=True):
                self._counts[command.verb] += outcome.settled
                self._counts[DEAD] += sum(
                    outcome.states.get(one, 0) for one in (DEAD, TRANSFERRING)
                )
                if command.verb in (NACK, REJECT) and outcome.settled:
                    self._error = self._error or command.error
            if self._clock() - self._logged_at >= EVERY:
                self._write()

    def flush(self) -> None:
        """Log the numbers that are not logged yet."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        counts = self._counts
        if not (counts[NACK] or counts[REJECT] or counts[DEAD]):
            return
        parts = [f"{counts[verb]} {name}" for verb, name in _PAST.items() if counts[verb]]
        dead = f", {counts[DEAD]} of these dead" if counts[DEAD] else ""
        error = f". The first error: {printable(self._error[:_MAX_ERROR])}" if self._error else ""
        _verdict_log.info("group %s: %s%s%s", self._group, ", ".join(parts), dead, error)
        self._counts, self._error, self._logged_at = Counter(), None, self._clock()
