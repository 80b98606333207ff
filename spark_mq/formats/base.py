"""Say what a format is, and load the library of one."""

from __future__ import annotations

import importlib
from typing import Any, Final, Protocol

from spark_mq.errors import InvalidOption
from spark_mq.util.validation import short_repr

__all__ = ["SHOWN_ERRORS", "Format", "load_library", "unencodable", "unusable"]

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


def load_library(module: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {module}, which cannot be imported: install spark-mq[{extra}]",
            name=error.name,
        ) from error
