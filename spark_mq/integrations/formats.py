"""Write the values of messages as bytes, and read them: JSON, Pydantic, Avro and Protobuf.

A format encodes what a publisher has and decodes what a worker gets. The libraries are extras, and
each is loaded by the format that needs it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from spark_mq.errors import InvalidPayload
from spark_mq.message import SHOWN_ERRORS, Format, Json, unencodable, unusable
from spark_mq.util.loading import load_library
from spark_mq.util.validation import invalid, short_repr

__all__ = ["Avro", "Format", "Json", "Protobuf", "Pydantic"]


class Pydantic:
    """JSON that a Pydantic model validates. Needs the extra ``spark-mq[pydantic]``.

    The model may be any type that Pydantic knows, such as a dataclass or ``list[Order]``. Raises
    InvalidOption if Pydantic does not know it, or if it is the name of a type.

    Examples
    --------
    >>> Pydantic(dict[str, int]).decode(b'{"a": 1}')
    {'a': 1}
    """

    def __init__(self, model: Any) -> None:
        self._pydantic = load_library("pydantic", "Pydantic", "pydantic")
        self.model = model
        self._adapter = self._adapter_of(model)
        self._name = getattr(model, "__name__", str(model))

    def _adapter_of(self, model: Any) -> Any:
        if isinstance(model, str):
            raise unusable(Pydantic, f"needs a type, and {short_repr(model)} is a text")
        try:
            adapter = self._pydantic.TypeAdapter(model)
        except self._pydantic.PydanticUserError as error:
            why = f"cannot use {short_repr(model)} as a type ({error.code or type(error).__name__})"
            raise unusable(Pydantic, why) from None
        if not adapter.pydantic_complete:
            why = f"needs all types of {short_repr(model)} to be defined before it is made"
            raise unusable(Pydantic, why)
        return adapter

    def encode(self, value: Any) -> bytes:
        """Return a value of the model as JSON. It is validated first. Raises InvalidOption."""
        try:
            self._adapter.validate_python(value, by_alias=True, by_name=True)
            encoded: bytes = self._adapter.dump_json(value, by_alias=True, warnings="error")
            return encoded
        except self._pydantic.ValidationError as error:
            why = f"does not fit {self._name}: {self._problems(error)}"
        except self._pydantic.PydanticUserError as error:
            why = f"has no JSON form: {error.code}"
        except (TypeError, ValueError) as error:
            why = f"has no JSON form as {self._name} ({type(error).__name__})"
        raise unencodable(value, why)

    def decode(self, payload: bytes) -> Any:
        """Return the validated value of a payload. Raises InvalidPayload.

        The error has the places and Pydantic's types of errors, because its texts may show values.
        """
        try:
            return self._adapter.validate_json(payload)
        except self._pydantic.ValidationError as error:
            raise InvalidPayload(f"not a valid {self._name}: {self._problems(error)}") from None

    def _problems(self, error: Any) -> str:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        known = self._known_names()
        shown = []
        for problem in errors[:SHOWN_ERRORS]:
            # The name of an unknown field, or of an entry of a dict, may be a secret.
            parts = (
                f"[{part}]" if isinstance(part, int) else f".{part if part in known else '*'}"
                for part in problem["loc"]
            )
            shown.append(f"${''.join(parts)}: {problem['type']}")
        more = [f"and {len(errors) - SHOWN_ERRORS} more"] if len(errors) > SHOWN_ERRORS else []
        return ", ".join(shown + more)

    def _known_names(self) -> set[str]:
        try:
            schema = self._adapter.json_schema()
        except self._pydantic.PydanticUserError:  # a model with a type that JSON Schema lacks
            return set()
        return {name for part in [schema, *schema.get("$defs", {}).values()]
                for name in part.get("properties", ())}  # fmt: skip


class Avro:
    """Avro's binary encoding without a file header. Needs the extra ``spark-mq[avro]``.

    Values are what fastavro has for a schema: a dict for a record, a datetime for a timestamp. The
    schema is JSON text, or the dict, list or name that this text has.

    Raises
    ------
    InvalidOption
        It is no Avro schema, it contains itself, or it has an array of items without a byte. A
        short payload of such a schema could end the process.

    Examples
    --------
    >>> Avro('"long"').decode(Avro('"long"').encode(7))
    7
    """

    def __init__(self, schema: str | Mapping[str, Any] | list[Any]) -> None:
        self._fastavro = load_library("fastavro", "Avro", "avro")
        self.schema = self._parsed(schema)

    def _parsed(self, schema: Any) -> Any:
        """Return a schema as fastavro has it. Raise InvalidOption."""
        given, errors = schema, self._fastavro.schema
        try:
            if isinstance(given, str) and given.lstrip()[:1] in ("{", "[", '"'):
                given = json.loads(given)
            parsed = self._fastavro.parse_schema(given, named_schemas={})
            _least_size(parsed, {}, ())
        except (errors.SchemaParseException, errors.UnknownType, LookupError, RecursionError,
                TypeError, ValueError) as error:  # fmt: skip
            cause = f"{type(error).__name__}: {error}"
            problem = f"is not an Avro schema that spark_mq can use ({cause})"
            raise invalid("schema", schema, problem) from None
        return parsed

    def encode(self, value: Any) -> bytes:
        """Return a value in Avro. Raises InvalidOption for fields that are missing or unknown."""
        out = io.BytesIO()
        try:
            self._fastavro.validate(value, self.schema, strict=False)
            self._fastavro.schemaless_writer(out, self.schema, value, strict_allow_default=True)
        except self._fastavro.validation.ValidationError as error:
            fields = [_problem(cause) for cause in error.errors if not isinstance(cause, str)]
            why = f"does not fit its schema: {', '.join(fields[:SHOWN_ERRORS])}"
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
            why = f"does not fit its schema: {error}"
        else:
            return out.getvalue()
        raise unencodable(value, why)

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload, which has nothing after it. Raises InvalidPayload."""
        source = io.BytesIO(payload)
        try:
            value = self._fastavro.schemaless_reader(source, self.schema, None)
        except EOFError:
            why = "it ends early"
        except Exception as error:  # The library has no error of its own for damaged bytes.
            kind = type(error).__name__
            why = f"the bytes are damaged or were written with another schema ({kind})"
        else:
            if not (left := len(payload) - source.tell()):
                return value
            why = f"{left} bytes follow the value"
        raise InvalidPayload(f"not valid Avro for {_name_of(self.schema)}: {why}")


def _problem(fault: Any) -> str:
    # fastavro takes a field that is not there for None.
    what = "missing or None, and not" if fault.datum is None else "not"
    return f"{fault.field or 'the value'} is {what} of type {_name_of(fault.schema)}"


def _least_size(schema: Any, sizes: dict[str, int], parents: tuple[str, ...]) -> int:
    """Return the least bytes of a value. Raise ValueError for a schema that is a risk."""
    if isinstance(schema, list):
        for part in schema:
            _least_size(part, sizes, parents)
        return 1
    if isinstance(schema, str):
        if schema in parents:
            raise ValueError(f"{schema} contains itself, so a payload could be nested too deeply")
        return sizes.get(schema, int(schema != "null"))
    kind, name = schema["type"], schema.get("name")
    size = 1
    if kind in ("record", "error"):
        inside = (*parents, name)
        size = sum(_least_size(field["type"], sizes, inside) for field in schema["fields"])
    elif kind == "fixed":
        size = schema["size"]
    elif kind == "array":
        if not _least_size(schema["items"], sizes, parents):
            raise ValueError("the items of an array need no byte, so there could be too many")
    elif kind == "map":
        _least_size(schema["values"], sizes, parents)
    elif kind != "enum":
        size = _least_size(kind, sizes, parents)
    if name is not None:
        sizes[name] = size
    return size


def _name_of(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_name_of, schema))
    if not isinstance(schema, Mapping):
        return str(schema)
    return str(schema.get("name") or schema.get("logicalType") or _name_of(schema["type"]))


class Protobuf:
    """A Protobuf message. Needs the extra ``spark-mq[protobuf]``.

    `message_type` is the class that protoc generated, or one that the library made of descriptors.

    Examples
    --------
    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> Protobuf(Int64Value).decode(b"\x08\x07").value
    7
    """

    def __init__(self, message_type: Any) -> None:
        self._protobuf = load_library("google.protobuf.message", "Protobuf", "protobuf")
        base = self._protobuf.Message
        if not (isinstance(message_type, type) and issubclass(message_type, base)):
            raise invalid(
                "message_type",
                message_type,
                "is not the class of a Protobuf message: give the class that protoc generated, "
                "such as orders_pb2.Order",
            )
        self.message_type: Any = message_type

    def encode(self, value: Any) -> bytes:
        """Return a message of the type as bytes. Raises InvalidOption."""
        name = self.message_type.DESCRIPTOR.full_name
        if not isinstance(value, self.message_type):
            raise unencodable(value, f"is not of type {name}")
        try:
            encoded: bytes = value.SerializeToString(deterministic=True)
        except self._protobuf.EncodeError as error:
            raise unencodable(value, f"has no bytes: {error}") from None
        return encoded

    def decode(self, payload: bytes) -> Any:
        """Return a payload as a message, with unknown fields. Raises InvalidPayload.

        Protobuf has no marks of types, so bytes of another message may pass.
        """
        try:
            message = self.message_type.FromString(payload)
        except self._protobuf.DecodeError:
            message = None
        if message is None or not message.IsInitialized():
            why = "the bytes are damaged" if message is None else "required fields are missing"
            raise InvalidPayload(
                f"not valid Protobuf for {self.message_type.DESCRIPTOR.full_name}: {why}"
            )
        return message
