"""Redrive: dead letters go back into the queue that they came from, each once, by three commits as in routing.

Freeze the chosen ones as ``routing`` under a new id, in the ledger of a reserved group of the DLQ; publish them into the queue under
``Transaction(redrive id)``; settle that id. Whoever comes next first finishes the ids that it finds.
"""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from spark_mq.errors import CorruptLog, DuplicatePublish, InvalidOption, SparkMQError
from spark_mq.group import LEASE_PAUSE
from spark_mq.ledger import admin as moving
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.intervals import Interval, from_sequences
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import DEAD, ROUTING, Ledger, LedgerHeader
from spark_mq.maintenance.dead_letters import HEADER_PREFIX
from spark_mq.parquet.reader import MessageReader, sequences_of
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.parquet.writer import write_file
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.storage.message_store import MessageStore
from spark_mq.util.validation import RESERVED_PREFIX, check_count, check_rate

if TYPE_CHECKING:
    from spark_mq.queue import Queue

__all__ = ["COLUMNS", "REDRIVE", "RedriveResult", "redrive"]

_log = logging.getLogger(__name__)

REDRIVE: Final = f"{RESERVED_PREFIX}redrive"
"""The reserved group of a DLQ in whose ledger stands what has been redriven."""

CHUNK: Final = 10_000
"""Messages looked at, and redriven, by one round of commits."""

_TOLD: Final = ("queue", "group", "sequence", "delivery_count", "failure_count", "reason", "error", "first_leased_at", "last_leased_at")
COLUMNS: Final = ("sequence", "message_id", "key", "value", "headers", "published_at", "queue", "consumer_group", "original_sequence",
                  "delivery_count", "failure_count", "reason", "error", "first_leased_at", "last_leased_at")  # fmt: skip
"""What ``where`` may name: ``sequence`` is that in the DLQ, ``original_sequence`` that in the queue; ``value`` is bytes."""

_AS: Final = {"group": "consumer_group", "sequence": "original_sequence"}
_TYPES: Final = {"sequence": pa.int64(), "delivery_count": pa.int64(), "failure_count": pa.int64(),
                 "first_leased_at": pa.timestamp("us", tz="UTC"), "last_leased_at": pa.timestamp("us", tz="UTC")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """What a redrive did, or with ``dry_run`` would do: how many ``messages``, and, for a dry run, which (``table``, see COLUMNS)."""

    messages: int
    table: pa.Table | None = None


def redrive(queue: Queue, where: str | None, limit: int | None, dry_run: bool, rate: float | None) -> RedriveResult:
    """Publishes dead letters of a queue into it again: see :meth:`spark_mq.Queue.redrive`."""
    left = None if limit is None else check_count("limit", limit, most=2**63 - 1)
    chunk = CHUNK if rate is None else max(1, min(CHUNK, int(check_rate("rate", rate))))
    _check_where(where)
    dead = queue.dead_letters
    _tell_unrouted(queue)
    pause = 0.0
    total = 0 if dry_run else sum(_finish(queue, redrive_id) for redrive_id in _unfinished(dead))
    found: list[pa.Table] = []
    for table in _candidates(queue, where, chunk):
        if left is not None:
            table = table.slice(0, left)
            left -= table.num_rows
        if dry_run:
            found.append(table)
            total += table.num_rows
        elif table.num_rows:
            time.sleep(pause)
            total += _redrive(queue, from_sequences(table["sequence"].to_pylist()))
            pause = 0.0 if rate is None else table.num_rows / rate
        if left == 0:
            break
    return RedriveResult(total, pa.concat_tables([_table(queue, []), *found]) if dry_run else None)


def _tell_unrouted(queue: Queue) -> None:
    """Dead messages that no sweep has sent to the DLQ yet are not redriven: they are named, for their owner may look for them."""
    unrouted = {name: dead for name in queue.groups() if (dead := _unrouted(queue, name))}
    if unrouted:
        _log.warning("%d dead messages of %s are not in the dead-letter queue yet, so they are not redriven: sweep first (queue.sweep())",
                     sum(unrouted.values()), ", ".join(f"group {name!r}" for name in unrouted))  # fmt: skip


def _unrouted(queue: Queue, group: str) -> int:
    try:
        ledger = queue.group(group).ledger()
    except SparkMQError as error:  # of a damaged one nothing can be told, and what others have sent is redriven all the same
        _log.warning("how many dead messages of group %r are not in the dead-letter queue yet cannot be told: %s", group, error)
        return 0
    return ledger.count(ledger.is_state(DEAD, ROUTING))


def _check_where(where: str | None) -> None:
    """Whether a condition can be run, before anything is. Raises InvalidOption."""
    if where is not None and not (isinstance(where, str) and where.strip()):
        raise InvalidOption(f"where={where!r} is not a condition: give SQL like \"reason = 'rejected'\"", option="where", value=where)
    _select(pa.table([pa.array([], f.type) for f in _schema()], schema=_schema()), where)


def _select(table: pa.Table, where: str | None) -> pa.Table:
    """The rows for which a condition holds, by DataFusion (which comes with delta-rs). It sees this table, and nothing else."""
    if where is None:
        return table
    with tempfile.TemporaryDirectory(prefix="spark_mq-redrive-") as directory:
        write_deltalake(directory, table)
        try:
            rows = QueryBuilder().register("dead", DeltaTable(directory)).execute(f"SELECT sequence FROM dead WHERE (\n{where}\n)")
            found = pa.table(rows.read_all())["sequence"].combine_chunks()
        except (DeltaError, ValueError) as error:
            raise InvalidOption(
                f"where={where!r} cannot be run: {error}. The columns are {', '.join(COLUMNS)}", option="where", value=where
            ) from error
    return table.filter(pc.is_in(table["sequence"], value_set=found))


def _candidates(queue: Queue, where: str | None, chunk: int) -> Iterator[pa.Table]:
    """The dead letters of this queue that have not been redriven and meet the condition, in order, in tables of up to `chunk` rows."""
    dead = queue.dead_letters
    ledger, index = _ledger(dead, dead.leases.read(REDRIVE)), dead.log.index()
    first = 0
    for r in list(moving.unsettled(ledger, index, index.tail)):
        first = r.first
        while first <= r.last:
            last = index.cut(first, min(chunk, index.count(first, r.last)))
            table = _table(queue, [(first, last)], skip=True)
            # One without a payload has nothing to be published.
            ours = pc.and_(pc.equal(table["queue"], queue.path), pc.is_valid(table["value"]))
            yield _select(table.filter(ours), where)
            following = index.at_or_after(last + 1)
            first = r.last + 1 if following is None else following


def _schema() -> pa.Schema:
    payload = [pa.field("sequence", pa.int64()), *(FILE_SCHEMA.field(n) for n in COLUMNS if n in FILE_SCHEMA.names)]
    return pa.schema([*payload, *(pa.field(_AS.get(name, name), _TYPES.get(name, pa.string())) for name in _TOLD)])


def _read(log: MessageStore, intervals: Sequence[Interval], skip: bool) -> Iterator[tuple[FileSlice, pa.Table]]:
    reader = MessageReader(log.files)  # one for all: dead letters that lie apart share the read of their row group
    for piece in (piece for interval in intervals for piece in log.index().slices(*interval)):
        try:
            yield piece, reader.read(piece)
        except CorruptLog as error:
            if not skip:
                raise
            _log.error("dead letters that cannot be redriven: %s", error)


def _table(queue: Queue, intervals: Sequence[Interval], *, skip: bool = False) -> pa.Table:
    """Dead letters, with what their headers tell as columns. ``skip``: without those that cannot be read."""
    log = queue.dead_letters.log
    schema = _schema()
    parts = [schema.empty_table()]
    for piece, rows in _read(log, intervals, skip):
        headers = [dict(own or ()) for own in rows["headers"].to_pylist()]
        own = [[(name, text) for name, text in one.items() if not name.startswith(HEADER_PREFIX)] for one in headers]
        columns = {
            "sequence": sequences_of([piece]),
            "headers": pa.array(own, schema.field("headers").type),
        }
        for name in _TOLD:
            texts = pa.array([one.get(HEADER_PREFIX + name) for one in headers], pa.string())
            columns[_AS.get(name, name)] = texts.cast(_TYPES.get(name, pa.string()))
        parts.append(pa.table([columns[f.name] if f.name in columns else rows[f.name] for f in schema], schema=schema))
    return pa.concat_tables(parts)


# -- the three commits


def _ledger(dead: Queue, stored: LedgerSnapshot) -> Ledger:
    return Ledger(LedgerHeader(floor=dead.horizon())) if stored.ledger is None else stored.ledger


def _unfinished(dead: Queue) -> list[str]:
    ledger = _ledger(dead, dead.leases.read(REDRIVE))
    return sorted({r.lease_id for r in ledger.select(ledger.where(ledger.is_state(ROUTING))) if r.lease_id})


def _redrive(queue: Queue, intervals: Sequence[Interval]) -> int:
    """Redrives those of some dead letters that nobody else has, meanwhile. Returns how many."""
    dead, redrive_id = queue.dead_letters, f"redrive-{uuid.uuid4().hex}"

    def freeze(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        after, messages = moving.set_aside(_ledger(dead, stored), dead.log.index(), redrive_id, intervals)
        return after if messages else None, messages, {"operation": "freeze redrive", "lease_id": redrive_id, "messages": messages}

    return _finish(queue, redrive_id) if change(dead.leases, REDRIVE, freeze, pause=LEASE_PAUSE) else 0


def _finish(queue: Queue, redrive_id: str) -> int:
    """Publishes what is frozen under a redrive id, unless it has been, and settles it."""
    dead = queue.dead_letters
    ledger = _ledger(dead, dead.leases.read(REDRIVE))
    frozen = [(r.first, r.last) for r in ledger.select(ledger.where(ledger.is_state(ROUTING))) if r.lease_id == redrive_id]
    table = _table(queue, frozen)
    if any(path != queue.path for path in pc.unique(table["queue"]).to_pylist()):
        return 0  # of another queue with the same DLQ, whose redrive was killed: that one's to finish
    if frozen and queue.log.last_number(redrive_id) is None:
        try:
            note = {"operation": "redrive", "messages": table.num_rows}
            queue.log.commit([write_file(queue.log.files, _anew(table))], mark=(redrive_id, 1), note=note)
        except DuplicatePublish:
            pass  # somebody else has finished it in this moment

    def settle(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        after, messages = rules_of.routed(_ledger(dead, stored), redrive_id, "redriven")
        return after if messages else None, messages, {"operation": "redriven", "lease_id": redrive_id, "messages": messages}

    return change(dead.leases, REDRIVE, settle, pause=LEASE_PAUSE)


def _anew(table: pa.Table) -> pa.Table:
    """Dead letters as they are published again: as they first were, and with headers that tell for whom they come again."""
    rows = zip(table["headers"].to_pylist(), table["consumer_group"].to_pylist(), table["sequence"].to_pylist(), strict=True)
    headers = [
        [*(own or ()), (HEADER_PREFIX + "redriven_from", str(seq)), *([(HEADER_PREFIX + "group", group)] if group else [])]
        for own, group, seq in rows
    ]
    told = pa.array(headers, FILE_SCHEMA.field("headers").type)
    names = [f.name for f in FILE_SCHEMA if f.name in table.schema.names]
    return pa.table([told if name == "headers" else table[name] for name in names], schema=pa.schema([FILE_SCHEMA.field(n) for n in names]))
