"""Publish dead letters into their queue again, or into another one, each once.

A redrive is a transfer, as routing is. A reserved group of the dead-letter queue holds the redriven
letters in its ledger. While they are in transfer, their reason names the other queue, so that
another process can finish it. If a transform repairs them, only the process that has it can publish
them. So another process gives them back, after it has fenced that publish.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.object_store import canonical_uri
from spark_mq.errors import InvalidOption, NotAQueue, QueueNotFound
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.routing import Freeze, Unfreeze
from spark_mq.maintenance.condition import Condition
from spark_mq.maintenance.dead_letters import (
    COLUMNS,
    Transfer,
    is_own_letter,
    letter_schema,
    letter_tables,
)
from spark_mq.maintenance.find_letters import (
    REDRIVE,
    SEQUENCE,
    candidates,
    try_condition,
    warn_unrouted,
)
from spark_mq.maintenance.sql_functions import error_shapes
from spark_mq.maintenance.transform import ERROR, RepairFunction, before_and_after, repair_of
from spark_mq.operations.context import QueueContext
from spark_mq.operations.create import open_context, place_of
from spark_mq.operations.history import HEADER_PREFIX, REDRIVEN_FROM, REPAIRED
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.parquet.writer import WrittenFile, discard_files, write_file
from spark_mq.payload_format import Format
from spark_mq.util.progress import progress
from spark_mq.util.records import Record, object_html, table_html
from spark_mq.util.show import show_count
from spark_mq.util.validation import truncate_error, validate_count, validate_rate

__all__ = [
    "COLUMNS",
    "REPAIR",
    "Redrive",
    "RedriveResult",
    "letter_schema",
    "redrive",
]

_log = logging.getLogger(__name__)

REPAIR: Final = "repair"  # what the reason begins with of letters that a transform repairs
_MAX_FAILURES: Final = 20  # in the result
_TO: Final = "to "  # what the reason begins with that names another queue
_LETTER: Final = HEADER_PREFIX + "dead_letter"  # in a message of another queue: its dead letter

CHUNK: Final = 10_000  # messages looked at, and redriven, by one round of commits


@dataclass(frozen=True, slots=True)
class RedriveResult(Record):
    """The result of a redrive, or of a dry run.

    ``messages`` is the number of letters. ``table`` has the letters of a dry run, with the columns
    of ``redrive.COLUMNS``. It is None after a redrive. With a transform, the table has what it
    makes of them in ``new_key``, ``new_value``, ``new_headers`` and ``new_priority``, and the
    reason in ``transform_error`` if it fails. ``failed`` counts the letters that it fails for,
    which stay letters, and ``failures`` counts them by the shape of that reason.
    """

    messages: int
    table: pa.Table | None = None
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict, hash=False)

    def to_arrow(self) -> pa.Table:
        """Return the letters of a dry run, or the numbers in a table of one row."""
        if self.table is not None:
            return self.table
        return pa.table({"messages": [self.messages], "failed": [self.failed]})

    def _repr_html_(self) -> str:
        what = "redriven" if self.table is None else "to redrive"
        title = f"{show_count(self.messages, 'message')} {what}"
        if self.table is None:
            return object_html({"messages": self.messages, "failed": self.failed}, title)
        return table_html(self.table, title)


def redrive(
    context: QueueContext,
    where: str | None,
    limit: int | None,
    dry_run: bool,
    rate: float | None,
    *,
    to: Any = None,
    stop: threading.Event | None = None,
    transform: str | RepairFunction | None = None,
    format: Format | None = None,
) -> RedriveResult:
    """Redrive as :meth:`spark_mq.Queue.redrive`."""
    left = None if limit is None else validate_count("limit", limit, most=2**63 - 1)
    chunk = CHUNK if rate is None else max(1, min(CHUNK, int(validate_rate("rate", rate))))
    condition = None if where is None else Condition(where)
    repair = repair_of(transform, format)
    to = None if to is None else _other_queue(context, place_of(to))
    warn_unrouted(context)
    if condition is not None and condition.may_fail and not dry_run:
        try_condition(context, condition, left, CHUNK)
    pause = 0.0
    total = 0 if dry_run else Redrive(context).finish_all()
    found: list[pa.Table] = []
    failures: Counter[str] = Counter()
    columns = COLUMNS if dry_run or repair else [SEQUENCE]
    for letters in candidates(context, condition, chunk, columns):
        table = letters if left is None else letters.slice(0, left)
        left = None if left is None else left - table.num_rows
        repaired = None if repair is None else repair.apply(table)
        if repaired is not None:
            errors = repaired[ERROR].combine_chunks()
            failures.update(pc.drop_null(error_shapes(errors)).to_pylist())
            fits = pc.is_null(errors)
            table = before_and_after(table, repaired) if dry_run else table.filter(fits)
            repaired = repaired.filter(fits)
        if dry_run:
            found.append(table)
            total += table.num_rows if repaired is None else repaired.num_rows
        elif table.num_rows:
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                break
            chosen = from_sequences(table[SEQUENCE].to_pylist())
            asked = _Asked(where, to, None if repair is None else repair.name)
            moved = _redrive(context, chosen, asked, repaired)
            progress().finish(moved)
            total += moved
            pause = 0.0 if rate is None else table.num_rows / rate
        if left == 0:
            break
    empty = letter_schema().empty_table()
    if repair is not None:
        empty = before_and_after(empty, repair.apply(empty))
    return RedriveResult(
        total,
        pa.concat_tables([empty, *found]) if dry_run else None,
        failures.total(),
        dict(failures.most_common(_MAX_FAILURES)),
    )


def _other_queue(context: QueueContext, path: str) -> str | None:
    """Return the path of another queue, or None for the queue itself. Raise InvalidOption."""
    options = context.storage_options
    if canonical_uri(path, options) == canonical_uri(context.path, options):
        return None
    if is_in_memory(path) and not is_in_memory(context.path):
        raise InvalidOption(
            f"to={path!r} is kept in memory, so the letters would be lost with this process. "
            "Redrive to a queue in a store",
            option="to",
            value=path,
        )
    if open_context(path, options, context.clock).settings.is_dead_letter_queue:
        raise InvalidOption(
            f"to={path!r} is a dead-letter queue, and its letters are of other queues. Redrive to "
            "a queue whose groups process the messages",
            option="to",
            value=path,
        )
    return path


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person asked for: a condition, the path of another queue, and a transform."""

    where: str | None = None
    to: str | None = None
    transform: str | None = None

    @property
    def detail(self) -> str | None:
        parts = self.where, self.to and _TO + self.to, self.transform and f"by {self.transform}"
        return truncate_error(" ".join(filter(None, parts))) or None


def _redrive(
    context: QueueContext, intervals: Sequence[Interval], asked: _Asked, repaired: pa.Table | None
) -> int:
    transfer = Redrive(context, intervals, asked, repaired)
    transfer_id = transfer.freeze()
    return 0 if transfer_id is None else transfer.finish(transfer_id)


class Redrive(Transfer):
    prefix = "redrive"
    operation = "redrive"
    event = "redriven"

    def __init__(
        self,
        context: QueueContext,
        intervals: Sequence[Interval] = (),
        asked: _Asked = _Asked(),
        repaired: pa.Table | None = None,
    ) -> None:
        to = asked.to
        target = context if to is None else open_context(to, context.storage_options, context.clock)
        super().__init__(context.dead_letters().group(REDRIVE), target.messages)
        self._to = to
        self.detail = asked.detail
        self._context = context
        self._intervals = intervals
        self._repaired = repaired
        self._messages = 0

    def freezing(self, transfer_id: str) -> Freeze:
        how = None if self._repaired is None else REPAIR
        reason = " ".join(filter(None, (how, self._to and _TO + self._to))) or None
        return Freeze(transfer_id, self._intervals, reason)

    def begun(self, r: Range) -> Transfer | None:
        reason = r.reason or ""
        to = reason.removeprefix(REPAIR).strip().removeprefix(_TO) or None
        try:
            if reason.startswith(REPAIR):
                return _BegunRepair(self._context, asked=_Asked(to=to))
            return self if to == self._to else Redrive(self._context, asked=_Asked(to=to))
        except (QueueNotFound, NotAQueue) as error:
            _log.error(
                "dead letters stay in transfer to %s: %s. Once the queue is there again, the next "
                "redrive of %s finishes it",
                to, error, self._context.path,
            )  # fmt: skip
            return None

    def settle(self, transfer_id: str) -> int:
        if self._repaired is None:
            return super().settle(transfer_id)
        return self._settle_repair(transfer_id)

    def _settle_repair(self, transfer_id: str) -> int:
        """Settle repaired letters that are published. Give others back, and prevent their publish.

        Only the process that has the transform can publish them, and it may be dead or slow.
        """
        if self.target.has_or_fence(transfer_id, 1):
            return super().settle(transfer_id)
        self.source.run(Unfreeze(transfer_id))
        return 0

    def write(self, ranges: Sequence[Range]) -> list[WrittenFile] | None:
        trimmed = [(0, self.source.queue.horizon())]  # a purge may have dropped some of them
        wanted = subtract([(r.first, r.last) for r in ranges], trimmed)
        files: list[WrittenFile] = []
        try:
            own = self._write(wanted, files)
        except BaseException:
            discard_files(self.target.files, files)
            raise
        if not own:
            discard_files(self.target.files, files)
            return None  # begun by another queue with the same dead-letter queue, which finishes it
        self._messages = sum(file.rows for file in files)
        return files

    def _write(self, intervals: Sequence[Interval], files: list[WrittenFile]) -> bool:
        """Write dead letters as messages. Return False if some belong to another queue."""
        if self._repaired is not None:
            self._write_file(_within(self._repaired, intervals), files)
            return True
        for table in letter_tables(self.source.messages, intervals, CHUNK):
            if not pc.all(is_own_letter(self._context, table), min_count=0).as_py():
                return False
            self._write_file(table, files)
        return True

    def _write_file(self, table: pa.Table, files: list[WrittenFile]) -> None:
        messages = self._as_messages(table)
        files.append(write_file(self.target.files, messages, lanes=self.target.lanes))

    def _as_messages(self, table: pa.Table) -> pa.Table:
        more = [] if self._repaired is None else [(REPAIRED, "true")]
        # In another queue the number of a letter would name one of its own letters.
        if self._to is None:
            return _as_messages(table, REDRIVEN_FROM, more)
        return _as_messages(table, _LETTER, [(HEADER_PREFIX + "queue", self._context.path), *more])

    def commit_info(self) -> Mapping[str, Any]:
        return {"messages": self._messages}


def _within(letters: pa.Table, intervals: Sequence[Interval]) -> pa.Table:
    """Return the letters of some intervals. All of them are in order."""
    sequences = letters[SEQUENCE].to_pylist()
    found = [letters.slice(0, 0)]
    for first, last in intervals:
        begin, end = bisect_left(sequences, first), bisect_right(sequences, last)
        found.append(letters.slice(begin, end - begin))
    return pa.concat_tables(found)


class _BegunRepair(Redrive):
    """A repair of a process that may be dead, whose transform nobody else has."""

    def finish(self, transfer_id: str) -> int:
        return self._settle_repair(transfer_id)


def _as_messages(
    table: pa.Table, letter_header: str, more: Sequence[tuple[str, str]] = ()
) -> pa.Table:
    """Return dead letters as first published, with headers of their origin."""
    rows = zip(
        table["headers"].to_pylist(),
        table["consumer_group"].to_pylist(),
        table["reason"].to_pylist(),
        table[SEQUENCE].to_pylist(),
        strict=True,
    )
    headers = [
        [
            *(own or ()),
            (letter_header, str(seq)),
            *more,
            *([(HEADER_PREFIX + "group", group)] if group else []),
            # In its own queue, the trace of a message says why it died.
            *([(HEADER_PREFIX + "reason", reason)] if more and reason else []),
        ]
        for own, group, reason, seq in rows
    ]
    renewed = pa.array(headers, FILE_SCHEMA.field("headers").type)
    names = [f.name for f in FILE_SCHEMA if f.name in table.schema.names]
    return pa.table(
        [renewed if name == "headers" else table[name] for name in names],
        schema=pa.schema([FILE_SCHEMA.field(n) for n in names]),
    )
