"""Write and parse the JSON of payloads and of files that others have written."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from spark_mq.errors import InvalidOption, InvalidPayload

__all__ = ["decode_text", "parse_foreign", "parse_json", "to_json"]

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def parse_foreign(text: str) -> Any:
    """Return the value of JSON by any writer. Raise ValueError or RecursionError."""
    value = json.loads(text)
    if _SURROGATE.search(text):
        # Half of a character becomes a question mark, because no file or table can hold it.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        value = json.loads(whole)
    return value


def to_json(value: Any) -> str:
    """Return a value as compact JSON. Raise InvalidOption."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        kind = type(value).__name__
        raise InvalidOption(
            f"a value of type {kind} has no JSON form: {why}. Give dicts, lists, text, finite "
            "numbers, booleans and None",
            option="value",
            value=kind,
        ) from None


def decode_text(value: bytes, sequence: int) -> str:
    """Return a payload as text. Raise InvalidPayload."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(
            f"message {sequence} is no text: byte {error.start} is no UTF-8. Use its value, or "
            "reject it",
            sequence=sequence,
        ) from None


def parse_json(value: bytes, sequence: int) -> Any:
    """Return the value of a JSON payload. Raise InvalidPayload."""
    text = decode_text(value, sequence)
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(
            f"message {sequence} is no JSON: {_cause(error)}. Use its value, or reject it",
            sequence=sequence,
        ) from None


def _cause(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refuse(name: str) -> Any:
    """Refuse the names NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is no JSON number")
