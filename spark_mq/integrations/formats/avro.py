"""Encode values as Avro, and refuse schemas whose payloads could end the process."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from spark_mq.errors import InvalidPayload
from spark_mq.payload_format import SHOWN_ERRORS, load_library, unencodable
from spark_mq.util.validation import invalid


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
