"""Decode values of the option ``valueFormat`` into an Arrow column, by Spark's types for them.

The types follow those of Spark's ``from_avro`` and ``from_protobuf``, except that unsigned numbers
of Protobuf always fit, and that its fields without presence have their defaults instead of null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from spark_mq.errors import InvalidOption, InvalidPayload, UnknownSchema
from spark_mq.util.clock import EARLIEST, LATEST, SECOND
from spark_mq.util.loading import integration

Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """A type, and the function that converts values but null for Arrow, or None to keep them."""

    kind: t.DataType
    convert: Convert | None = None
    nullable: bool = False


_AVRO: Final[dict[str, _Field]] = {
    "boolean": _Field(t.BooleanType()),
    "int": _Field(t.IntegerType()),
    "long": _Field(t.LongType()),
    "float": _Field(t.FloatType()),
    "double": _Field(t.DoubleType()),
    "string": _Field(t.StringType()),
    "bytes": _Field(t.BinaryType()),
    "fixed": _Field(t.BinaryType()),
    "enum": _Field(t.StringType()),
    "int-date": _Field(t.DateType()),
    "long-timestamp-millis": _Field(t.TimestampType()),
    "long-timestamp-micros": _Field(t.TimestampType()),
    "long-local-timestamp-millis": _Field(t.TimestampNTZType()),
    "long-local-timestamp-micros": _Field(t.TimestampNTZType()),
    "string-uuid": _Field(t.StringType(), str),
}
_DECIMALS: Final = ("bytes-decimal", "fixed-decimal")
_TIMES: Final = ("int-time-millis", "long-time-micros")
_MAX_PRECISION: Final = 38
# By the number of the type in a descriptor (google.protobuf.descriptor.FieldDescriptor.TYPE_*).
_PROTOBUF: Final[dict[int, _Field]] = {
    1: _Field(t.DoubleType()),
    2: _Field(t.FloatType()),
    **dict.fromkeys((3, 16, 18), _Field(t.LongType())),  # int64, sfixed64, sint64
    **dict.fromkeys((4, 6), _Field(t.DecimalType(20, 0), Decimal)),  # uint64, fixed64
    **dict.fromkeys((5, 15, 17), _Field(t.IntegerType())),  # int32, sfixed32, sint32
    **dict.fromkeys((7, 13), _Field(t.LongType())),  # fixed32, uint32
    8: _Field(t.BooleanType()),
    9: _Field(t.StringType()),
    12: _Field(t.BinaryType()),
}
_ENUM: Final = 14
TEXT: Final = "text"
_OUT_OF_RANGE: Final = "a number, text or time is out of the range of its type"


class _Text:
    """Values that are UTF-8."""

    def decode(self, payload: bytes) -> str:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise InvalidPayload(f"not text: byte {error.start} is not UTF-8") from None


class ValueParser(ABC):
    """Parses the values of messages into an Arrow column of one type."""

    arrow_type: pa.DataType

    @abstractmethod
    def _parse(self, value: bytes) -> tuple[Any, str | None]:
        """Return what a value holds, for Arrow, or why it does not fit."""

    def parse(self, values: Iterable[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Return the parsed values and the errors. In each row, at least one of both is null."""
        parsed, errors = list[Any](), list[str | None]()
        for value in values:
            data, error = (None, "the value is null") if value is None else self._parse(value)
            parsed.append(data)
            errors.append(error)
        try:
            return pa.array(parsed, self.arrow_type), pa.array(errors, pa.string())
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._one_by_one(parsed, errors)

    def _one_by_one(
        self, parsed: Sequence[Any], errors: list[str | None]
    ) -> tuple[pa.Array, pa.Array]:
        """Return the arrays, with an error for each value that a column cannot hold."""
        columns = []
        for at, value in enumerate(parsed):
            try:
                columns.append(pa.array([value], self.arrow_type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                columns.append(pa.nulls(1, self.arrow_type))
                errors[at] = _OUT_OF_RANGE
        return pa.concat_arrays(columns), pa.array(errors, pa.string())


class FormatParser(ValueParser):
    """Decodes values of one format into an Arrow column. `text` is the option ``valueFormat``.

    Raises InvalidOption if the text is no format, or if its values have no type in Spark.
    """

    def __init__(self, text: str) -> None:
        formats = integration("formats")
        self._format = _Text() if text == TEXT else formats.from_option(text)
        plain = self._format
        if isinstance(plain, formats.Confluent):
            plain = plain.format
        if isinstance(plain, _Text):
            field = _Field(t.StringType())
        elif isinstance(plain, formats.Avro):
            field = _avro(plain.schema, {})
        else:
            field = _message(plain.message_type.DESCRIPTOR, ())
        self.kind, self._convert = field.kind, field.convert
        self.arrow_type = to_arrow_type(self.kind, timezone="UTC")

    def _parse(self, value: bytes) -> tuple[Any, str | None]:
        try:
            decoded = self._format.decode(value)
            return (
                decoded if self._convert is None or decoded is None else self._convert(decoded)
            ), None
        except (InvalidPayload, UnknownSchema) as error:
            return None, str(error)
        except (OverflowError, ValueError):
            return None, _OUT_OF_RANGE


def _struct(fields: Mapping[str, _Field], get: Callable[[Any, str], Any]) -> _Field:
    """Return a struct. `get` returns a field of a value by name."""
    kind = t.StructType(
        [t.StructField(name, field.kind, field.nullable) for name, field in fields.items()]
    )
    steps = [(name, field.convert) for name, field in fields.items()]

    def convert(value: Any) -> dict[str, Any]:
        row = {}
        for name, inner in steps:
            item = get(value, name)
            row[name] = item if inner is None or item is None else inner(item)
        return row

    return _Field(kind, convert)


def _array(item: _Field) -> _Field:
    kind, inner = t.ArrayType(item.kind, item.nullable), item.convert
    if inner is None:
        return _Field(kind, list)
    return _Field(kind, lambda given: [None if value is None else inner(value) for value in given])


def _map(key: _Field, value: _Field) -> _Field:
    kind = t.MapType(key.kind, value.kind, value.nullable)

    def convert(given: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        return [
            (
                name if key.convert is None else key.convert(name),
                item if value.convert is None or item is None else value.convert(item),
            )
            for name, item in given.items()
        ]

    return _Field(kind, convert)


def _no_type(what: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"valueFormat has {what}, {why}. Read the column value, and decode it in your query",
        option="valueFormat",
        value=what,
    )


def _avro(schema: Any, named: dict[str, _Field]) -> _Field:
    if isinstance(schema, list):
        others = [kind for kind in schema if kind != "null"]
        if len(others) != 1:
            raise _no_type("a union of several types", "which have no common type in Spark")
        return _avro(others[0], named)._replace(nullable=len(others) < len(schema))
    if not isinstance(schema, Mapping):
        named_field = named.get(schema) or _AVRO.get(schema)
        if named_field is None:
            raise _no_type(f"the type {schema}", "which has none in Spark")
        return named_field
    kind, name = schema["type"], schema.get("name")
    if kind in ("record", "error"):
        fields = {field["name"]: _avro(field["type"], named) for field in schema["fields"]}
        named_field = _struct(fields, dict.__getitem__)
    elif kind == "array":
        named_field = _array(_avro(schema["items"], named))
    elif kind == "map":
        named_field = _map(_AVRO["string"], _avro(schema["values"], named))
    else:
        named_field = _avro_scalar(schema, kind, named)
    if name is not None:
        named[name] = named_field
    return named_field


def _avro_scalar(schema: Mapping[str, Any], kind: Any, named: dict[str, _Field]) -> _Field:
    logical = f"{kind}-{schema.get('logicalType')}"
    if logical in _TIMES:
        raise _no_type(f"the logical type {schema['logicalType']}", "a time of day")
    if logical in _DECIMALS:
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _MAX_PRECISION:
            raise _no_type(f"a decimal of {precision} digits", f"more than {_MAX_PRECISION}")
        return _Field(t.DecimalType(precision, scale))
    return _AVRO[logical] if logical in _AVRO else _avro(kind, named)


def _message(descriptor: Any, parents: tuple[str, ...]) -> _Field:
    name = descriptor.full_name
    if name in parents:
        raise _no_type(f"the message {name}", "which contains itself")
    if name == "google.protobuf.Timestamp":
        return _Field(t.TimestampType(), _micros)
    fields = {field.name: _protobuf(field, (*parents, name)) for field in descriptor.fields}
    present = {field.name for field in descriptor.fields if field.has_presence}

    def get(message: Any, field: str) -> Any:
        if field in present and not message.HasField(field):
            return None
        return getattr(message, field)

    return _struct(fields, get)


def _protobuf(field: Any, parents: tuple[str, ...]) -> _Field:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        return _map(_single(key, parents), _single(value, parents))
    single = _single(field, parents)
    return _array(single) if field.is_repeated else single._replace(nullable=field.has_presence)


def _single(field: Any, parents: tuple[str, ...]) -> _Field:
    """Return the type of one value of a field, without its presence or repetition."""
    if field.message_type is not None:
        return _message(field.message_type, parents)
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        # A newer publisher may have more of them.
        return _Field(t.StringType(), lambda number: names.get(number, str(number)))
    return _PROTOBUF[field.type]


def _micros(stamp: Any) -> int:
    """Return a Timestamp of Protobuf in microseconds since 1970."""
    micros: int = stamp.seconds * SECOND + stamp.nanos // 1_000
    if not EARLIEST <= micros <= LATEST:
        raise OverflowError
    return micros
