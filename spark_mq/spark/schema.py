"""The columns of ``format("spark_mq")``, and those of JSON values by the option ``valueSchema``.

Spark parses DDL only with a session, and the source's processes have none. So this module does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from spark_mq.errors import InvalidOption, InvalidSchema
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.util.validation import short_repr, suggest

__all__ = [
    "DATA_COLUMNS",
    "PAYLOAD_COLUMNS",
    "READ_SCHEMA",
    "SEVERAL_SCHEMA",
    "arrow_schema",
    "check_projection",
    "data_fields",
    "format_of",
    "parse_value_schema",
    "read_schema",
]


DATA_COLUMNS: Final = ("data", "data_error")  # that valueSchema and valueFormat add to a read
_OPTION: Final = "valueSchema"
_FORMAT_OPTION: Final = "valueFormat"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<word>[^\W\d]\w*)|(?P<quoted>`(?:[^`]|``)+`)|(?P<number>\d+)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign>[<>(),:]))"
)
_PLAIN: Final[dict[str, Callable[[], t.DataType]]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NAMES: Final = (*_PLAIN, *_DECIMALS, "array", "map", "struct")
_MAX_PRECISION: Final = 38

T = TypeVar("T")


def data_fields(kind: t.DataType, value_format: str | None = None) -> list[t.StructField]:
    """Return the columns that a schema of values adds to a read. The first keeps their format."""
    kept = None if value_format is None else {_FORMAT_OPTION: value_format}
    return [t.StructField("data", kind, True, kept), t.StructField("data_error", t.StringType())]


def format_of(data: t.StructField) -> str | None:
    """Return the option ``valueFormat`` of a read by its column ``data``, or None for JSON."""
    option: str | None = data.metadata.get(_FORMAT_OPTION)
    return option


def parse_value_schema(text: str) -> t.DataType:
    """Return the type of values, from columns or from one type. Raise InvalidOption."""
    tokens = _tokens(text)
    whole = _Parser(text, tokens)
    try:
        return whole.all_of(whole.type)
    except InvalidOption:
        if [token.lower() for token in tokens[1:2]] == ["<"]:
            raise
    fields = _Parser(text, tokens)
    return t.StructType(fields.all_of(lambda: fields.fields(""))) if tokens else fields.fail()


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(text, f"{text[at:].strip()[:20]!r} is not part of a schema")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


def _error(text: str, reason: str) -> InvalidOption:
    return InvalidOption(
        f"{_OPTION}={short_repr(text)} is not a schema of JSON values: {reason}. Give columns such "
        f"as 'id INT, items ARRAY<STRING>'",
        option=_OPTION,
        value=text,
    )


class _Parser:
    """Reads types and fields from a schema's tokens, in order."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self._tokens = [*tokens, ""]  # The empty token is the end.
        self._at = 0

    def all_of(self, part: Callable[[], T]) -> T:
        """Return a part that must be the whole text."""
        whole = part()
        return whole if self._peek() == "" else self.fail()

    def fail(self) -> T:  # type: ignore[type-var]
        token = self._peek()
        raise _error(self._text, f"it cannot have {token!r} there" if token else "it ends early")

    def _peek(self) -> str:
        return self._tokens[self._at].lower()

    def _take(self, *wanted: str) -> str:
        token = self._tokens[self._at]
        if not token or (wanted and token.lower() not in wanted):
            self.fail()
        self._at += 1
        return token

    def _skip(self, token: str) -> bool:
        there = self._peek() == token
        self._at += there
        return there

    def fields(self, end: str) -> list[t.StructField]:
        listed = [self._field()]
        while self._peek() != end:
            self._take(",")
            listed.append(self._field())
        names = [field.name for field in listed]
        for name in names:
            if names.count(name) > 1:
                raise _error(self._text, f"column {name!r} is there twice")
        return listed

    def _field(self) -> t.StructField:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not name.isidentifier():
            self._at -= 1
            self.fail()
        self._skip(":")
        kind = self.type()
        nullable = not self._skip("not")
        if not nullable:
            self._take("null")
        if self._skip("comment") and self._take()[:1] not in "'\"":
            self._at -= 1
            self.fail()
        return t.StructField(name, kind, nullable)

    def type(self) -> t.DataType:
        name = self._take().lower()
        if name in _PLAIN:
            return _PLAIN[name]()
        if name in _DECIMALS:
            return self._decimal()
        if name not in _NAMES:
            hint = suggest(name, _NAMES)
            fix = f"did you mean {hint!r}" if hint else f"the types are {', '.join(_NAMES)}"
            raise _error(self._text, f"there is no type {name!r} for JSON values: {fix}")
        self._take("<")
        kind: t.DataType
        if name == "array":
            kind = t.ArrayType(self.type())
        elif name == "map":
            self._take("string")  # The names of a JSON object are text.
            self._take(",")
            kind = t.MapType(t.StringType(), self.type())
        else:
            kind = t.StructType(self.fields(">"))
        self._take(">")
        return kind

    def _decimal(self) -> t.DataType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            if self._skip(","):
                scale = self._number()
            self._take(")")
        if not scale <= precision <= _MAX_PRECISION or precision == 0:
            raise _error(
                self._text,
                f"DECIMAL({precision},{scale}) needs a precision of 1 to {_MAX_PRECISION}, and no "
                f"larger scale",
            )
        return t.DecimalType(precision, scale)

    def _number(self) -> int:
        is_number = re.fullmatch("[0-9]{1,9}", self._peek())
        return int(self._take()) if is_number else self.fail()


_DELIVERED: Final = t.StructType(
    [
        t.StructField("sequence", t.LongType()),
        t.StructField("message_id", t.StringType()),
        t.StructField("key", t.StringType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("headers", t.MapType(t.StringType(), t.StringType())),
        t.StructField("published_at", t.TimestampType()),
        t.StructField("priority", t.IntegerType()),
        t.StructField("delivery_count", t.IntegerType()),
        t.StructField("lease_id", t.StringType()),
        t.StructField("lease_expires_at", t.TimestampType()),
    ]
)
# The last six columns are the message's state in the group. A stream has the state at its lease.
READ_SCHEMA: Final = t.StructType(
    [
        *_DELIVERED.fields,
        t.StructField("state", t.StringType()),
        t.StructField("failure_count", t.IntegerType()),
        t.StructField("worker_id", t.StringType()),
        t.StructField("available_at", t.TimestampType()),
        t.StructField("reason", t.StringType()),
        t.StructField("error", t.StringType()),
    ]
)

SEVERAL_SCHEMA: Final = t.StructType([*READ_SCHEMA.fields, t.StructField("queue", t.StringType())])

PAYLOAD_COLUMNS: Final = frozenset(FILE_SCHEMA.names)


# Columns that the option ``outcomes`` adds to a batch read.
OUTCOME_FIELDS: Final = (
    t.StructField("outcome", t.StringType()),
    t.StructField("settled_at", t.TimestampType()),
)


def read_schema(
    several: bool,
    value_schema: t.DataType | None,
    value_format: str | None = None,
    *,
    outcomes: bool = False,
) -> t.StructType:
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    added = [*OUTCOME_FIELDS] if outcomes else []
    if value_schema is not None:
        added += data_fields(value_schema, value_format)
    return t.StructType([*schema.fields, *added]) if added else schema


def arrow_schema(schema: t.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def check_projection(
    schema: t.StructType,
    several: bool,
    value_schema: t.DataType | None = None,
    *,
    outcomes: bool = False,
) -> None:
    """Raise InvalidSchema if ``.schema(...)`` has an unknown column or another type."""
    columns = read_schema(several, value_schema, outcomes=outcomes).fields
    known = {f.name: f.dataType for f in columns}
    for wanted in schema.fields:
        if wanted.name not in known:
            fix = ""
            if wanted.name in DATA_COLUMNS:
                fix = ". The option valueSchema adds it, or valueFormat"
            if wanted.name in (outcome.name for outcome in OUTCOME_FIELDS):
                fix = ". The option outcomes of spark.read adds it"
            raise InvalidSchema(
                f"there is no column {wanted.name!r} to read. Choose from {', '.join(known)}{fix}",
                column=wanted.name,
            )
        if known[wanted.name].simpleString() != wanted.dataType.simpleString():
            raise InvalidSchema(
                f"column {wanted.name!r} is {known[wanted.name].simpleString()}, not "
                f"{wanted.dataType.simpleString()}. Cast it after the read",
                column=wanted.name,
            )
    if "data_error" in schema.names and "data" not in schema.names:
        raise InvalidSchema("column 'data_error' needs 'data': read both", column="data")
