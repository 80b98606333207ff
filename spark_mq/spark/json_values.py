"""Parse JSON values strictly by a schema: a value fits it, or it has an error.

An error names the place and the types. It never contains the value, which may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from spark_mq.errors import InvalidOption
from spark_mq.spark.schema import DATA_COLUMNS, data_fields, format_of
from spark_mq.spark.value_formats import FormatParser, ValueParser
from spark_mq.util.clock import EARLIEST, LATEST
from spark_mq.util.validation import short_repr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Convert = Callable[[Any], Any]

_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}  # bits
_LARGEST_FLOAT: Final = 3.4028234663852886e38
_JSON_NAMES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    Decimal: "number",
    bool: "boolean",
    type(None): "null",
}
_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Unfit(Exception):
    """A value does not fit the schema. Each level of the value adds its part of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"${''.join(reversed(self.path))}: {self.args[0]}"


class JsonParser(ValueParser):
    """Parses JSON values of one type into an Arrow column."""

    def __init__(self, kind: t.DataType) -> None:
        self._convert = _nonnull(_converter(kind), False, kind)
        self.arrow_type = to_arrow_type(kind, timezone="UTC")
        numbers = Decimal if _has_decimal(kind) else None  # A float would lose digits.
        self._decode = json.JSONDecoder(parse_float=numbers, parse_constant=_no_constant).decode

    def _parse(self, value: bytes) -> tuple[Any, str | None]:
        try:
            return self._convert(self._decode(value.decode())), None
        except _Unfit as error:
            return None, str(error)
        except (ValueError, RecursionError) as error:
            return None, f"not JSON: {_reason(error)}"


def data_parser(kind: t.DataType, value_format: str | None) -> ValueParser:
    """Return the parser of a column ``data``. `value_format` is None for JSON."""
    return JsonParser(kind) if value_format is None else FormatParser(value_format)


def is_parsed(schema: t.StructType) -> bool:
    """Return whether a DataFrame has the columns of ``valueSchema``."""
    return set(DATA_COLUMNS) <= set(schema.names) and schema["data_error"].dataType == (
        t.StringType()
    )


def with_data(rows: DataFrame, data: t.StructField) -> DataFrame:
    """Return rows with ``data``, as a read has this column, and ``data_error``."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    kind, value_format = data.dataType, format_of(data)
    both = t.StructType(data_fields(kind))

    def parse(values: pa.Array) -> pa.Array:
        fields = list(to_arrow_schema(both, timezone="UTC"))
        columns = data_parser(kind, value_format).parse(values.to_pylist())
        return pa.StructArray.from_arrays(columns, fields=fields)

    parsed = rows.withColumn("_parsed", arrow_udf(parse, both)("value"))
    return parsed.select(*rows.columns, *(f"_parsed.{name}" for name in DATA_COLUMNS))


def _reason(error: ValueError | RecursionError) -> str:
    """Return why a value is not JSON, without its content."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a number has too many digits"


def _no_constant(name: str) -> NoReturn:
    raise _Unfit(f"{name} is not JSON")


def _has_decimal(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return any(_has_decimal(field.dataType) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has_decimal(kind.elementType)
    if isinstance(kind, t.MapType):
        return _has_decimal(kind.valueType)
    return isinstance(kind, t.DecimalType)


def _wrong(kind: t.DataType, value: Any) -> _Unfit:
    return _Unfit(f"expected {kind.simpleString()}, found {_JSON_NAMES[type(value)]}")


def _nonnull(convert: Convert, nullable: bool, kind: t.DataType) -> Convert:
    """Return a converter that passes null on, or refuses it."""

    def checked(value: Any) -> Any:
        if value is None:
            if nullable:
                return None
            raise _wrong(kind, value)
        return convert(value)

    return checked


def _converter(kind: t.DataType) -> Convert:
    """Return a function that converts a JSON value, not null, for Arrow. Raise InvalidOption."""
    name = kind.typeName()
    if name in _MAKERS:
        make: Callable[[Any], Convert] = _MAKERS[name]
        return make(kind)
    if name in _FROM_TEXT:
        return _text(kind, _FROM_TEXT[name])
    raise _no_type(f"the type {kind.simpleString()}")


def _no_type(what: str) -> InvalidOption:
    return InvalidOption(
        f"valueSchema has {what}, which no JSON value has. Choose another one",
        option="valueSchema",
        value=what,
    )


def _struct(kind: t.StructType) -> Convert:
    if twice := [name for name, times in Counter(kind.names).items() if times > 1]:
        raise _no_type(f"the field {short_repr(twice[0])} twice")
    fields = [
        (f.name, _nonnull(_converter(f.dataType), f.nullable, f.dataType)) for f in kind.fields
    ]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(kind, value)
        converted, name = {}, ""
        try:
            for name, item in fields:
                converted[name] = item(value.get(name))
        except _Unfit as error:
            error.path.append(f".{name}")
            raise
        return converted

    return convert


def _array(kind: t.ArrayType) -> Convert:
    item = _nonnull(_converter(kind.elementType), True, kind.elementType)

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _wrong(kind, value)
        items: list[Any] = []
        try:
            items.extend(map(item, value))
        except _Unfit as error:
            error.path.append(f"[{len(items)}]")
            raise
        return items

    return convert


def _map(kind: t.MapType) -> Convert:
    if not isinstance(kind.keyType, t.StringType):
        raise _no_type(f"the type {kind.simpleString()}")
    item = _nonnull(_converter(kind.valueType), True, kind.valueType)
    text = _text(t.StringType(), lambda name: name)

    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _wrong(kind, value)
        try:
            return [(text(name), item(child)) for name, child in value.items()]
        except _Unfit as error:
            error.path.append(".*")  # The name may be a secret.
            raise

    return convert


def _integer(kind: t.DataType) -> Convert:
    limit = 2 ** (_INTEGERS[kind.simpleString()] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            raise _wrong(kind, value)
        if not -limit <= value < limit:
            raise _Unfit(f"the number is out of the range of {kind.simpleString()}")
        return value

    return convert


def _float(kind: t.DataType) -> Convert:
    limit = _LARGEST_FLOAT if isinstance(kind, t.FloatType) else 1.7976931348623157e308

    def convert(value: Any) -> float:
        if type(value) not in (int, float, Decimal):
            raise _wrong(kind, value)
        if not -limit <= value <= limit:
            raise _Unfit(f"the number is out of the range of {kind.simpleString()}")
        return float(value)

    return convert


def _boolean(kind: t.DataType) -> Convert:
    def convert(value: Any) -> bool:
        if type(value) is not bool:
            raise _wrong(kind, value)
        return value

    return convert


def _decimal(kind: t.DecimalType) -> Convert:
    digits = Context(
        prec=kind.precision,
        Emin=-999_999,
        Emax=999_999,
        traps=[Inexact, InvalidOperation, Overflow],
    )
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (int, Decimal, str):
            raise _wrong(kind, value)
        try:
            return Decimal(value).quantize(unit, context=digits)
        except (InvalidOperation, Inexact, Overflow, ValueError):
            raise _Unfit(f"the number does not fit {kind.simpleString()}") from None

    return convert


def _text(kind: t.DataType, read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise _wrong(kind, value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _Unfit("the text has no UTF-8 form (a lone surrogate)") from None
        try:
            return read(value)
        except (ValueError, OverflowError):
            raise _Unfit(_TEXT_FORMS[kind.simpleString()]) from None

    return convert


def _instant(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError
    micros = (at.replace(tzinfo=None) - _EPOCH - (at.utcoffset() or timedelta())) // _MICROSECOND
    if not EARLIEST <= micros <= LATEST:
        raise ValueError
    return micros


def _local_time(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is not None:
        raise ValueError
    return (at - _EPOCH) // _MICROSECOND


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


_FROM_TEXT: Final[dict[str, Convert]] = {
    "string": lambda text: text,
    "binary": _bytes,
    "date": date.fromisoformat,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}
_MAKERS: Final[dict[str, Any]] = {
    "struct": _struct,
    "array": _array,
    "map": _map,
    "decimal": _decimal,
    "boolean": _boolean,
    **dict.fromkeys(("byte", "short", "integer", "long"), _integer),
    **dict.fromkeys(("float", "double"), _float),
}
_TEXT_FORMS: Final = {
    "binary": "the text is not base64",
    "date": "the text is not a date such as 2026-01-31",
    "timestamp": "the text is not an instant with a zone such as 2026-01-31T12:00:00Z",
    "timestamp_ntz": "the text is not a time without a zone such as 2026-01-31T12:00:00",
}
