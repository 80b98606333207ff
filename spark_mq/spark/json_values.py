"""Parse JSON values strictly by a schema: a value fits it, or it has an error.

An error names the place and the types. It never contains the value, which may be a secret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, TypedDict

import pyarrow as pa
from msgspec import DecodeError, Meta, ValidationError
from msgspec.json import Decoder
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from spark_mq.errors import InvalidOption
from spark_mq.util.validation import short_repr

_LARGEST_FLOAT: Final = 3.4028234663852886e38
# By Spark's name of a type, the type that msgspec checks.
_SCALARS: Final[dict[str, Any]] = {
    "boolean": bool,
    "byte": Annotated[int, Meta(ge=-(2**7), le=2**7 - 1)],
    "short": Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)],
    "integer": Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    "long": int,
    "float": Annotated[float, Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    "double": float,
    "decimal": Decimal,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp": Annotated[datetime, Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime, Meta(tz=False)],
}
_TOO_LARGE: Final = "a number or a time is out of the range of its type"
# Made as the program runs, where a checker of types wants fixed ones.
_STRUCT: Final[Any] = TypedDict
_ARRAY: Final[Any] = list
_MAP: Final[Any] = dict


class JsonParser:
    """Parses JSON values of one type into an Arrow column. Raises InvalidOption for the type."""

    def __init__(self, kind: t.DataType) -> None:
        self._decode = Decoder(_checked_type(kind)).decode
        self._arrow_type = to_arrow_type(kind, timezone="UTC")

    def parse(self, values: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Return the parsed values and the errors. In each row, at least one of the two is null."""
        rows = [
            (None, "the value is null") if value is None else self._parse(value) for value in values
        ]
        parsed, errors = [data for data, _ in rows], [error for _, error in rows]
        try:
            return pa.array(parsed, self._arrow_type), pa.array(errors, pa.string())
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._parse_singly(parsed, errors)

    def _parse(self, value: bytes) -> tuple[Any, str | None]:
        try:
            return self._decode(value.decode()), None
        except UnicodeDecodeError as error:
            return None, f"not JSON: byte {error.start} is not UTF-8"
        except RecursionError:
            return None, "not JSON: it is nested too deeply"
        except ValidationError as error:
            return None, str(error)
        except DecodeError as error:
            return None, f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"

    def _parse_singly(
        self, parsed: Sequence[Any], errors: list[str | None]
    ) -> tuple[pa.Array, pa.Array]:
        """Return the arrays, with an error for each value that a column cannot hold."""
        columns = []
        for at, value in enumerate(parsed):
            try:
                columns.append(pa.array([value], self._arrow_type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                columns.append(pa.nulls(1, self._arrow_type))
                errors[at] = _TOO_LARGE
        return pa.concat_arrays(columns), pa.array(errors, pa.string())


def _checked_type(kind: t.DataType) -> Any:
    """Return the type by which msgspec checks a JSON value that is not null."""
    if isinstance(kind, t.StructType):
        if twice := [name for name, times in Counter(kind.names).items() if times > 1]:
            raise _no_type(f"the field {short_repr(twice[0])} twice")
        return _STRUCT("Struct", {field.name: _field_type(field) for field in kind.fields})
    if isinstance(kind, t.ArrayType):
        return _ARRAY[_checked_type(kind.elementType) | None]
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return _MAP[str, _checked_type(kind.valueType) | None]
    if kind.typeName() not in _SCALARS:
        raise _no_type(f"the type {kind.simpleString()}")
    return _SCALARS[kind.typeName()]


def _field_type(field: t.StructField) -> Any:
    checked = _checked_type(field.dataType)
    return NotRequired[checked | None] if field.nullable else checked


def _no_type(what: str) -> InvalidOption:
    return InvalidOption(
        f"valueSchema has {what}, which no JSON value has. Choose another one",
        option="valueSchema",
        value=what,
    )
