"""Put the header of Confluent's serializers before the values of another format."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from spark_mq.errors import InvalidOption, InvalidPayload, UnknownSchema
from spark_mq.integrations.formats.avro import Avro
from spark_mq.integrations.formats.protobuf import Protobuf
from spark_mq.integrations.formats.pydantic_model import Pydantic
from spark_mq.payload_format import Json, unusable
from spark_mq.util.validation import invalid, plain_number, short_repr, validate_count

_MAGIC: Final = b"\0"
_HEADER_BYTES: Final = 5
_MAX_SCHEMA_ID: Final = 2**31 - 1


class Confluent:
    """Another format with the header of Confluent's serializers: a zero byte and a schema id.

    Protobuf also has the position of the message in its file there. Positions that are not those of
    the class are refused.

    Parameters
    ----------
    format
        :class:`Avro`, :class:`Protobuf`, :class:`Json` or :class:`Pydantic`.
    schema_id
        The id of the format's schema in the registry. Default: none, so nothing can be encoded.
    schemas
        For Avro: the schema of each other id, as a mapping, a function, or a client of a registry
        with ``get_schema(id).schema_str``, as ``confluent_kafka`` has it. A function returns None
        for an unknown id. Values are then read by Avro's rules of resolution. The schemas are kept.
        Default: none.

    Raises
    ------
    InvalidOption
        An Avro format has neither `schema_id` nor `schemas`. The format is another one, or
        `schemas` has a key that is no id, or a schema that cannot be used.

    Examples
    --------
    >>> Confluent(Avro('"long"'), schema_id=9).encode(7)
    b'\\x00\\x00\\x00\\x00\\t\\x0e'
    """

    def __init__(
        self,
        format: Avro | Protobuf | Json | Pydantic,
        schema_id: int | None = None,
        schemas: Mapping[int, Any] | Callable[[int], Any] | Any = None,
    ) -> None:
        if not isinstance(format, Avro | Protobuf | Json | Pydantic):
            raise unusable(
                format,
                "has no schemas of a registry: give an object such as Avro(schema), "
                "Protobuf(Order), Pydantic(Order) or Json()",
            )
        if schema_id is not None:
            schema_id = validate_count("schema_id", schema_id, most=_MAX_SCHEMA_ID)
        if schemas is not None:
            _check_schemas(format, schemas)
        if isinstance(format, Avro) and schema_id is None and schemas is None:
            raise InvalidOption(
                "the schemas of the messages are unknown: give schema_id=... if all have that of "
                "the format, or schemas=... with a mapping, a function or the registry's client",
                option="schemas",
                value=None,
            )
        self.format, self.schema_id, self.schemas = format, schema_id, schemas
        self._parsed: dict[int, Any] = {} if schema_id is None else {schema_id: None}
        for number in schemas if isinstance(schemas, Mapping) else ():
            self._schema(number)

    @property
    def option(self) -> str:
        """Return the format as the text of ``valueFormat``. The schemas must be a mapping."""
        if not isinstance(self.schemas, Mapping | None) or not hasattr(self.format, "option"):
            raise InvalidOption(
                "a stream needs a format of Avro or Protobuf, and the schemas as a mapping "
                "{id: schema}: its tasks have no function and no client",
                option="valueFormat",
                value=type(self.format).__name__,
            )
        schemas = {str(number): _text_of(schema) for number, schema in (self.schemas or {}).items()}
        framing = {"schema_id": self.schema_id, "schemas": schemas}
        return json.dumps({**json.loads(self.format.option), "confluent": framing})

    def encode(self, value: Any) -> bytes:
        """Return a value with the header of `schema_id`. Raises InvalidOption."""
        if self.schema_id is None:
            raise InvalidOption(
                "a value cannot be encoded without the id of its schema: give schema_id=...",
                option="schema_id",
                value=None,
            )
        header = _MAGIC + self.schema_id.to_bytes(4, "big")
        if isinstance(self.format, Protobuf):
            header += _encode_position(_position(self.format.message_type.DESCRIPTOR))
        return header + self.format.encode(value)

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises InvalidPayload, UnknownSchema, or an error of the function or client.
        """
        if len(payload) < _HEADER_BYTES or payload[:1] != _MAGIC:
            raise InvalidPayload("no Confluent header: a zero byte and 4 bytes of a schema id")
        number, rest = int.from_bytes(payload[1:_HEADER_BYTES], "big"), payload[_HEADER_BYTES:]
        if isinstance(self.format, Avro):
            return self.format.decode(rest, self._schema(number))
        if isinstance(self.format, Protobuf):
            rest = self._without_position(rest)
        return self.format.decode(rest)

    def _schema(self, number: int) -> Any:
        """Return the parsed schema of an id, or None if it is that of the format."""
        if number not in self._parsed:
            assert isinstance(self.format, Avro)
            schema = self._find(number)
            try:
                self._parsed[number] = self.format.parsed(_text_of(schema))
            except InvalidOption as error:
                raise InvalidOption(
                    f"schema {number} of schemas: {error}", option="schemas", value=number
                ) from None
        return self._parsed[number]

    def _find(self, number: int) -> Any:
        if hasattr(self.schemas, "get_schema"):
            return self.schemas.get_schema(number)
        known = self.schemas or {}
        schema = known(number) if callable(known) else known.get(number)
        if schema is None:
            raise UnknownSchema(
                f"schema {number} is not among the given ones: add it to schemas", schema_id=number
            )
        return schema

    def _without_position(self, payload: bytes) -> bytes:
        assert isinstance(self.format, Protobuf)
        descriptor = self.format.message_type.DESCRIPTOR
        numbers, wanted = _varints(payload), _position(descriptor)
        try:
            count, at = next(numbers)
            position = [0] if not count else []
            if count > len(wanted):
                raise InvalidPayload(f"not a valid {descriptor.full_name}: it is another message")
            for _ in range(count):
                value, at = next(numbers)
                position.append(value)
        except StopIteration:
            raise InvalidPayload("no position of a Protobuf message after the schema id") from None
        if position != wanted:
            raise InvalidPayload(f"not a valid {descriptor.full_name}: it is another message")
        return payload[at:]


def _check_schemas(format: Any, schemas: Any) -> None:
    fix = "give a mapping {id: schema}, a function of the id, or the registry's client"
    if isinstance(schemas, Mapping):
        for number in schemas:
            if not isinstance(plain_number(number), int) or not 0 < number <= _MAX_SCHEMA_ID:
                raise InvalidOption(
                    f"the key {short_repr(number)} of schemas is not the id of a schema: give "
                    f"a whole number from 1 to {_MAX_SCHEMA_ID:,}",
                    option="schemas",
                    value=number,
                )
        why = None
    elif not (callable(schemas) or hasattr(schemas, "get_schema")):
        why = "has no schemas"
    else:
        look_up = getattr(schemas, "get_schema", schemas)
        why = "is asynchronous" if inspect.iscoroutinefunction(look_up) else None
    if not isinstance(format, Avro):
        why, fix = "has no use here", "only Avro needs the schemas of other ids"
    if why is not None:
        kind = type(schemas).__name__
        raise InvalidOption(f"schemas of type {kind} {why}: {fix}", option="schemas", value=kind)


def _text_of(schema: Any) -> Any:
    return getattr(schema, "schema_str", schema)


def _position(descriptor: Any) -> list[int]:
    """Return the index of a message in its file, after those of the messages around it."""
    parent = descriptor.containing_type
    among = descriptor.file.message_types_by_name if parent is None else parent.nested_types_by_name
    return [*(_position(parent) if parent else ()), list(among).index(descriptor.name)]


def _encode_position(position: list[int]) -> bytes:
    """Return a position as signed varints after their count. The first message is one byte."""
    if position == [0]:
        return b"\0"
    out = bytearray()
    for number in (len(position), *position):
        left = number << 1  # zigzag
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
    return bytes(out)


def _varints(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the signed varints at the start of a payload, each with the offset of its end."""
    at = 0
    while at < len(payload):
        number = shift = 0
        for byte in payload[at : at + 5]:
            number |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if byte < 0x80:
                break
        else:
            return  # it ends early, or is longer than any position
        yield (number >> 1) ^ -(number & 1), at


def from_option(text: str) -> Avro | Protobuf | Confluent:
    """Return the format of a text that ``option`` of a format has. Raises InvalidOption."""
    try:
        given = dict(json.loads(text))
        framing = given.pop("confluent", None)
        if set(given) == {"avro"}:
            plain: Avro | Protobuf = Avro(given["avro"])
        elif set(given) == {"protobuf", "descriptors"}:
            encoded = base64.b64decode(given["descriptors"], validate=True)
            plain = Protobuf.from_descriptors(encoded, given["protobuf"])
        else:
            raise ValueError("it names neither avro nor protobuf")
        if framing is None:
            return plain
        schemas = {int(number): schema for number, schema in (framing.get("schemas") or {}).items()}
        return Confluent(plain, framing.get("schema_id"), schemas or None)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise invalid(
            "valueFormat",
            text,
            f"is not a format: {error}. Give 'text', or the option of a format such as "
            'Avro(schema).option, or JSON such as {"avro": {"type": "record", ...}}. For values '
            "that are JSON, give valueSchema instead",
        ) from None
