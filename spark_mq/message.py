"""Define messages and their formats, and convert them to and from Arrow tables."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex, TypedDict, Unpack

import pyarrow as pa

from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.parquet.publish_table import complete_table
from spark_mq.parquet.schema import DEDUP_FIELD, MESSAGE_SCHEMA, TIME_COLUMNS
from spark_mq.util.clock import EARLIEST, Duration, to_datetime, to_micros
from spark_mq.util.records import Record
from spark_mq.util.show import show_time
from spark_mq.util.validation import parse_instant, plain_number, short_repr, validate_duration

SHOWN_ERRORS: Final = 3  # that the text of an error lists


class Format(Protocol):
    """Encodes and decodes the values of messages. Your own class may do it, too."""

    def encode(self, value: Any) -> bytes:
        """Return a value as the payload of a message. Raises InvalidOption."""

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload. Raises InvalidPayload, which must not show the payload."""


def unencodable(value: Any, why: str) -> InvalidOption:
    kind = type(value).__name__
    return InvalidOption(f"a value of type {kind} {why}", option="value", value=kind)


def unusable(format: Any, why: str) -> InvalidOption:
    """Return an error for what is given as a format. A class is named, an object by its class."""
    given = getattr(format, "__name__", type(format).__name__)
    return InvalidOption(f"format={short_repr(given)} {why}", option="format", value=given)


class Json:
    """JSON in UTF-8, without NaN and Infinity.

    Examples
    --------
    >>> Json().decode(b'{"id": 1}')
    {'id': 1}
    """

    def encode(self, value: Any) -> bytes:
        """Return dicts, lists, text, finite numbers, booleans and None as JSON."""
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if isinstance(error, UnicodeEncodeError):
                why = "it has text that has no UTF-8 form (a lone surrogate)"
            hint = "Give dicts, lists, text, finite numbers, booleans and None"
            raise unencodable(value, f"has no JSON form: {why}. {hint}") from None

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload. Raises InvalidPayload."""
        try:
            return json.loads(payload.decode(), parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            why = f"byte {error.start} is not UTF-8"
        except json.JSONDecodeError as error:
            why = f"{error.msg} at character {error.pos}"
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidPayload(f"not JSON: {why}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


HEADER_PREFIX: Final = "spark_mq."  # of the headers that spark_mq writes
REDRIVEN_FROM: Final = HEADER_PREFIX + "redriven_from"  # in a redriven message: its dead letter
REPAIRED: Final = HEADER_PREFIX + "repaired"  # in a redriven message that a transform has repaired
_JSON: Final = Json()
_ROW_COLUMNS: Final = ("message_id", "key", "value", "headers", *TIME_COLUMNS, "priority")
_ROW_SCHEMA: Final = pa.schema([MESSAGE_SCHEMA.field(name) for name in _ROW_COLUMNS])
_OF_LEASES: Final = frozenset(
    ("ack", "append", "extend", "keep_alive", "lease_id", "messages", "nack", "reject", "release",
     "table", "worker_id")
)  # fmt: skip
"""What only a lease has, for the error of a handler that takes a message for one."""
_UNIX_TIME: Final = 1e9
"""Seconds from which on a number is a Unix time, since nobody delays a message for 31 years."""
_NO_TIME: Final = (
    "not a datetime with a time zone, nor a time from now: give seconds, a timedelta, or text like "
    "'5s', from 0 to 100 years"
)


class MessageFields(TypedDict, total=False):
    """The parameters of :class:`Message` except its value."""

    key: str | None
    headers: Mapping[str, str]
    message_id: str | None
    deliver_at: datetime | Duration | None
    expires_at: datetime | Duration | None
    dedup_id: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class Message:
    """Describe a message to publish.

    Parameters
    ----------
    value
        The payload. Text is published as UTF-8.
    key, message_id
        Any text. The default id is a random UUID.
    headers
        Text by name.
    deliver_at
        When the message may be leased first: an aware datetime, or a duration from the publish as
        seconds, a timedelta, or text such as "5s". A time in the future is rounded up to a second.
        Default: at once.
    expires_at
        From when on the message may not be leased. As `deliver_at`. Default: never.
    dedup_id
        Any text. A second message with it, within the queue's ``dedup_window`` or as its
        ``dedup_until`` says, is not published. With ``dedup_replaces`` it replaces the first one.
    priority
        0 to 9. A higher priority is leased first.

    Examples
    --------
    >>> Message("hello", key="k", deliver_at="5m").key
    'k'
    """

    value: bytes | str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    deliver_at: datetime | Duration | None = None
    expires_at: datetime | Duration | None = None
    dedup_id: str | None = None
    priority: int = 0

    @classmethod
    def json(cls, value: Any, **fields: Unpack[MessageFields]) -> Message:
        """Return a message whose payload is a value as JSON. Raises InvalidOption.

        The value may be dicts, lists, text, finite numbers, booleans and None. The fields are the
        other parameters of :class:`Message`.

        Examples
        --------
        >>> Message.json({"id": 1}, key="k").value
        '{"id":1}'
        """
        return cls(_JSON.encode(value).decode(), **fields)

    @classmethod
    def encode(cls, value: Any, format: Format, **fields: Unpack[MessageFields]) -> Message:
        """Return a message whose payload is a value in a format. Raises InvalidOption.

        The format is one of ``spark_mq.integrations.formats``, or an object of your own with
        ``encode`` and ``decode``. The fields are the other parameters of :class:`Message`.

        Examples
        --------
        >>> from spark_mq.integrations.formats import Json
        >>> Message.encode({"id": 1}, Json()).value
        b'{"id":1}'
        """
        return cls(check_format(format).encode(value), **fields)


@dataclass(frozen=True, slots=True)
class ReceivedMessage(Record):
    """Hold a message of a lease. All times are aware datetimes in UTC.

    Parameters
    ----------
    sequence
        The position of the message in the queue.
    message_id
        The publisher's id, or the sequence in decimal.
    key, value
        The publisher's key, or None, and the payload.
    headers
        Text by name. Empty if the publisher gave none.
    published_at
        When it was published.
    delivery_count, failure_count
        Deliveries, this one included, and failures until this delivery.
    first_leased_at
        When the group leased the message for the first time, which may be this lease.
    priority
        The publisher's priority, 0 to 9.
    deliver_at, expires_at
        The times that the publisher gave, or None.
    data
        The decoded payload, if the worker was given a format. Otherwise None.
    """

    sequence: int
    message_id: str
    key: str | None
    value: bytes
    headers: dict[str, str]
    published_at: datetime
    delivery_count: int
    failure_count: int = 0
    first_leased_at: datetime | None = None
    priority: int = 0
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    data: Any = field(default=None, repr=False, compare=False)

    if not TYPE_CHECKING:  # else a type checker would allow each name

        def __getattr__(self, name: str) -> Any:
            if name in _OF_LEASES:
                raise AttributeError(
                    f"a message has no {name!r}, but a lease has: the handler gets single "
                    'messages. Give mode="batch" (--mode batch) if it takes a lease',
                    name=name,
                    obj=self,
                )
            return object.__getattribute__(self, name)

    @property
    def text(self) -> str:
        """Return the payload as UTF-8 text. Raises InvalidPayload for other bytes."""
        try:
            return self.value.decode()
        except UnicodeDecodeError as error:
            raise InvalidPayload(
                f"message {self.sequence} is not text: byte {error.start} is not UTF-8. Use its "
                "value, or reject it",
                sequence=self.sequence,
            ) from None

    def json(self) -> Any:
        """Return the value of the payload, which is JSON in UTF-8.

        Raises InvalidPayload, which shows no contents, for other payloads, NaN and Infinity.
        """
        try:
            return _JSON.decode(self.value)
        except InvalidPayload as error:
            text = f"message {self.sequence} is {error}. Use its value, or reject it"
            raise InvalidPayload(text, sequence=self.sequence) from None

    def decode(self, format: Format) -> Any:
        """Return the value of the payload in a format, as for :meth:`Message.encode`.

        Raises InvalidPayload, which shows no contents, if the payload is not of the format.
        """
        try:
            return check_format(format).decode(self.value)
        except InvalidPayload as error:
            text = f"message {self.sequence}: {error}"
            raise InvalidPayload(text, sequence=self.sequence) from None


MessageSelector = ReceivedMessage | Iterable[SupportsIndex | ReceivedMessage]
"""A message, or several messages or sequences."""


def check_format(format: Any) -> Format:
    if not isinstance(format, type) and all(
        callable(getattr(format, name, None)) for name in ("encode", "decode")
    ):
        checked: Format = format
        return checked
    raise unusable(
        format,
        "cannot encode and decode: give an object such as Json(), Pydantic(Order), Avro(schema) or "
        "Protobuf(Order) of spark_mq.integrations.formats",
    )


def to_publish(messages: Any, now: int, times: Mapping[str, int] | None = None) -> pa.Table:
    """Return messages as a table with columns of ``messages/``. Raises as a publish.

    ``times`` has default deliver_at and expires_at in microseconds since 1970.
    """
    table = messages if isinstance(messages, pa.Table) else _from_values(messages, now)
    return complete_table(table, now, times or {})


def _from_values(messages: Any, now: int) -> pa.Table:
    if isinstance(messages, bytes | str | Message):
        messages = [messages]
    # Some containers would iterate over something else than messages, as a dict does over its keys.
    odd = isinstance(messages, Mapping | Set | bytearray | memoryview)
    if odd or not isinstance(messages, Iterable) or hasattr(messages, "columns"):
        raise InvalidOption(
            f"cannot publish {type(messages).__name__}: give bytes, str, Message, a list of "
            f"these, or a pyarrow.Table{_example(messages)}",
            option="messages",
            value=type(messages).__name__,
        )
    rows = enumerate(messages)
    return from_rows(to_row(message, f"message {at}", lambda: now) for at, message in rows)


def _example(value: Any) -> str:
    """Return how to publish a value of a wrong type. It stands in errors, so it has no contents."""
    if isinstance(value, Mapping):
        return ", such as queue.publish(Message.json(value))"
    if isinstance(value, Set):
        return ", such as queue.publish(sorted(values)): a set has no order"
    if isinstance(value, bytearray | memoryview):
        return ", such as queue.publish(bytes(value))"
    if isinstance(value, int | float):
        return ", such as queue.publish(str(value))"
    if hasattr(value, "columns"):
        return ", such as queue.publish(pyarrow.table(value))"
    return ", such as queue.publish('text')"


def from_rows(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    listed = list(rows)
    unique = any("dedup_id" in row for row in listed)
    schema = _ROW_SCHEMA.append(DEDUP_FIELD) if unique else _ROW_SCHEMA
    return pa.Table.from_pylist(listed, schema=schema)


def to_row(message: Any, which: str, now: Callable[[], int]) -> dict[str, Any]:
    """Return bytes, str or a Message as a row. Raises InvalidOption, with ``which`` as its name."""
    if isinstance(message, bytes):  # The fast path of bulk publishers.
        return {"value": message}
    m = message if isinstance(message, Message) else Message(message)
    problem = _problem(m)
    if problem is not None:
        raise InvalidOption(f"{which} has {problem}", option="messages", value=which)
    deliver_at, expires_at = _times(m, now)
    if deliver_at is not None and expires_at is not None and expires_at <= deliver_at:
        raise expires_too_early(which, m.expires_at, m.deliver_at)
    return {
        "message_id": m.message_id,
        "key": m.key,
        "value": m.value.encode() if isinstance(m.value, str) else m.value,
        "headers": list(m.headers.items()) or None,  # Null, as other writers leave it.
        "deliver_at": deliver_at,
        "expires_at": expires_at,
        "priority": plain_number(m.priority) or None,
        **({} if m.dedup_id is None else {"dedup_id": m.dedup_id}),
    }


def _problem(m: Message) -> str | None:
    """Return what is wrong with a message. Never include its contents."""
    if not isinstance(m.value, bytes | str):
        text = f"a value of type {type(m.value).__name__}: give bytes or str"
        return text + _example(m.value)
    for name, given in (("key", m.key), ("message_id", m.message_id), ("dedup_id", m.dedup_id)):
        if given is not None and not isinstance(given, str):
            return f"a {name} of type {type(given).__name__}: give str"
    headers = _header_texts(m.headers)
    if headers is None:
        return "headers that aren't a mapping from str to str: leave out a header without a value"
    texts = [m.value, m.key, m.message_id, m.dedup_id, *headers]
    if not all(is_utf8(text) for text in texts if isinstance(text, str)):
        return "text that has no UTF-8 form (a lone surrogate)"
    for name, at in zip(TIME_COLUMNS, (m.deliver_at, m.expires_at), strict=True):
        if problem := _time_problem(at):
            return f"a {name} that is {problem}"
    return _priority_problem(m.priority)


def _priority_problem(priority: Any) -> str | None:
    priority = plain_number(priority)
    if type(priority) is int and 0 <= priority <= MAX_PRIORITY:
        return None
    return f"the priority {short_repr(priority)}: give a whole number from 0 to {MAX_PRIORITY}"


def _header_texts(headers: Any) -> list[str] | None:
    if not isinstance(headers, Mapping):
        return None
    texts = [text for pair in headers.items() for text in pair]
    return texts if all(isinstance(text, str) for text in texts) else None


def check_time(option: str, at: Any, now: int, *, later: bool = False) -> int:
    """Return an instant in microseconds since 1970, with `later` after now. Raise InvalidOption."""
    problem = _time_problem(at)
    if not problem:
        is_instant = isinstance(at, datetime)
        instant = to_micros(at) if is_instant else now + validate_duration(option, at, zero=True)
        if not later or instant > now:
            return instant
        problem = "over: give a later time"
    raise InvalidOption(f"{option}={short_repr(at)} is {problem}", option=option, value=at)


def check_past(option: str, at: Any, now: int) -> int:
    """Return an instant or a time before now in microseconds since 1970. Raise InvalidOption."""
    back = at.strip().removeprefix("-") if isinstance(at, str) else plain_number(at)
    try:
        if isinstance(at, datetime):
            return to_micros(at)
        if isinstance(at, str) and ":" in at:
            return to_micros(parse_instant(option, at))
        if isinstance(back, int | float | timedelta) and not isinstance(back, bool):
            back = abs(back)
        return max(EARLIEST, now - validate_duration(option, back, zero=True))
    except InvalidOption:
        raise InvalidOption(
            f"{option}={short_repr(at)} is neither a datetime with a time zone nor a time before "
            "now: give seconds, a timedelta, or text like '7d' or '2026-01-31T12:00:00Z'",
            option=option,
            value=at,
        ) from None


def expires_too_early(which: str, expires_at: Any, deliver_at: Any) -> InvalidOption:
    text = f"{which} has expires_at={_show_time(expires_at)}, which is not later than its "
    text += f"deliver_at={_show_time(deliver_at)}, so no worker could lease it. Give a later "
    return InvalidOption(f"{text}expires_at", option="expires_at", value=expires_at)


def _show_time(at: Any) -> str:
    return show_time(at) if isinstance(at, datetime) else short_repr(at)


def _times(m: Message, now: Callable[[], int]) -> tuple[datetime | None, datetime | None]:
    """Return deliver_at and expires_at, both from one instant."""
    given = m.deliver_at, m.expires_at
    start = 0 if all(at is None or isinstance(at, datetime) for at in given) else now()
    return _at(m.deliver_at, start), _at(m.expires_at, start)


def _at(given: datetime | Duration | None, start: int) -> datetime | None:
    if given is None or isinstance(given, datetime):
        return given
    return to_datetime(start + validate_duration("time", given, zero=True))


def _time_problem(at: Any) -> str:
    if at is None:
        return ""
    number = plain_number(at)
    if isinstance(number, int | float) and number >= _UNIX_TIME:
        return "not a time from now but a Unix time: give datetime.fromtimestamp(..., UTC)"
    try:
        if not isinstance(at, datetime):
            validate_duration("time", at, zero=True)
        elif at.tzinfo is not None:
            to_micros(at)
        else:
            return _NO_TIME
    except InvalidOption:
        known = isinstance(at, datetime)
        return "out of range in UTC: use years 1 to 9999" if known else _NO_TIME
    return ""


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_received(table: pa.Table, more: Sequence[Sequence[Any]] = ()) -> list[ReceivedMessage]:
    """Return the rows of a DELIVERY_SCHEMA table as messages. `more` has the further fields."""
    instants = table["published_at"].cast(pa.int64()).to_pylist()
    known = {instant: to_datetime(instant) for instant in set(instants)}
    headers = table["headers"]
    given = headers.to_pylist() if headers.null_count < len(headers) else [None] * len(headers)
    columns = [
        table["sequence"].to_pylist(),
        table["message_id"].to_pylist(),
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        list(map(to_headers, given)),
        [known[instant] for instant in instants],
        table["delivery_count"].to_pylist(),
        *more,
    ]
    return _from_columns(columns)


def _from_columns(columns: Sequence[Sequence[Any]]) -> list[ReceivedMessage]:
    """Return messages by the columns of their first fields.

    The constructor of a frozen class sets each field in Python, which takes more than twice as
    long: a third of the time of a lease, read and ack of small messages.
    """
    messages = list(map(object.__new__, repeat(ReceivedMessage, len(columns[0]))))
    for position, slot in enumerate(fields(ReceivedMessage)):
        column = columns[position] if position < len(columns) else repeat(slot.default)
        set_slot = getattr(ReceivedMessage, slot.name).__set__
        deque(map(set_slot, messages, column), maxlen=0)
    return messages


def to_headers(pairs: Iterable[tuple[str, str | None]] | None) -> dict[str, str]:
    """Return headers by name. Other writers may have left null values, which are no headers."""
    return {name: text for name, text in pairs or () if text is not None}
