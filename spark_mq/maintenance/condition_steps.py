"""Compute the parts of a condition. None returns much more than it reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.validation import short_repr, validate_duration

__all__ = ["Refused", "between", "comparing", "instant", "interval", "is_in", "length", "try_cast"]


class Refused(Exception):
    """A condition has this problem."""


def instant(text: str) -> pa.Scalar:
    try:
        at = datetime.fromisoformat(text)
        return pa.scalar(at if at.tzinfo else at.replace(tzinfo=UTC), INSTANT)
    except (ValueError, OverflowError):
        raise Refused(f"{short_repr(text)} is not an instant, such as 2026-01-31T12:00Z") from None


def interval(text: str) -> pa.Scalar:
    try:
        micros = validate_duration("where", text)
    except InvalidOption:
        raise Refused(f"{short_repr(text)} is not a duration, such as 2 hours") from None
    return pa.scalar(timedelta(microseconds=micros), pa.duration("us"))


def comparing(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison in which a text beside an instant is an instant."""
    return lambda a, b: compare(_beside(b, a), _beside(a, b))


def _beside(other: Any, value: Any) -> Any:
    is_text = isinstance(value, pa.StringScalar)
    return instant(value.as_py()) if is_text and other.type == INSTANT else value


def between(x: Any, low: Any, high: Any) -> Any:
    least, most = comparing(pc.greater_equal), comparing(pc.less_equal)
    return pc.and_kleene(least(x, low), most(x, high))


def is_in(x: Any, values: pa.Array) -> Any:
    """Return whether a value is in a list. It is unknown for null, as in SQL."""
    if x.type == INSTANT and pa.types.is_string(values.type):
        values = pa.array([instant(text).as_py() for text in values.to_pylist()], INSTANT)
    elif pa.types.is_integer(x.type):
        x = pc.cast(x, pa.int64())
    return pc.if_else(pc.is_valid(x), pc.is_in(x, value_set=values), pa.scalar(None, pa.bool_()))


def try_cast(x: Any, kind: pa.DataType) -> Any:
    """Cast values. Those that do not fit become null."""
    try:
        return pc.cast(x, kind)
    except pa.ArrowInvalid:
        if isinstance(x, pa.Scalar):
            return pa.scalar(None, kind)
        if len(x) == 1:
            return pa.nulls(1, kind)
    half = len(x) // 2
    return pa.concat_arrays([try_cast(x[:half], kind), try_cast(x[half:], kind)])


def length(of: Any) -> Any:
    """Return the characters of texts, or the bytes of values."""
    return pc.binary_length(of) if pa.types.is_binary(of.type) else pc.utf8_length(of)
