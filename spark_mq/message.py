"""Messages as people hand them in and get them: plain values, :class:`Message`, Arrow tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption, InvalidSchema
from spark_mq.parquet.writer import MESSAGE_SCHEMA, TIMES
from spark_mq.util.validation import EARLIEST, LATEST, check_duration, micros, nearest, shown, to_datetime

__all__ = [
    "DELIVERY_SCHEMA",
    "PUBLISH_COLUMNS",
    "Message",
    "ReceivedMessage",
    "check_publishable",
    "check_time",
    "from_rows",
    "received",
    "to_publish",
    "to_row",
]

PUBLISH_COLUMNS: Final = ("message_id", "key", "value", "headers", "published_at", "deliver_at", "expires_at")

_INSTANT = pa.timestamp("us", tz="UTC")
_ROW_SCHEMA: Final = pa.schema([MESSAGE_SCHEMA.field(name) for name in ("message_id", "key", "value", "headers", *TIMES)])
_IDS: Final = 1_000_000
"""Whose text one array of Arrow's holds with ease."""
_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))
"""Of RFC 9562, section 5.4: what becomes of octets 6 and 8."""
DELIVERY_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("published_at", _INSTANT),
        pa.field("delivery_count", pa.int32()),
        pa.field("lease_id", pa.string()),
        pa.field("lease_expires_at", _INSTANT),
    ]
)
"""The columns of what a lease hands out, in the stream as in the Python API."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. ``value``: bytes, or str (published as UTF-8). ``message_id``: a random one if not given.

    ``deliver_at``: not leased before (rounded up to a second). ``expires_at``: not leased from then on. Each an aware datetime, or a
    timedelta from when it is published.
    """

    value: bytes | str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    deliver_at: datetime | timedelta | None = None
    expires_at: datetime | timedelta | None = None


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as a lease hands it out; ``published_at`` is aware, ``delivery_count`` includes this delivery."""

    sequence: int
    message_id: str
    key: str | None
    value: bytes
    headers: dict[str, str]
    published_at: datetime
    delivery_count: int


def check_publishable(columns: Mapping[str, str]) -> None:
    """Whether columns, as name -> simple type name, can be published; for the DataFrame and the Arrow door alike.

    Raises InvalidSchema naming the column and the fix.
    """
    if "value" not in columns:
        hint = nearest("value", columns)
        raise InvalidSchema(
            "there is no column 'value' to publish" + (f"; rename {hint!r}?" if hint else "; build one, say to_json(struct('*')) AS value"),
            column="value",
        )
    if columns["value"] not in ("string", "binary"):
        raise InvalidSchema(
            f"column 'value' is {columns['value']}, not string or binary: cast it, or use to_json for a struct",
            column="value",
        )
    for name, kind in columns.items():
        if name not in PUBLISH_COLUMNS:
            hint = nearest(name, PUBLISH_COLUMNS)
            raise InvalidSchema(
                f"column {name!r} is not one of a message ({', '.join(PUBLISH_COLUMNS)})"
                + (f"; did you mean {hint!r}?" if hint else "; put it into value or headers, or drop it"),
                column=name,
            )
        wanted = "timestamp" if name.endswith("_at") else "map<string,string>" if name == "headers" else "string"
        if name != "value" and kind.replace(" ", "") != wanted:
            raise InvalidSchema(f"column {name!r} is {kind}, not {wanted}: cast it", column=name)


def to_publish(messages: Any, now: int, times: Mapping[str, int] | None = None) -> pa.Table:
    """Messages as a table of the columns of ``messages/``: from bytes, str, Message, a list of these, or an Arrow table.

    Ids and times that are not given are filled in: a uuid4, `now`, and the `times` of TIMES that there are (all in microseconds).
    """
    table = messages if isinstance(messages, pa.Table) else _from_values(messages, now)
    for name in table.schema.names:
        if table.schema.names.count(name) > 1:
            raise InvalidSchema(f"column {name!r} is there twice: keep one", column=name)
    check_publishable({name: _simple(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)})
    if table["value"].null_count:
        raise InvalidSchema(f"{table['value'].null_count} values are null: a message needs a value, if an empty one", column="value")
    if "message_id" not in table.schema.names or table["message_id"].null_count:
        ids = random_ids(table.num_rows)
        given = table["message_id"] if "message_id" in table.schema.names else None
        table = _with(table, "message_id", ids if given is None else pc.coalesce(given.cast(pa.string()), ids))
    if "published_at" not in table.schema.names:
        table = _with(table, "published_at", pa.repeat(pa.scalar(now, pa.int64()).cast(_INSTANT), table.num_rows))
    for name, at in (times or {}).items():
        given = _cast(table[name], MESSAGE_SCHEMA.field(name)) if name in table.schema.names else pa.nulls(table.num_rows, _INSTANT)
        table = _with(table, name, given.fill_null(pa.scalar(at, pa.int64()).cast(_INSTANT)))
    for name in table.schema.names:
        table = _with(table, name, _cast(table[name], MESSAGE_SCHEMA.field(name)))
    for name in table.schema.names:
        if name.endswith("_at"):
            ends = pc.min_max(table[name].cast(pa.int64())).as_py()
            if ends["min"] is not None and not EARLIEST <= ends["min"] <= ends["max"] <= LATEST:
                raise InvalidSchema(f"column {name!r} has an instant out of range: use years 1 to 9999", column=name)
    return table


def random_ids(count: int) -> pa.ChunkedArray:
    """So many uuid4 as text. By Arrow: 100,000 made one by one took longer than all else that a file of short messages takes to write."""
    return pa.chunked_array([_some_ids(min(_IDS, count - start)) for start in range(0, count, _IDS)], pa.string())


def _some_ids(count: int) -> pa.StringArray:
    raw = bytearray(os.urandom(16 * count))
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    digits = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(raw.hex().encode())]).cast(pa.binary())
    parts = [pc.binary_slice(digits, first, end) for first, end in pairwise((0, 8, 12, 16, 20, 32))]
    return pc.binary_join_element_wise(*parts, b"-").cast(pa.string())


def _cast(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise InvalidSchema(f"column {wanted.name!r} has a value that {wanted.type} cannot hold", column=wanted.name) from error


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    if name in table.schema.names:
        return table.set_column(table.schema.get_field_index(name), name, column)
    return table.append_column(name, column)


def _from_values(messages: Any, now: int) -> pa.Table:
    if isinstance(messages, bytes | str | Message):
        messages = [messages]
    if not isinstance(messages, Iterable):
        raise InvalidOption(
            f"cannot publish {type(messages).__name__}: give bytes, str, Message, a list of these, or a pyarrow.Table",
            option="messages",
            value=type(messages).__name__,
        )
    return from_rows(to_row(message, f"message {at}", lambda: now) for at, message in enumerate(messages))


def from_rows(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of :func:`to_row` as a table that :func:`to_publish` takes."""
    return pa.Table.from_pylist(list(rows), schema=_ROW_SCHEMA)


def to_row(message: Any, which: str, now: Callable[[], int]) -> dict[str, Any]:
    """A message (bytes, str, Message) as a row. ``now``: what its times are told from, if they are durations. Raises InvalidOption."""
    if isinstance(message, bytes):  # by far the most, where speed counts
        return {"value": message}
    m = message if isinstance(message, Message) else Message(message)
    problem = _problem(m)
    if problem is not None:
        raise InvalidOption(f"{which} has {problem}", option="messages", value=which)
    return {
        "message_id": m.message_id,
        "key": m.key,
        "value": m.value.encode() if isinstance(m.value, str) else m.value,
        "headers": list(m.headers.items()) or None,  # without any: null, as other writers leave them
        "deliver_at": _at(m.deliver_at, now),
        "expires_at": _at(m.expires_at, now),
    }


def _problem(m: Message) -> str | None:
    """What is wrong with a message, never its contents: those are not ours to tell."""
    if not isinstance(m.value, bytes | str):
        return f"a value of type {type(m.value).__name__}: give bytes or str"
    for name, given in (("key", m.key), ("message_id", m.message_id)):
        if given is not None and not isinstance(given, str):
            return f"a {name} of type {type(given).__name__}: give str"
    if not isinstance(m.headers, Mapping) or not all(isinstance(text, str) for pair in m.headers.items() for text in pair):
        return "headers that are no mapping from str to str"
    texts = [m.value, m.key, m.message_id, *(text for pair in m.headers.items() for text in pair)]
    if not all(_is_utf8(text) for text in texts if isinstance(text, str)):
        return "text that has no UTF-8 form (a lone surrogate)"
    for name, at in zip(TIMES, (m.deliver_at, m.expires_at), strict=True):
        if problem := _time_problem(at):
            return f"a {name} that is {problem}"
    return None


def check_time(option: str, at: Any, now: int) -> int:
    """The instant of a deliver_at or expires_at, in microseconds. Raises InvalidOption."""
    if problem := _time_problem(at):
        raise InvalidOption(f"{option}={shown(at)} is {problem}", option=option, value=at)
    return micros(at) if isinstance(at, datetime) else now + check_duration(option, at, zero=True)


def _at(given: datetime | timedelta | None, now: Callable[[], int]) -> datetime | None:
    return to_datetime(now() + check_duration("time", given, zero=True)) if isinstance(given, timedelta) else given


def _time_problem(at: Any) -> str:
    if at is None:
        return ""
    if isinstance(at, timedelta):
        try:
            check_duration("time", at, zero=True)
        except InvalidOption:
            return "no time from now: use a timedelta of none or more, up to 100 years"
        return ""
    if not (isinstance(at, datetime) and at.tzinfo is not None):
        return "no datetime with a time zone, nor a timedelta from now"
    try:
        micros(at)
    except InvalidOption:
        return "out of range in UTC: use years 1 to 9999"
    return ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _simple(kind: pa.DataType) -> str:
    """Spark's simple name of an Arrow type, as far as messages need it."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_timestamp(kind) and kind.tz:
        return "timestamp"
    if pa.types.is_map(kind):
        return f"map<{_simple(kind.key_type)},{_simple(kind.item_type)}>"
    return str(kind)


def received(table: pa.Table) -> list[ReceivedMessage]:
    """The rows of a table of DELIVERY_SCHEMA as objects."""
    columns = {name: table[name].to_pylist() for name in ("sequence", "message_id", "key", "value", "headers", "delivery_count")}
    instants = [to_datetime(i) for i in table["published_at"].cast(pa.int64()).to_pylist()]
    return [
        ReceivedMessage(seq, mid, key, value, dict(headers or ()), at, count)
        for seq, mid, key, value, headers, count, at in zip(*columns.values(), instants, strict=True)
    ]
