"""Publish dead letters into their queue again, or into another one, each once.

A letter goes back to the group in which it died: each data file names its group, and the leases of
other groups skip it. Files for all groups, and those in another queue, name none.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.object_store import canonical_uri
from spark_mq.errors import CorruptLog, GroupNotFound, InvalidOption, NotAQueue, QueueNotFound
from spark_mq.ledger.intervals import Interval, from_sequences
from spark_mq.ledger.interventions import Freeze, Unfreeze
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Range
from spark_mq.maintenance.condition import Where, condition_of
from spark_mq.maintenance.dead_letters import (
    COLUMNS,
    Transfer,
    as_messages,
    is_own_letter,
    letter_schema,
    letter_tables,
)
from spark_mq.maintenance.remaining_letters import (
    GROUP,
    REDRIVE,
    SEQUENCE,
    candidates,
    try_condition,
    warn_unrouted,
    without_purged,
)
from spark_mq.maintenance.transform import ERROR, RepairFunction, before_and_after, repair_of
from spark_mq.message import HEADER_PREFIX, REDRIVEN_FROM, REPAIRED, Format
from spark_mq.operations.context import QueueContext, group_not_found
from spark_mq.operations.create import open_context, place_of
from spark_mq.parquet.writer import WrittenFile, discard_files
from spark_mq.util.error_shape import error_shapes
from spark_mq.util.progress import progress
from spark_mq.util.records import Record, object_html, table_html
from spark_mq.util.show import show_count, show_number, show_some
from spark_mq.util.validation import truncate_error, validate_count, validate_rate

__all__ = [
    "COLUMNS",
    "Redrive",
    "RedriveResult",
    "goes_to_other",
    "letter_schema",
    "redrive",
]

_log = logging.getLogger(__name__)

REPAIR: Final = "repair"  # what the reason begins with of letters that a transform repairs
_MAX_FAILURES: Final = 20  # in the result
_MAX_NAMED: Final = 10  # groups in a text
_TO: Final = "to "  # what the reason begins with that names another queue
_ALL: Final = "all groups"  # the reason if all groups get the messages
_LETTER: Final = HEADER_PREFIX + "dead_letter"  # in a message of another queue: its dead letter

_COUNTED: Final = (SEQUENCE, GROUP)  # the columns that a count needs
CHUNK: Final = 10_000  # messages looked at, and redriven, by one round of commits


@dataclass(frozen=True, slots=True)
class RedriveResult(Record):
    """The result of a redrive, or of a dry run.

    ``messages`` is the number of letters. ``table`` has the letters of a dry run, with the columns
    of ``redrive.COLUMNS``, and is None after a redrive. With a transform, it has what becomes of
    them in ``new_key``, ``new_value``, ``new_headers`` and ``new_priority``, or the reason in
    ``transform_error``. ``failed`` counts the letters that the transform fails for, which stay
    letters, and ``failures`` counts them by the shape of that reason.

    ``groups`` counts the messages by the group that alone gets them. It is empty if all groups do,
    or if another queue gets them. ``without_group`` counts the letters that stay because their
    group does not exist, by its name, which is empty if a letter does not say it.
    """

    messages: int
    table: pa.Table | None = None
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict, hash=False)
    groups: Mapping[str, int] = field(default_factory=dict, hash=False)
    without_group: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def destination(self) -> str:
        """Return how many messages go to which group, such as "2 to group mail"."""
        parts = [f"{show_number(n)} to group {name}" for name, n in self.groups.items()]
        return show_some(parts, _MAX_NAMED)

    @property
    def staying(self) -> str:
        """Return which letters stay because their group does not exist, or an empty text."""
        if not self.without_group:
            return ""
        parts = [
            f"{name or 'unknown'} ({show_number(n)})" for name, n in self.without_group.items()
        ]
        letters = show_count(sum(self.without_group.values()), "letter")
        return f"{letters} of groups that do not exist stay: {show_some(parts, _MAX_NAMED)}"

    def to_arrow(self) -> pa.Table:
        """Return the letters of a dry run, or the numbers in a table of one row."""
        if self.table is not None:
            return self.table
        return pa.table({"messages": [self.messages], "failed": [self.failed]})

    def _repr_html_(self) -> str:
        what = "redriven" if self.table is None else "to redrive"
        title = f"{show_count(self.messages, 'message')} {what}"
        if self.table is None:
            own = {"messages": self.messages, "failed": self.failed, "groups": dict(self.groups)}
            return object_html(own | {"without_group": dict(self.without_group)}, title)
        return table_html(self.table, title)


def redrive(
    context: QueueContext,
    where: Where | None,
    limit: int | None,
    dry_run: bool,
    rate: float | None,
    *,
    to: Any = None,
    stop: threading.Event | None = None,
    transform: str | RepairFunction | None = None,
    format: Format | None = None,
    to_all_groups: bool = False,
    count_only: bool = False,
) -> RedriveResult:
    """Redrive as :meth:`spark_mq.Queue.redrive`. A dry run may only count, without payloads."""
    left = None if limit is None else validate_count("limit", limit, most=2**63 - 1)
    chunk = CHUNK if rate is None else max(1, min(CHUNK, int(validate_rate("rate", rate))))
    condition = condition_of(where, stop=stop)
    repair = repair_of(transform, format, stop)
    to = None if to is None else _other_queue(context, place_of(to))
    if not count_only:
        warn_unrouted(context)
    if condition is not None and condition.may_fail and not dry_run:
        try_condition(context, condition, left, CHUNK)
    all_groups = to is not None or to_all_groups
    asked = _Asked(getattr(condition, "name", None), to, getattr(repair, "name", None), all_groups)
    with_payloads = repair is not None or (dry_run and not count_only)
    columns = COLUMNS if with_payloads else _COUNTED
    pause = 0.0
    total = 0 if dry_run else Redrive(context).finish_all()
    tables: list[pa.Table] = []
    failures, groups, missing = Counter[str](), Counter[str](), Counter[str]()
    letters = candidates(context, condition, chunk, columns)
    for table in _chosen(context, letters, left, None if all_groups else missing):
        publishes, repaired = table if repair is None else repair.apply(table), None
        if stop is not None and stop.is_set():
            break
        if repair is not None:
            errors = publishes[ERROR].combine_chunks()
            failures.update(pc.drop_null(error_shapes(errors)).to_pylist())
            fits = pc.is_null(errors)
            table = before_and_after(table, publishes) if dry_run else table.filter(fits)
            publishes = repaired = publishes.filter(fits)
        if dry_run:
            tables.append(table)
            total += publishes.num_rows
            groups.update(publishes[GROUP].to_pylist())
        elif table.num_rows:
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                break
            sequences = from_sequences(table[SEQUENCE].to_pylist())
            moved, own = _redrive(context, sequences, asked, repaired)
            progress().finish(moved)
            total += moved
            groups.update(own)
            pause = 0.0 if rate is None else table.num_rows / rate
    empty = letter_schema().empty_table().select(columns)
    if repair is not None:
        empty = before_and_after(empty, repair.apply(empty))
    result = RedriveResult(
        total,
        pa.concat_tables([empty, *tables]) if dry_run else None,
        failures.total(),
        dict(failures.most_common(_MAX_FAILURES)),
        {} if all_groups else dict(groups),
        dict(missing),
    )
    if missing and not count_only:
        _log.warning(
            "%s. To publish them, create the group with the start 'latest', so that it gets no "
            "others, or give to_all_groups=True (--all-groups)",
            result.staying,
        )
    return result


def _chosen(
    context: QueueContext,
    letters: Iterable[pa.Table],
    limit: int | None,
    missing: Counter[str] | None,
) -> Iterator[pa.Table]:
    """Yield letters up to a limit. With `missing`, count there those whose group is missing."""
    for table in letters:
        table = table if missing is None else _of_groups(context, table, missing)
        if limit is not None:
            table = table.slice(0, limit)
            limit -= table.num_rows
        yield table
        if limit == 0:
            return


def _of_groups(context: QueueContext, letters: pa.Table, missing: Counter[str]) -> pa.Table:
    """Return the letters whose group exists. Count the others by their group."""
    names = pc.fill_null(letters[GROUP], "")
    known = pc.is_in(names, value_set=pa.array(context.ledgers.groups(), pa.string()))
    missing.update(names.filter(pc.invert(known)).to_pylist())
    return letters.filter(known)


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
    """What a person asked for: a condition, the place of the messages, and a transform."""

    where: str | None = None
    to: str | None = None  # the path of another queue
    transform: str | None = None
    all_groups: bool = False  # all groups get the messages, as they always do in another queue

    @property
    def place(self) -> str | None:
        if self.to is not None:
            return _TO + self.to
        return _ALL if self.all_groups else None

    @property
    def detail(self) -> str | None:
        parts = self.where, self.place, self.transform and f"by {self.transform}"
        return truncate_error(" ".join(filter(None, parts))) or None

    @classmethod
    def of(cls, place: str | None) -> _Asked:
        """Return what somebody asked for, as far as its place says it."""
        to = place.removeprefix(_TO) if place and place.startswith(_TO) else None
        return cls(to=to, all_groups=place is not None)


def goes_to_other(reasons: pa.Array) -> pa.Array:
    """Return a mask of the reasons of transfers to another queue. Null stays null."""
    return pc.match_substring_regex(reasons, f"^({REPAIR} )?{_TO}")


def _redrive(
    context: QueueContext, intervals: Sequence[Interval], asked: _Asked, repaired: pa.Table | None
) -> tuple[int, Mapping[str, int]]:
    """Redrive letters. Return the number of messages, and by the only group that gets them."""
    transfer = Redrive(context, intervals, asked, repaired)
    transfer_id = transfer.freeze()
    moved = 0 if transfer_id is None else transfer.finish(transfer_id)
    return moved, transfer.groups if moved else {}


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
        self._asked = asked
        self.detail = asked.detail
        self.groups = Counter[str]()  # the messages that were written, by the only group of each
        self._existing: Collection[str] | None = None  # groups, or None if all names will do
        self._context = context
        self._intervals = intervals
        self._repaired = repaired

    def freezing(self, transfer_id: str) -> Freeze:
        how = None if self._repaired is None else REPAIR
        reason = " ".join(filter(None, (how, self._asked.place))) or None
        return Freeze(transfer_id, self._intervals, reason)

    def begun(self, r: Range, index: MessageIndex | None = None) -> Transfer | None:
        if not self._owns(r, index or self.source.messages.index(r.last)):
            return None  # the queue that has begun it finishes it
        reason = r.reason or ""
        asked = _Asked.of(reason.removeprefix(REPAIR).strip() or None)
        to = asked.to
        try:
            kind = _BegunRepair if reason.startswith(REPAIR) else Redrive
            return kind(self._context, asked=asked)
        except (QueueNotFound, NotAQueue) as error:
            _log.error(
                "dead letters stay in transfer to %s: %s. Once the queue is there again, the next "
                "redrive of %s finishes it",
                to, error, self._context.path,
            )  # fmt: skip
            return None

    def _owns(self, r: Range, index: MessageIndex) -> bool:
        """Return whether letters are of this queue. Others may have the same dead-letter queue."""
        kept = without_purged(self.source.queue, [r])
        tables = letter_tables(self.source.messages, index, kept, 1)
        try:
            letter = next(tables, None)
        except CorruptLog:
            return True  # as most letters are
        return letter is None or pc.all(is_own_letter(self._context, letter)).as_py()

    def finish(self, transfer_id: str) -> int:
        self._existing = self._context.ledgers.groups()
        try:
            return super().finish(transfer_id)
        except GroupNotFound as error:  # it was dropped since, so nobody would get the message
            _log.warning("dead letters stay: %s", error)
            return self._settle_repair(transfer_id)

    def settle(self, transfer_id: str) -> int:
        if self._repaired is None:
            return super().settle(transfer_id)
        return self._settle_repair(transfer_id)

    def _settle_repair(self, transfer_id: str) -> int:
        """Settle letters that are published. Give others back, and prevent their publish."""
        # Only the process that has a transform can publish repaired ones. It may be dead or slow.
        if self.target.has_or_fence(transfer_id, 1):
            return super().settle(transfer_id)
        self.source.run(Unfreeze(transfer_id))
        return 0

    def write(self, ranges: Sequence[Range]) -> list[WrittenFile]:
        wanted = without_purged(self.source.queue, ranges)
        files: list[WrittenFile] = []
        try:
            self._write(wanted, files)
        except BaseException:
            discard_files(self.target.files, files)
            raise
        for file in files:
            self.groups[file.group] += file.rows
        return files

    def _write(self, intervals: Sequence[Interval], files: list[WrittenFile]) -> None:
        """Write dead letters as messages."""
        if self._repaired is not None:
            self._write_file(_within(self._repaired, intervals), files)
            return
        messages = self.source.messages
        for table in letter_tables(messages, messages.index(), intervals, CHUNK):
            self._write_file(table, files)

    def _write_file(self, table: pa.Table, files: list[WrittenFile]) -> None:
        for group, letters in self._by_group(table):
            messages = self._as_messages(letters)
            file = self.target.write_file(messages)
            files.append(replace(file, group=group))

    def _by_group(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield letters with the only group that gets them, or all of them if all groups do."""
        if self._asked.all_groups:
            yield "", table
            return
        names = pc.fill_null(table[GROUP], "")
        for name in names.unique().to_pylist():
            if self._existing is not None and name not in self._existing:
                raise group_not_found(self._context, name)
            yield name, table.filter(pc.equal(names, name))

    def _as_messages(self, table: pa.Table) -> pa.Table:
        more = [] if self._repaired is None else [(REPAIRED, "true")]
        # In another queue the number of a letter would name one of its own letters.
        if self._asked.to is None:
            return as_messages(table, REDRIVEN_FROM, more)
        return as_messages(table, _LETTER, [(HEADER_PREFIX + "queue", self._context.path), *more])

    def commit_info(self) -> Mapping[str, Any]:
        return {"messages": self.groups.total()}


def _within(letters: pa.Table, intervals: Sequence[Interval]) -> pa.Table:
    """Return the letters of some intervals. All of them are in order."""
    sequences = letters[SEQUENCE].to_pylist()
    slices = [letters.slice(0, 0)]
    for first, last in intervals:
        begin, end = bisect_left(sequences, first), bisect_right(sequences, last)
        slices.append(letters.slice(begin, end - begin))
    return pa.concat_tables(slices)


class _BegunRepair(Redrive):
    """A repair of a process that may be dead, whose transform nobody else has."""

    def finish(self, transfer_id: str) -> int:
        return self._settle_repair(transfer_id)
