"""Report the work of a worker: a span for each lease, and verdicts in sums."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, DEAD, TRANSFERRING, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleOutcome, SettlePart
from spark_mq.operations.context import GroupLedger
from spark_mq.parquet.reader import MessageReader
from spark_mq.telemetry import MAX_LINKS, Destination, WorkReport, current_reporter, trace_headers
from spark_mq.util.error_shape import recent_error_shape
from spark_mq.util.progress import progress
from spark_mq.util.show import printable, show_number, show_short

_verdict_log = logging.getLogger("spark_mq.verdicts")

EVERY: Final = 10.0  # seconds between two lines of one group
_MAX_ERROR: Final = 100  # characters of an error in a line
_MAX_SHAPES: Final = 3  # errors in a line, the most frequent ones
_FAILED: Final = "failed"  # messages whose handler failed, also if that is an ack
PAST: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}
"""What messages are after a verb, in the order of a line."""

Held = tuple[GroupLedger, Callable[[], Sequence[Range]]]  # a group, and the messages of a lease


@contextmanager
def reported_work(held: Sequence[Held], worker_id: str | None) -> Iterator[Callable[..., Any]]:
    """Yield ``run(handler, *arguments)``, which reports the work if the program has an SDK."""
    # A settle in the block belongs to the trace, but its time to no span of the work.
    reporter = current_reporter()
    if reporter is None:
        yield operator.call
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
    for r in ranges:
        for piece in index.slices(r.first, r.last):
            yield replace(piece, rows=min(piece.rows, rows))
            rows -= piece.rows
            if rows <= 0:
                return


def describe_settled(parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]) -> str:
    done: Counter[str] = Counter()
    for part, outcome in zip(parts, outcomes, strict=True):
        done[part.verb] += outcome.settled
    return ", ".join(f"{show_number(count)} {PAST[verb]}" for verb, count in done.items())


def isolation_text(ledgers: Sequence[GroupLedger]) -> str:
    """Return how far the isolation of suspects is, or an empty string. A store may fail."""
    shown = ""
    with suppress(SparkMQError, *STORE_ERRORS):
        texts = [(ledger.name, ledger.stats().isolation) for ledger in ledgers]
        named = [f"{name}: {text}" if len(texts) > 1 else text for name, text in texts if text]
        shown = ", ".join(named)
    return shown


class VerdictLog:
    """Logs the numbers of acked, nacked, rejected and dead messages. Thread-safe.

    The first failure is logged at once, and then one line every ten seconds in which something was
    settled. It is a warning if messages are dead. A group without failures logs nothing until ten
    seconds have passed. A line ends with what `isolation` returns.
    """

    def __init__(
        self,
        group: str,
        clock: Callable[[], float] = time.monotonic,
        isolation: Callable[[], str] = str,
    ) -> None:
        self._group = group
        self._clock = clock
        self._progress = progress()  # of the thread that starts the work
        self._isolation = isolation
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: dict[str, Counter[str]] = {NACK: Counter(), REJECT: Counter()}  # by shape
        self._since = clock()
        self._lines = 0

    def add(self, parts: Sequence[SettlePart], outcomes: Sequence[SettleOutcome]) -> bool:
        """Count verdicts, and log them if a line is due. Return whether one was."""
        settled = sum(done.settled - done.states.get(AVAILABLE, 0) for done in outcomes)
        if settled:
            self._progress.finish(settled)
        for part, outcome in zip(parts, outcomes, strict=True):
            self._note_failures(part, outcome)
        with self._lock:
            for part, outcome in zip(parts, outcomes, strict=True):
                self._counts[part.verb] += outcome.settled
                if part.handler_failed:
                    self._counts[_FAILED] += outcome.settled
                self._counts[DEAD] += sum(
                    outcome.states.get(state, 0) for state in (DEAD, TRANSFERRING)
                )
                if part.verb in self._errors and part.error and outcome.settled:
                    self._errors[part.verb][recent_error_shape(part.error)] += outcome.settled
            due = self._clock() - self._since >= EVERY
            return (due or (not self._lines and self._has_failures())) and self._write()

    def _note_failures(self, part: SettlePart, outcome: SettleOutcome) -> None:
        if outcome.settled and (part.verb == NACK or part.handler_failed):
            first = outcome.ranges[0][0]
            sequence = first if outcome.ranges == [(first, first)] else None
            retry_at = outcome.next_due_at if AVAILABLE in outcome.states else None
            self._progress.fail(outcome.settled, part.error or "", sequence, retry_at)

    def flush(self) -> None:
        """Log what is not logged yet, but nothing for a short run without failures."""
        with self._lock:
            if self._lines or self._has_failures():
                self._write()

    def _has_failures(self) -> bool:
        return any(self._counts[name] > 0 for name in (NACK, REJECT, DEAD, _FAILED))

    def _write(self) -> bool:
        counts, now = self._counts, self._clock()
        shown = [self._shown(verb, name) for verb, name in PAST.items() if counts[verb]]
        if not shown:
            return False
        shown += [f"dead {show_number(counts[DEAD])}"] if counts[DEAD] else []
        seconds = now - self._since
        if seconds >= 1:
            shown.append(f"{show_short(sum(counts[verb] for verb in PAST) / seconds)}/s")
        shown += [text] if (text := self._isolation()) else []
        level = logging.WARNING if counts[DEAD] else logging.INFO
        _verdict_log.log(level, "group %s: %s", self._group, ", ".join(shown))
        self._counts, self._since, self._lines = Counter(), now, self._lines + 1
        self._errors = {verb: Counter() for verb in self._errors}
        return True

    def _shown(self, verb: str, name: str) -> str:
        errors = self._errors.get(verb, Counter())
        texts = [
            f"{printable(shape[:_MAX_ERROR])} x{show_number(count)}"
            for shape, count in errors.most_common(_MAX_SHAPES)
        ]
        texts += ["others"] if len(errors) > _MAX_SHAPES else []
        return f"{name} {show_number(self._counts[verb])}" + (
            f" ({'; '.join(texts)})" if texts else ""
        )
