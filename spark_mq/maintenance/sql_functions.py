"""Define the functions of the SQL over dead letters.

They read Arrow columns, and none returns much more than it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.maintenance import json_path
from spark_mq.util.error_shape import ALIKE_DIGITS, MAY_HAVE_CODE, error_shape
from spark_mq.util.validation import short_repr

__all__ = ["FUNCTIONS", "MOST_ARGUMENTS", "Refused", "case", "concat", "error_shapes"]

MOST_ARGUMENTS: Final = 10
_MOST_BYTES: Final = 16 * 2**20  # that a replacement may make of a piece


class Refused(Exception):
    """A condition or an expression has this problem."""


def length(of: Any) -> Any:
    """Return the characters of texts, or the bytes of values."""
    return pc.binary_length(of) if pa.types.is_binary(of.type) else pc.utf8_length(of)


def error_shapes(texts: Any) -> Any:
    """Return the shape of each error. It is computed once for texts that differ in digits alone."""
    if isinstance(texts, pa.Scalar):
        found = texts.as_py()
        return pa.scalar(None if found is None else error_shape(str(found)), pa.string())
    alike = given = texts.cast(pa.string())
    for _ in range(2):  # a match ends with its digit, so each pass finds every second one
        alike = pc.replace_substring_regex(alike, ALIKE_DIGITS, r"\11")
    each = pc.if_else(pc.match_substring_regex(given, MAY_HAVE_CODE), given, alike)
    each = each.dictionary_encode()
    shapes = pa.array([error_shape(one) for one in each.dictionary.to_pylist()], pa.string())
    return shapes.take(each.indices)


def concat(a: Any, b: Any) -> Any:
    return pc.binary_join_element_wise(_text(a), _text(b), "")


def replace(texts: Any, old: Any, new: Any) -> Any:
    """Replace each occurrence of a constant text by another one."""
    before, after = _constant(old, "replace"), _constant(new, "replace")
    if not before:
        raise Refused("replace looks for an empty text")
    found = _text(texts)
    count = pc.sum(pc.count_substring(found, before)).as_py() if _is_column(found) else 0
    if (count or 0) * len(after.encode()) > _MOST_BYTES:
        raise Refused("replace makes too large texts")
    return pc.replace_substring(found, before, after)


def trim(texts: Any) -> Any:
    return pc.utf8_trim_whitespace(_text(texts))


def coalesce(*values: Any) -> Any:
    return pc.coalesce(*_alike(values))


def case(*given: Any) -> Any:
    """Return the value of the first condition that holds. The last one given is for the rest."""
    *values, found = _alike([*given[1::2], given[-1]])
    for condition, value in zip(reversed(given[:-1:2]), reversed(values), strict=True):
        found = pc.if_else(pc.fill_null(condition, False), value, found)
    return found


def json_extract(values: Any, path: Any) -> Any:
    steps = _path(path)
    return _each(lambda text: json_path.extract(text, steps), values)


def json_remove(values: Any, path: Any) -> Any:
    steps = _path(path)
    return _each(lambda text: json_path.remove(text, steps), values)


def json_set(values: Any, path: Any, new: Any) -> Any:
    steps = _path(path)

    def change(text: str, value: Any) -> str | None:
        made = json_path.to_json(value)
        return None if made is None else json_path.write(text, steps, made)

    return _each(change, values, new)


FUNCTIONS: Final[Mapping[str, tuple[int, int, Callable[..., Any], bool]]] = {
    "COALESCE": (1, MOST_ARGUMENTS, coalesce, False),
    "ERROR_SHAPE": (1, 1, error_shapes, False),
    "JSON_EXTRACT": (2, 2, json_extract, False),
    "JSON_REMOVE": (2, 2, json_remove, False),
    "JSON_SET": (3, 3, json_set, False),
    "LENGTH": (1, 1, length, False),
    "LOWER": (1, 1, pc.utf8_lower, False),
    "REPLACE": (3, 3, replace, True),
    "TRIM": (1, 1, trim, True),
    "UPPER": (1, 1, pc.utf8_upper, False),
}
"""Functions, each with the least and the most arguments, and whether it may fail at a letter."""


def _is_column(value: Any) -> bool:
    return not isinstance(value, pa.Scalar)


def _text(value: Any) -> Any:
    return value if pa.types.is_string(value.type) else pc.cast(value, pa.string())


def _constant(value: Any, function: str) -> str:
    if not isinstance(value, pa.StringScalar) or not value.is_valid:
        raise Refused(f"what {function} looks for and writes must be constant texts")
    return str(value.as_py())


def _path(value: Any) -> json_path.Path:
    text = value.as_py() if isinstance(value, pa.StringScalar) else None
    steps = json_path.parse_path(text or "")
    if steps is None:
        raise Refused(f"{short_repr(text)} is no path of JSON, such as '$.items[0].name'")
    return steps


def _alike(values: Any) -> list[Any]:
    """Return values in one type: texts become bytes beside bytes."""
    if any(pa.types.is_binary(one.type) for one in values):
        return [pc.cast(one, pa.binary()) for one in values]
    return list(values)


def _each(function: Callable[..., str | None], texts: Any, *more: Any) -> Any:
    """Call a function for each text. The result is null for null, and for bytes without text."""
    kind = texts.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)):
        raise Refused("a function of JSON reads no text")
    columns = [texts, *more]
    rows = next((len(one) for one in columns if _is_column(one)), None)
    given = (one.to_pylist() if _is_column(one) else repeat(one.as_py()) for one in columns)
    lines = zip(range(1 if rows is None else rows), *given, strict=False)  # repeat() has no end
    called = (
        None if (text := _decoded(one)) is None else function(text, *others)
        for _, one, *others in lines
    )
    found = pa.array(called, pa.string())
    return found[0] if rows is None else found


def _decoded(value: Any) -> str | None:
    if not isinstance(value, bytes):
        return None if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
