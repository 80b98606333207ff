"""Repair dead letters by SQL or by a Python function, before they are published again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.maintenance.condition import name_of
from spark_mq.maintenance.dead_letters import letter_schema
from spark_mq.message import (
    HEADER_PREFIX,
    Format,
    Message,
    ReceivedMessage,
    check_format,
    to_headers,
    to_row,
)
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.util.failures import describe_error, safe_text, to_failure
from spark_mq.util.sql import Expression, FailsForMessage
from spark_mq.util.validation import short_repr, truncate_error

RepairFunction: TypeAlias = Callable[[ReceivedMessage], ReceivedMessage | bytes | str | None]

CHANGED: Final = ("key", "value", "headers", "priority")
"""What a transform may change of a message."""
ERROR: Final = "transform_error"
_KEPT: Final = ("message_id", "published_at", "first_leased_at")
_COUNTS: Final = ("sequence", "delivery_count", "failure_count")
_NOTHING: Final = "the transform gives no value"
_EXAMPLE: Final = 'json_merge_patch(value, \'{"currency": "EUR"}\')'


class Repair(ABC):
    """A way to repair letters. ``name`` stands in the changes that people made."""

    name: str

    @abstractmethod
    def columns(self, letters: pa.Table) -> Mapping[str, pa.Array]:
        """Return new columns of letters, and in ERROR why the transform fails, or null."""

    def apply(self, letters: pa.Table) -> pa.Table:
        """Return repaired letters with a column ERROR. Those that it fails for stay as they are."""
        new = self.columns(letters)
        failed = pc.is_valid(new[ERROR])
        for name in CHANGED:
            if name in new:
                at = letters.schema.get_field_index(name)
                column = pc.if_else(failed, letters[name].combine_chunks(), new[name])
                letters = letters.set_column(at, FILE_SCHEMA.field(name), column)
        return letters.append_column(ERROR, new[ERROR])


def before_and_after(letters: pa.Table, repaired: pa.Table) -> pa.Table:
    """Return letters with what a repair makes of them, which is null if it fails."""
    failed = pc.is_valid(repaired[ERROR])
    for name in CHANGED:
        new = pc.if_else(failed, pa.scalar(None, repaired[name].type), repaired[name])
        letters = letters.append_column(f"new_{name}", new)
    return letters.append_column(ERROR, repaired[ERROR])


def repair_of(
    transform: Any, format: Format | None = None, stop: threading.Event | None = None
) -> Repair | None:
    """Return the repair by SQL or by a function, or None without one. Raise InvalidOption.

    The repair fails for letters whose new value the format cannot decode.
    """
    if format is None:
        return None if transform is None else _repair_of(transform, stop)
    if transform is None:
        raise InvalidOption(
            "format goes with transform, whose new values it checks. To check values as they are, "
            'give transform="value"',
            option="format",
            value=type(format).__name__,
        )
    return _Checked(_repair_of(transform, stop), check_format(format))


def _repair_of(transform: Any, stop: threading.Event | None) -> Repair:
    if isinstance(transform, str):
        return _Sql(transform, stop)
    if callable(transform) and not isinstance(transform, type):
        return _Function(transform)
    raise InvalidOption(
        f"transform={short_repr(transform)} is not a repair: give SQL for the new value, such as "
        f"{_EXAMPLE}, or a function of a ReceivedMessage",
        option="transform",
        value=transform,
    )


class _Sql(Repair):
    def __init__(self, text: str, stop: threading.Event | None) -> None:
        self.name = text
        self._expression = Expression(
            "transform", text, letter_schema(), ("VARCHAR", "JSON", "BLOB"),
            example=_EXAMPLE, instead=", or give a Python function", keeps_null=True, stop=stop,
        )  # fmt: skip

    def columns(self, letters: pa.Table) -> Mapping[str, pa.Array]:
        problem = _NOTHING
        try:
            values = self._expression.values(letters)
        except FailsForMessage as error:
            problem = f"the transform fails or gives no value ({error})"
            values = self._lenient(letters)
        missing = pa.scalar(problem), pa.scalar(None, pa.string())
        return {"value": values.cast(pa.binary()), ERROR: pc.if_else(pc.is_null(values), *missing)}

    def _lenient(self, letters: pa.Table) -> pa.Array:
        try:
            return self._expression.values(letters, lenient=True)
        except FailsForMessage as error:  # what TRY does not accept, such as a subquery
            raise self._expression.fails(error) from None


class _Function(Repair):
    def __init__(self, function: RepairFunction) -> None:
        self.name = name_of(function)
        self._function = function

    def columns(self, letters: pa.Table) -> Mapping[str, pa.Array]:
        given = letters.select([*CHANGED, *_KEPT, *_COUNTS])
        rows = [self._row(letter) for letter in given.to_pylist()]
        columns: dict[str, pa.Array] = {
            name: pa.array([row[name] for row, _ in rows], FILE_SCHEMA.field(name).type)
            for name in CHANGED
        }
        return {**columns, ERROR: pa.array([error for _, error in rows], pa.string())}

    def _row(self, letter: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return the new row of a letter, and why the function fails, or None."""
        try:
            return self._repaired(letter), None
        except BaseException as error:
            failure = to_failure(error, "the transform")
            shown = safe_text if isinstance(failure, _Unfit) else describe_error
            return letter, truncate_error(shown(failure))

    def _repaired(self, letter: dict[str, Any]) -> dict[str, Any]:
        message = ReceivedMessage(**_fields(letter))
        repaired = self._function(message)
        if repaired is None:
            raise _Unfit(_NOTHING)
        if isinstance(repaired, bytes | str):
            new = to_row(Message(repaired), "it", lambda: 0)
            return {**letter, "value": new["value"]}
        if not isinstance(repaired, ReceivedMessage):
            kind = type(repaired).__name__
            raise _Unfit(
                f"the transform returns {kind}: return the new value as bytes or str, "
                "dataclasses.replace(message, value=...), or None"
            )
        changed = {name: getattr(repaired, name) for name in CHANGED}
        if replace(message, **changed) != repaired:
            raise _Unfit(f"the transform may change only {', '.join(CHANGED)} of a message")
        if any(name.startswith(HEADER_PREFIX) for name in repaired.headers):
            raise _Unfit(f"the transform sets a header that begins with {HEADER_PREFIX}")
        return to_row(Message(**changed), "the repaired message", lambda: 0)


def _fields(letter: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: letter[name] or 0 for name in (*_COUNTS, "priority")}
    return {**letter, **counts, "headers": to_headers(letter["headers"])}


class _Checked(Repair):
    """A repair whose new values a format must decode."""

    def __init__(self, repair: Repair, format: Format) -> None:
        self.name = repair.name
        self._repair, self._format = repair, format

    def columns(self, letters: pa.Table) -> Mapping[str, pa.Array]:
        new = self._repair.columns(letters)
        pairs = zip(new["value"].to_pylist(), new[ERROR].to_pylist(), strict=True)
        errors = [self._problem(value) if error is None else error for value, error in pairs]
        return {**new, ERROR: pa.array(errors, pa.string())}

    def _problem(self, value: bytes) -> str | None:
        """Return why the format refuses a value, or None if it accepts it."""
        try:
            self._format.decode(value)
        except InvalidPayload as error:
            return truncate_error(f"the format refuses it: {safe_text(error)}")
        return None


class _Unfit(Exception):
    """A function has returned what cannot be published."""
