"""Say what a format of payloads is, encode values as JSON, and load the library of a format."""

from __future__ import annotations

import importlib
import json
from typing import Any, Final, Protocol

from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.util.validation import short_repr

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


def load_library(module: str, what: str, extra: str, *, library: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {library or module}, which cannot be imported: "
            f"install spark-mq[{extra}]",
            name=error.name,
        ) from error


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
