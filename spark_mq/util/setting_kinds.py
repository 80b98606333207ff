"""Define the kinds of settings: how a value is checked, read from text, stored and described."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from spark_mq.errors import InvalidOption
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.show import show_duration
from spark_mq.util.validation import (
    short_repr,
    validate_choice,
    validate_count,
    validate_duration,
    validate_fraction,
    validate_text,
)

__all__ = [
    "Choice",
    "Count",
    "Duration",
    "Flag",
    "Fraction",
    "Kind",
    "Path",
    "Text",
    "Texts",
    "parse_number",
]


def parse_number(text: str) -> float | str:
    """Return a number that is written in digits, or the text itself, such as "30s"."""
    for kind in (int, float) if re.fullmatch("[-+.0-9eE]+", text) else ():
        with suppress(ValueError):
            return kind(text)
    return text


class Kind:
    """What values a setting may have."""

    accepts: ClassVar[str]  # the annotation of an argument with such a value
    holds: ClassVar[str]  # the annotation of the field
    decode: ClassVar[Any] = None  # the function that makes a value of JSON, if they differ

    @property
    def values(self) -> str:
        """Return the valid values, for people."""
        raise NotImplementedError

    def check(self, name: str, value: Any) -> Any:
        """Return the clean value. Raise InvalidOption, which names option, value and fix."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """Return what a person typed as a value for ``check``."""
        return text

    def encode(self, value: Any) -> Any:
        """Return a value as JSON can hold it."""
        return value

    def show(self, value: Any) -> str:
        return str(value)


class _Number(Kind):
    """A kind that a person may type in digits."""

    def parse(self, text: str) -> float | str:
        return parse_number(text)


@dataclass(frozen=True)
class Duration(_Number):
    """Durations. Tables store them in microseconds."""

    zero: bool = False
    accepts = "Duration"
    holds = "timedelta"
    decode = staticmethod(partial(timedelta, 0, 0))  # of microseconds

    @property
    def values(self) -> str:
        return "a duration" if self.zero else "a duration above 0"

    def check(self, name: str, value: Any) -> timedelta:
        return timedelta(microseconds=validate_duration(name, value, zero=self.zero))

    def encode(self, value: timedelta) -> int:
        return value // MICROSECOND

    def show(self, value: timedelta) -> str:
        return show_duration(value)


@dataclass(frozen=True)
class Count(_Number):
    """Whole numbers of a unit, such as messages."""

    unit: str
    least: int = 1
    most: int = 2**63 - 1
    accepts = holds = "int"

    @property
    def values(self) -> str:
        end = " or more" if self.most == Count.most else f" to {self.most:,}"
        return f"{self.least}{end} {self.unit}"

    def check(self, name: str, value: Any) -> int:
        return validate_count(name, value, least=self.least, most=self.most)


@dataclass(frozen=True)
class Fraction(_Number):
    accepts = holds = "float"
    values = "0 to 1"

    def check(self, name: str, value: Any) -> float:
        return validate_fraction(name, value)


@dataclass(frozen=True)
class Choice(Kind):
    words: tuple[str, ...]
    accepts = holds = "str"

    @property
    def values(self) -> str:
        *others, last = (f"`{word}`" for word in self.words)
        return f"{', '.join(others)} or {last}"

    def check(self, name: str, value: Any) -> str:
        return validate_choice(name, value, self.words)


@dataclass(frozen=True)
class Flag(Kind):
    accepts = holds = "bool"
    values = "`True` or `False`"

    def check(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidOption(
                f"{name}={short_repr(value)} is not a flag: use True or False",
                option=name,
                value=value,
            )
        return value

    def parse(self, text: str) -> bool | str:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return words.get(text.lower(), text)


@dataclass(frozen=True)
class Text(Kind):
    accepts = holds = "str"
    values = "text"

    def check(self, name: str, value: Any) -> str:
        return validate_text(name, value)


class Path(Text):
    accepts = "str | os.PathLike[str]"
    values = "a path or a URI"


@dataclass(frozen=True)
class Texts(Kind):
    accepts = holds = "tuple[str, ...]"
    values = "texts"
    decode = tuple

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        return tuple(validate_text(name, one) for one in value)

    def encode(self, value: tuple[str, ...]) -> list[str]:
        return list(value)
