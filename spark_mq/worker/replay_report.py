"""Collect the outcomes of a shadow replay, and compare them with those of the past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.error_shape import error_shape
from spark_mq.util.records import Converts, Record, Records, object_html, rows_html, table_html
from spark_mq.util.show import printable, show_count, show_number, show_some

OUTCOMES_NOW: Final = {ACK: "acked", NACK: "failed", REJECT: "rejected", RELEASE: "released"}
"""The outcome of a message in a shadow replay, by the verb of its verdict."""

CHANGES: Final = ("same", "worse", "better", "other")
_SUCCEEDED, _FAILED = ("acked",), ("dead_lettered", "dropped", "failed", "rejected")

REPLAY_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("outcome_then", pa.string()),
        pa.field("settled_at", INSTANT),
        pa.field("outcome_now", pa.string()),
        pa.field("change", pa.string()),
        pa.field("error", pa.string()),
        pa.field("seconds", pa.float64()),
    ]
)
"""One row for each message of a shadow replay.

``outcome_then`` and ``settled_at`` are of the history. ``outcome_now`` is acked, failed, rejected
or released. ``change`` is same, worse, better or other. ``error`` is that of now, 500 characters at
most. ``seconds`` is the time of the call that had the message, with a batch the time of the batch.
"""

_MAX_ERROR: Final = 500  # characters of an error in a row
MAX_SHAPES: Final = 1_000  # that are counted apart
_OTHER: Final = "(other errors)"
_SAMPLES: Final = 5  # messages named for each shape
_SHOWN: Final = 10  # shapes that a text has


@dataclass(frozen=True, slots=True)
class ReplaySummary(Record):
    """The counts of a shadow replay.

    Attributes
    ----------
    replayed
        Messages that the handler got. ``same``, ``worse``, ``better`` and ``other`` add up to it.
    same
        Acked then and now, or neither then nor now.
    worse
        Acked then, and failed or rejected now.
    better
        A dead letter or dropped then, and acked now.
    other
        No comparison: expired, skipped or lost then, or released now.
    acked, failed, rejected, released
        The outcomes now.
    trimmed
        Messages that were settled within the time, and whose data files a trim has dropped.
    unreadable
        Messages whose data file is damaged or missing.
    without_history
        Retained messages that the group has settled, but nobody knows how or when, because their
        history has expired or the group began after them.
    stopped_because
        Why the replay ended before the last message. Otherwise an empty string.
    """

    replayed: int = 0
    same: int = 0
    worse: int = 0
    better: int = 0
    other: int = 0
    acked: int = 0
    failed: int = 0
    rejected: int = 0
    released: int = 0
    trimmed: int = 0
    unreadable: int = 0
    without_history: int = 0
    stopped_because: str = ""


@dataclass(frozen=True, slots=True)
class ReplayError(Record):
    """The errors of one shape in a shadow replay.

    Attributes
    ----------
    shape
        The text of the errors, with numbers and quoted parts replaced.
    messages, worse
        How many messages have such an error now, and how many of these were acked then.
    error
        The first one's text.
    sequences
        The first messages, at most five.
    """

    shape: str
    messages: int
    worse: int
    error: str
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplayReport(Converts):
    """What a handler would do with messages that a group has settled. Print it to read it.

    Attributes
    ----------
    group, summary
        The name of the group, and the counts, a :class:`ReplaySummary`.
    table
        A ``pyarrow.Table`` with a row for each message, in order of sequence, and the columns of
        ``replay_report.REPLAY_SCHEMA``.
    errors
        The errors by shape, a :class:`ReplayError` each, the most frequent first. After 1,000
        shapes the others are one.
    """

    group: str
    summary: ReplaySummary
    table: pa.Table
    errors: Records[ReplayError]

    @property
    def is_worse(self) -> bool:
        """Return whether a message was acked then, and fails or is rejected now."""
        return self.summary.worse > 0

    def to_arrow(self) -> pa.Table:
        """Return ``table``."""
        return self.table

    def __str__(self) -> str:
        summary = self.summary
        lines = [self._title()]
        lines += [
            f"  {show_number(getattr(summary, name)):>9}  {text}" for name, text in _CHANGED.items()
        ]
        if left := [f"{show_number(count)} {text}" for name, text in _LEFT_OUT.items()
                    if (count := getattr(summary, name))]:  # fmt: skip
            lines.append(f"not replayed: {', '.join(left)}")
        if summary.stopped_because:
            lines.append(f"ended early: {summary.stopped_because}")
        lines += [_line(error) for error in self.errors[:_SHOWN]]
        if (more := len(self.errors) - _SHOWN) > 0:
            lines.append(f"and {show_count(more, 'more shape')} of errors")
        return "\n".join(lines)

    def _title(self) -> str:
        messages = show_count(self.summary.replayed, "message")
        return f"shadow replay of group {self.group}: {messages}"

    def _repr_html_(self) -> str:
        counts = object_html(self.summary, self._title())
        errors = rows_html(self.errors, title="Errors by shape") if self.errors else ""
        if not self.is_worse:
            return counts + errors
        worse = self.table.filter(pc.equal(self.table["change"], "worse"))
        return counts + errors + table_html(worse, "Acked then, and not now")


_CHANGED: Final = {
    "same": "the same",
    "worse": "worse: acked then, and failed or rejected now",
    "better": "better: a dead letter or dropped then, and acked now",
    "other": "other: expired, skipped or lost then, or released now",
}
_LEFT_OUT: Final = {
    "trimmed": "trimmed",
    "unreadable": "unreadable",
    "without_history": "without history",
}


def _line(error: ReplayError) -> str:
    places = show_some([str(sequence) for sequence in error.sequences], _SAMPLES)
    messages = show_count(error.messages, "message")
    worse = f", {show_number(error.worse)} worse" if error.worse else ""
    return f"{messages}{worse}: {printable(error.error)} (such as {places})"


def compare(then: str | None, now: str) -> str:
    """Return how the outcome of a message has changed."""
    before, after = _succeeded(then), _succeeded(now)
    if before is None or after is None:
        return "other"
    if before == after:
        return "same"
    return "better" if after else "worse"


def _succeeded(outcome: str | None) -> bool | None:
    """Return whether a handler was done with a message, or None if no handler decided."""
    if outcome in _SUCCEEDED:
        return True
    return False if outcome in _FAILED else None


class ReportBuilder:
    """Builds a report from verdicts. Errors are counted by shape, so their texts need not stay."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._parts = [REPLAY_SCHEMA.empty_table()]
        self._errors: dict[str, ReplayError] = {}

    def add(
        self,
        rows: pa.Table,
        verdicts: Mapping[int, tuple[str, str | None]],
        seconds: Mapping[int, float],
    ) -> None:
        """Add the messages of some rows that have a verdict, which is a verb and an error.

        `seconds` has the messages that the handler got, with the time of their call.
        """
        called = pa.array(list(seconds.keys() & verdicts.keys()), pa.int64())
        rows = rows.filter(pc.is_in(rows["sequence"], value_set=called))
        sequences, then = rows["sequence"].to_pylist(), rows["outcome"].to_pylist()
        errors = [verdicts[sequence][1] for sequence in sequences]
        now = [OUTCOMES_NOW[verdicts[sequence][0]] for sequence in sequences]
        changes = list(map(compare, then, now))
        for sequence, error, change in zip(sequences, errors, changes, strict=True):
            if error is not None:
                self._count_error(error, sequence, worse=change == "worse")
        columns: dict[str, list[Any]] = {
            "outcome_now": now,
            "change": changes,
            "error": [None if error is None else error[:_MAX_ERROR] for error in errors],
            "seconds": [seconds[sequence] for sequence in sequences],
        }
        self._parts.append(_rows(rows, columns))

    def _count_error(self, error: str, sequence: int, *, worse: bool) -> None:
        shape = error_shape(error)
        if shape not in self._errors and len(self._errors) >= MAX_SHAPES:
            shape = _OTHER
        known = self._errors.get(shape) or ReplayError(shape, 0, 0, error[:_MAX_ERROR], ())
        samples = known.sequences
        if len(samples) < _SAMPLES:
            samples = (*samples, sequence)
        self._errors[shape] = replace(
            known, messages=known.messages + 1, worse=known.worse + worse, sequences=samples
        )

    def build(self, **counts: Any) -> ReplayReport:
        """Return the report. `counts` are what only the caller knows of the summary."""
        table = pa.concat_tables(self._parts)
        counted: dict[str, int] = {}
        for name in ("change", "outcome_now"):
            for pair in pc.value_counts(table[name]).to_pylist():
                counted[pair["values"]] = pair["counts"]
        known: dict[str, Any] = {
            field.name: counted[field.name]
            for field in fields(ReplaySummary)
            if field.name in counted
        }
        summary = ReplaySummary(replayed=table.num_rows, **known, **counts)
        order = sorted(self._errors.values(), key=lambda error: (-error.messages, error.sequences))
        return ReplayReport(self._group, summary, table, Records(order))


def _rows(rows: pa.Table, columns: Mapping[str, list[Any]]) -> pa.Table:
    names = {"outcome_then": "outcome"}
    return pa.table(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else rows[names.get(field.name, field.name)].cast(field.type)
            for field in REPLAY_SCHEMA
        ],
        schema=REPLAY_SCHEMA,
    )
