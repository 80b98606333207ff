"""Find messages by their sequences, ids or keys, or by a past lease."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CorruptLog, InvalidOption, SparkMQError
from spark_mq.ledger.intervals import Interval, from_sequences
from spark_mq.message import MessageSelector
from spark_mq.operations.context import GroupLedger
from spark_mq.parquet.reader import MessageReader
from spark_mq.storage.archive_table import Filters, matching_rows
from spark_mq.storage.history_table import history_rows
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import SECOND, to_datetime
from spark_mq.util.validation import invalid, plain_number, plain_values, short_repr

_log = logging.getLogger(__name__)
_REACH: Final = 86_400 * SECOND  # of the search, in microseconds before the latest commit
_COMMITS: Final = 20  # read at a time, the newest first
_GRANTS: Final = ("leased", "replayed")
_SETTLES: Final = ("acked", "nacked", "rejected", "released")


def find_values(
    messages: MessageTable, column: str, wanted: Collection[str], intervals: Sequence[Interval]
) -> list[tuple[int, str]]:
    """Return sequence and value of the messages whose `column` (message_id or key) is wanted."""
    values, pairs = pa.array(wanted, pa.string()), list[tuple[int, str]]()
    index = messages.index(max((last for _, last in intervals), default=-1))
    reader = MessageReader(messages.files, [column])
    for piece in (piece for first, last in intervals for piece in index.slices(first, last)):
        try:
            rows = reader.read(piece)[column]
        except CorruptLog:
            continue  # a damaged file has no values
        hits = pc.indices_nonzero(pc.is_in(rows, value_set=values))
        sequences = (piece.first + row for row in hits.to_pylist())
        pairs += zip(sequences, rows.take(hits).to_pylist(), strict=True)
    return pairs


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return a list of message ids. Raise InvalidOption."""
    if not isinstance(ids, str | bytes) and isinstance(ids, Iterable):
        given = list(plain_values(ids))
        if all(isinstance(message_id, str) for message_id in given):
            return given
    raise invalid("message_ids", ids, "is not a list of message ids: give a list of text")


def find_messages(
    ledger: GroupLedger,
    sequences: SupportsIndex | MessageSelector | None,
    message_id: str | Iterable[str] | None,
    key: str | Iterable[str] | None,
) -> list[Interval]:
    """Return the messages that one of three options names. Raise InvalidOption."""
    given = {"sequences": sequences, "message_id": message_id, "key": key}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidOption(
            f"{' and '.join(named) or 'no message'} given: name messages by one of sequences, "
            "message_id (--message-id) and key (--key)",
            option=named[0] if named else "sequences",
            value=given[named[0]] if named else None,
        )
    if sequences is not None:
        number = plain_number(sequences)
        several = [number] if isinstance(number, int | str | bytes) else sequences
        return _checked(ledger, from_sequences(several))
    return _search(ledger, named[0], given[named[0]])


def _checked(ledger: GroupLedger, intervals: list[Interval]) -> list[Interval]:
    """Return the intervals. Raise InvalidOption if one of them has no message at all."""
    index = ledger.messages.index(max((last for _, last in intervals), default=0))
    for first, last in intervals:
        if not index.count(first, last) and first > index.forgotten_to:
            raise InvalidOption(
                f"sequences={first}: no message of {ledger.queue_path} has it; the last one "
                f"published is {index.last_sequence}",
                option="sequences",
                value=first,
            )
    return intervals


def _search(ledger: GroupLedger, column: str, wanted: object) -> list[Interval]:
    """Return the messages with some ids or keys, those after the start sequence if any."""
    values = [wanted] if isinstance(wanted, str) else plain_values(wanted)
    if not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        raise InvalidOption(
            f"{column}={short_repr(wanted)} is not text: give a text, or a list of texts",
            option=column,
            value=wanted,
        )
    messages, low = ledger.messages, ledger.queue.horizon() + 1
    start = max(ledger.current().head.start_sequence + 1, low)
    pairs = find_values(messages, column, values, [(start, messages.index().last_sequence)])
    # What is settled already stays as it is, as a change by sequence leaves it.
    pairs = pairs or find_values(messages, column, values, [(low, start - 1)])
    if not pairs:
        raise InvalidOption(
            f"{column}={short_repr(wanted)}: {ledger.queue_path} has no message with it",
            option=column,
            value=wanted,
        )
    return from_sequences(sequence for sequence, _ in pairs)


class PastLease(NamedTuple):
    """The messages that a past lease was granted, and those that it settled itself."""

    granted: list[Interval]
    settled: list[Interval]


def find_past_lease(group: GroupLedger, lease_id: str) -> PastLease | None:
    """Return what a lease of the last day was granted and settled, or None if unknown."""
    lease = PastLease([], [])
    try:
        for rows in _past(group, lease_id):
            lease.granted.extend(_intervals(rows, _GRANTS))
            lease.settled.extend(_intervals(rows, _SETTLES))
            if lease.granted:  # by one commit, and all settles came later
                return lease
    except (SparkMQError, *STORE_ERRORS) as error:
        _log.debug("lease %s was not looked up: %s", lease_id, error)
    return None


def _past(group: GroupLedger, lease_id: str) -> Iterator[pa.Table]:
    """Yield the events of a lease, the newest commits first."""
    archive, latest = group.queue.history, group.ledgers.version()
    archived = archive.progress()[0]
    since: int | None = None
    own: Filters = [("consumer_group", "=", group.name), ("lease_id", "=", lease_id)]
    for last in range(latest, archived, -_COMMITS):
        rows = history_rows(group.ledgers.commits(max(archived + 1, last - _COMMITS + 1), last))
        if times := pc.min_max(rows["committed_at"].cast(pa.int64())).as_py():
            since = since or (times["max"] or 0) - _REACH
        yield matching_rows(rows, own)
        if since is not None and (times["min"] or 0) < since:
            return
    after = group.now() - _REACH if since is None else since
    yield archive.read([*own, ("committed_at", ">=", to_datetime(after))])[0]


def _intervals(rows: pa.Table, events: tuple[str, ...]) -> list[Interval]:
    rows = rows.filter(pc.is_in(rows["event"], value_set=pa.array(events)))
    return list(zip(rows["first"].to_pylist(), rows["last"].to_pylist(), strict=True))
