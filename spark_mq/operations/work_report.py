"""Report the work on a lease as a span that links to the creation of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.signals import destination_of
from spark_mq.parquet.reader import MessageReader
from spark_mq.telemetry.conventions import trace_headers
from spark_mq.telemetry.reporter import MAX_LINKS, WorkReport, current_reporter

__all__ = ["reported_work"]

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
                            destination_of(ledger.queue_path, ledger.name),
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
