"""Publish a table of messages, and report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mq.operations.context import QueueContext
from spark_mq.operations.signals import destination_of
from spark_mq.operations.unique_publish import store_table
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.storage.publish_receipt import PublishReceipt, check_txn
from spark_mq.telemetry.conventions import add_headers, trace_headers
from spark_mq.telemetry.reporter import Reporter, current_reporter

__all__ = ["publish_table", "report_files", "report_send", "with_own_context"]


def publish_table(
    context: QueueContext, table: pa.Table, txn: tuple[str, int] | None
) -> PublishReceipt:
    """Publish a table as one commit. Raise as ``MessageTable.publish``."""
    if table.num_rows == 0:
        return _publish_nothing(context, txn)
    reporter = current_reporter()
    if reporter is None:
        return store_table(context, table, txn)
    return _reported(reporter, context, table, txn)


def _publish_nothing(context: QueueContext, txn: tuple[str, int] | None) -> PublishReceipt:
    """Raise DuplicatePublish for a number that has landed, as with messages."""
    if txn is not None:
        check_txn(context.messages.last_number(txn[0]), txn)
    return PublishReceipt(None, range(0))


def _reported(
    reporter: Reporter, context: QueueContext, table: pa.Table, txn: tuple[str, int] | None
) -> PublishReceipt:
    """Publish with the trace's context in the headers of messages that have none."""
    alone = table["message_id"][0].as_py() if table.num_rows == 1 else None
    destination = destination_of(context.path)
    own = table["headers"] if "headers" in table.schema.names else None
    created = () if own is None or own.null_count == len(own) else trace_headers(own)
    count = table.num_rows
    with reporter.sending(destination, count, message_id=alone, created=created) as report:
        if report.headers:
            table = _with_headers(table, report.headers)
        return store_table(context, table, txn)


def _with_headers(table: pa.Table, extra: Mapping[str, str]) -> pa.Table:
    field = MESSAGE_SCHEMA.field("headers")
    if field.name not in table.schema.names:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    at = table.schema.get_field_index(field.name)
    return table.set_column(at, field, add_headers(table[field.name], extra))


def with_own_context(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the context of its caller's span, unless it has one."""
    reporter = current_reporter()
    extra = {} if reporter is None else reporter.context_headers()
    own = dict(row.get("headers") or ())
    if not extra or "traceparent" in own:
        return row
    return {**row, "headers": [*own.items(), *extra.items()]}


def report_send(
    context: QueueContext, rows: Sequence[Mapping[str, Any]], send: Callable[[], Any]
) -> Any:
    """Report the send of a buffered publisher. `send` returns the outcome or the error."""
    reporter = current_reporter()
    if reporter is None:
        return send()
    created = (dict(row["headers"]) for row in rows if row.get("headers"))
    with reporter.sending(destination_of(context.path), len(rows), created=created) as report:
        outcome = send()
        if isinstance(outcome, BaseException):
            report.error = outcome
        return outcome


def report_files(context: QueueContext, messages: int, publish: Callable[[], object]) -> None:
    """Report the publish of files, which were written before and so have no context."""
    reporter = current_reporter()
    if reporter is None:
        publish()
        return
    try:
        with reporter.sending(destination_of(context.path), messages):
            publish()
    finally:
        reporter.flush()  # Spark may end the process at any time
