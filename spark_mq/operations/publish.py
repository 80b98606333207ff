"""Publish tables and messages, and report it.

Messages whose dedup id was published before are left out. A producer numbers its commits, so each
lands once: the number is that of the last message, and ``messages/`` keeps it in the same commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.state import TableState
from spark_mq.errors import (
    BatchClosed,
    DuplicatePublish,
    InvalidOption,
    ProducerFenced,
    StorageError,
    TablesDisagree,
)
from spark_mq.ledger.settings import UNTIL_WINDOW, QueueSettings
from spark_mq.message import check_time, expires_too_early, to_publish
from spark_mq.operations.context import QueueContext
from spark_mq.parquet.lease_columns import sort_by_slot
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.publishes import (
    PendingPublish,
    PublishReceipt,
    check_txn,
    hashed_ids,
    producer_txn,
)
from spark_mq.storage.stored_entries import check_open
from spark_mq.telemetry import Destination, SendReport, add_headers, current_reporter, trace_headers
from spark_mq.util.clock import MICROSECOND, Duration
from spark_mq.util.show import shell_command
from spark_mq.util.validation import validate_choice, validate_count, validate_name


@contextmanager
def _sending(
    context: QueueContext,
    messages: int,
    *,
    message_id: str | None = None,
    created: Iterable[Mapping[str, str]] = (),
) -> Iterator[SendReport]:
    """Report the publish in a block, if the program has an SDK."""
    reporter = current_reporter()
    if reporter is None:
        yield SendReport()
        return
    destination = Destination.of(context.path)
    with reporter.sending(destination, messages, message_id=message_id, created=created) as report:
        yield report


def publish_table(
    context: QueueContext,
    table: pa.Table,
    *,
    txn: tuple[str, int] | None,
    batch: str | None = None,
    after: int | None = None,
    note: Mapping[str, Any] | None = None,
    check: Callable[[TableState], None] | None = None,
    message_id: str | None = None,
    created: Iterable[Mapping[str, str]] = (),
) -> PublishReceipt:
    """Publish a table of :func:`spark_mq.message.to_publish` as one commit, each id once.

    Messages without a trace's context get the caller's. `message_id` and `created` are for the
    report. Raise as :meth:`MessageTable.commit`.
    """
    with _sending(context, table.num_rows, message_id=message_id, created=created) as report:
        if report.headers:
            table = _with_headers(table, report.headers)
        pending = pending_of(context, table, batch)
        return publish_pending(
            context.messages, pending, txn=txn, after=after, note=note, check=check
        )


def _publish_nothing(
    context: QueueContext, txn: tuple[str, int] | None, batch: str | None
) -> PublishReceipt:
    """Raise DuplicatePublish for a number that has landed, and BatchClosed, as with messages."""
    if txn is not None:
        check_txn(context.messages.last_number(txn[0]), txn)
    if batch is not None:
        check_open(context.messages.look(), batch, context.path)
    return PublishReceipt(None, range(0))


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
    created = (dict(row["headers"]) for row in rows if row.get("headers"))
    with _sending(context, len(rows), created=created) as report:
        outcome = send()
        if isinstance(outcome, BaseException):
            report.error = outcome
        return outcome


def report_files(context: QueueContext, messages: int, publish: Callable[[], object]) -> None:
    """Report the publish of files, which were written before and so have no context."""
    try:
        with _sending(context, messages):
            publish()
    finally:
        if (reporter := current_reporter()) is not None:
            reporter.flush()  # Spark may end the process at any time


_DEDUP_ID: Final = "dedup_id"


def check_dedup(settings: QueueSettings, path: str) -> None:
    if settings.dedup_window is None and settings.dedup_until == UNTIL_WINDOW:
        command = shell_command("queue", "configure", path, "--set", "dedup_window=1h")
        raise InvalidOption(
            "a message has a dedup_id, and the queue has no dedup_window. Set one, as by "
            f"queue.configure(dedup_window='1h') or {command}, or a dedup_until, or leave the "
            "dedup_id out",
            option=_DEDUP_ID,
            value=None,
        )


def pending_of(context: QueueContext, table: pa.Table, batch: str | None = None) -> PendingPublish:
    """Return the messages of a table with their dedup ids, if they have some."""
    if _DEDUP_ID not in table.schema.names:
        return pending_of_files(context, [table], batch=batch)
    column = table[_DEDUP_ID]
    ids = hashed_ids(column) if column.null_count < len(column) else ()
    return pending_of_files(context, [table.drop_columns([_DEDUP_ID])], ids, batch)


def pending_of_files(
    context: QueueContext,
    given: Sequence[pa.Table | WrittenFile],
    ids: Sequence[bytes | None] = (),
    batch: str | None = None,
) -> PendingPublish:
    """Return messages with their hashed dedup ids, if they have some."""
    store = context.messages
    if not any(ids):
        return PendingPublish(store.files, given, lanes=store.lanes, batch=batch)
    settings = context.settings
    check_dedup(settings, context.path)
    return PendingPublish(
        store.files,
        given,
        ids,
        context.now(),
        None if settings.dedup_window is None else settings.dedup_window // MICROSECOND,
        ask=None if settings.dedup_until == UNTIL_WINDOW else context.held_ids,
        lanes=store.lanes,
        batch=batch,
        replaces=settings.dedup_replaces,
    )


def publish_pending(
    messages: MessageTable,
    pending: PendingPublish,
    *,
    txn: tuple[str, int] | None = None,
    after: int | None = None,
    note: Mapping[str, Any] | None = None,
    check: Callable[[TableState], None] | None = None,
) -> PublishReceipt:
    try:
        receipt = messages.commit(pending, txn=txn, after=after, note=note, check=check)
    except (BatchClosed, DuplicatePublish, InvalidOption, ProducerFenced):
        pending.discard()
        raise
    except TablesDisagree:
        if not pending.tried:
            pending.discard()
        raise
    except StorageError as error:
        # In an object store a commit may land later still.
        if error.data["landed"] is False and messages.files.is_local:
            pending.discard()
        raise
    pending.discard(keep=pending.landed)
    return receipt


def publish_messages(
    context: QueueContext,
    messages: Any,
    *,
    producer_id: str | None,
    producer_sequence: int | None,
    on_duplicate: str,
    deliver_at: datetime | Duration | None,
    batch_id: str | None = None,
) -> PublishReceipt:
    """Publish messages as one commit, as :meth:`spark_mq.Queue.publish` describes."""
    txn = _publish_txn(producer_id, producer_sequence, on_duplicate)
    batch = None if batch_id is None else validate_name("batch_id", batch_id)
    now = context.now()
    times = context.settings.default_times(now)
    if deliver_at is not None:
        times = {**times, "deliver_at": check_time("deliver_at", deliver_at, now)}
    table = to_publish(messages, now, times)
    _check_lifetimes(table)
    try:
        return _publish_own(context, table, txn, batch)
    except DuplicatePublish as error:
        # Only the latest number has a receipt: older ones need a look at the whole log.
        first = None
        if txn is not None and error.data["last_sequence"] == txn[1]:
            first = _of_first_call(context, table, context.messages.receipt(*txn))
        if on_duplicate == "skip":
            return replace(first or PublishReceipt(None, range(0)), duplicate=True)
        raise DuplicatePublish(str(error), **{**error.data, "receipt": first}) from None


def _publish_own(
    context: QueueContext, table: pa.Table, txn: tuple[str, int] | None, batch: str | None
) -> PublishReceipt:
    if table.num_rows == 0:
        return _publish_nothing(context, txn, batch)
    alone = table["message_id"][0].as_py() if table.num_rows == 1 else None
    own = table["headers"] if "headers" in table.schema.names else None
    created = () if own is None or own.null_count == len(own) else trace_headers(own)
    return publish_table(context, table, txn=txn, batch=batch, message_id=alone, created=created)


def _check_lifetimes(table: pa.Table) -> None:
    if not {"deliver_at", "expires_at"} <= set(table.schema.names):
        return
    never = pc.less_equal(table["expires_at"], table["deliver_at"]).fill_null(False)
    if (at := pc.index(never, True).as_py()) >= 0:
        raise expires_too_early(
            f"message {at}", table["expires_at"][at].as_py(), table["deliver_at"][at].as_py()
        )


def _of_first_call(
    context: QueueContext, table: pa.Table, first: PublishReceipt | None
) -> PublishReceipt | None:
    """Return the receipt of a commit with the positions of its messages, if they are the same."""
    if first is None:
        return None
    messages, duplicates, met_before = context.messages, dict[int, int](), set[int]()
    if _DEDUP_ID in table.schema.names:
        known = messages.known_ids(hashed_ids(table[_DEDUP_ID]))
        # Of messages with one id, the first was published, or the last if that replaces others.
        places = reversed(known) if context.settings.dedup_replaces else known
        for at in places:
            met = known[at]
            if met in met_before or met not in first.sequences:
                duplicates[at] = met
            met_before.add(met)
        duplicates = dict(sorted(duplicates.items()))
    left = [at not in duplicates for at in range(table.num_rows)]
    fresh = table.filter(pa.array(left, pa.bool_()))
    if fresh.num_rows != len(first.sequences):
        return first  # other messages, or their ids have expired
    return first.sorted_by(sort_by_slot(fresh, messages.lanes).places).with_duplicates(duplicates)


def _publish_txn(
    producer_id: str | None, producer_sequence: int | None, on_duplicate: str
) -> tuple[str, int] | None:
    if (producer_id is None) != (producer_sequence is None):
        raise InvalidOption(
            "producer_id and producer_sequence go together",
            option="producer_sequence",
            value=producer_sequence,
        )
    skip = validate_choice("on_duplicate", on_duplicate, ("raise", "skip")) == "skip"
    if skip and producer_id is None:
        raise InvalidOption(
            "on_duplicate='skip' needs a producer_id and a producer_sequence: without these no "
            "call is known to repeat another",
            option="on_duplicate",
            value=on_duplicate,
        )
    if producer_id is None:
        return None
    number = validate_count("producer_sequence", producer_sequence, least=0, most=2**63 - 1)
    return producer_txn(producer_id), number


class Producer:
    """Commits files of messages in order, each once."""

    def __init__(self, messages: MessageTable, producer_id: str | None = None) -> None:
        self._messages = messages
        self.named = producer_id is not None  # continues after a restart
        # `number` is that of the last message that has landed, or 0 before the first.
        if producer_id is None:
            self._app, self.number = f"spark_mq.publisher:{uuid.uuid4().hex}", 0
        else:
            self._app = producer_txn(producer_id)
            self.number = messages.last_number(self._app) or 0

    def commit(self, pending: PendingPublish) -> PublishReceipt:
        """Publish messages once, also if an earlier try has landed. Each duplicate counts, too."""
        number = self.number + pending.rows
        receipt = self._messages.commit(
            pending, txn=(self._app, number), after=self.number if self.named else None
        )
        pending.discard(keep=pending.landed)
        self.number = number
        return receipt

    def skip(self, messages: int) -> None:
        """Give up messages that have failed. Their number is not used again."""
        self.number += messages
