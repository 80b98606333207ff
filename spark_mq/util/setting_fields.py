"""Define settings: fields of a dataclass with a kind, a default and a meaning.

A kind says how a value is checked, read from text, stored and described. All that handles settings
is a loop over :func:`settings_of`. ``ledger/settings.py`` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.records import Record, with_attributes
from spark_mq.util.show import show_duration
from spark_mq.util.validation import (
    SHORTEST,
    invalid,
    plain_number,
    validate_choice,
    validate_count,
    validate_duration,
    validate_fraction,
    validate_size,
    validate_text,
)

_MOST: Final = 2**63 - 1
_T = TypeVar("_T")
V_co = TypeVar("V_co", covariant=True)  # what a setting of a kind holds


def parse_number(text: str) -> float | str:
    """Return a number that is written in digits, or the text itself, such as "30s"."""
    for kind in (int, float) if re.fullmatch("[-+.0-9eE]+", text) else ():
        with suppress(ValueError):
            return kind(text)
    return text


def _as_given(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind(Generic[V_co]):
    """What values a setting may have, and how they are typed, stored and shown."""

    accepts: str  # the annotation of an argument with such a value
    values: str  # the valid ones, for people
    check: Callable[[str, Any], V_co]
    """Returns the clean value of an option. Raises InvalidOption, which names value and fix."""
    parse: Callable[[str], Any] = _as_given  # makes what `check` takes of what a person typed
    encode: Callable[[Any], Any] = _as_given  # makes what JSON can hold
    decode: Callable[[Any], Any] = _as_given  # and back
    show: Callable[[Any], str] = str
    words: tuple[str, ...] = ()  # all that a person may type, if these are some words


def _check_duration(name: str, value: Any, *, zero: bool) -> timedelta:
    return timedelta(microseconds=validate_duration(name, value, zero=zero))


def _to_stored(duration: timedelta) -> int:
    return duration // MICROSECOND


_from_stored: Final = partial(timedelta, 0, 0)  # of microseconds


def duration(*, zero: bool = False) -> Kind[timedelta]:
    values = "a duration" if zero else "a duration above 0"
    check = partial(_check_duration, zero=zero)
    return Kind("Duration", values, check, parse_number, _to_stored, _from_stored, show_duration)


def count(unit: str, *, least: int = 1, most: int = _MOST) -> Kind[int]:
    """Return the kind of whole numbers of a unit, such as messages."""
    end = " or more" if most == _MOST else f" to {most:,}"
    check = partial(validate_count, least=least, most=most)
    return Kind("int", f"{least}{end} {unit}", check, parse_number)


SIZE: Final[Kind[int]] = Kind(
    "int | str", "bytes, such as 1000000 or `64m`", validate_size, parse_number
)
FRACTION: Final[Kind[float]] = Kind("float", "0 to 1", validate_fraction, parse_number)


def choice(*words: str) -> Kind[str]:
    check = partial(validate_choice, choices=words)
    return Kind("str", _listed(words), check, words=words)


def _listed(words: Sequence[str]) -> str:
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} or {last}"


def growth(*words: str) -> Kind[str | tuple[timedelta, ...]]:
    """Return the kind of some words, or of a list of durations in their place."""
    values = f"{_listed(words)}, or durations such as `10s, 1m, 1h`"

    def check(name: str, value: Any) -> str | tuple[timedelta, ...]:
        if isinstance(value, str) and not re.search("[0-9]", value):
            return validate_choice(name, value, words)
        given = value.split(",") if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not given:
            raise invalid(name, value, f"is not valid: use {values}".replace("`", "'"))
        stripped = (each.strip() if isinstance(each, str) else each for each in given)
        return tuple(_check_duration(name, each, zero=True) for each in stripped)

    def encode(value: str | tuple[timedelta, ...]) -> str | list[int]:
        return value if isinstance(value, str) else list(map(_to_stored, value))

    def decode(stored: str | list[int]) -> str | tuple[timedelta, ...]:
        return stored if isinstance(stored, str) else tuple(map(_from_stored, stored))

    def show(value: str | tuple[timedelta, ...]) -> str:
        return value if isinstance(value, str) else ", ".join(map(show_duration, value))

    return Kind("str | Sequence[Duration]", values, check, encode=encode, decode=decode, show=show)


def _check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, value, "is not a flag: use True or False")
    return value


def _parse_flag(text: str) -> bool | str:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(text.lower(), text)


FLAG: Final[Kind[bool]] = Kind(
    "bool", "`True` or `False`", _check_flag, _parse_flag, words=("true", "false")
)
TEXT: Final[Kind[str]] = Kind("str", "text", validate_text)
PATH: Final[Kind[str]] = Kind("str | os.PathLike[str]", "a path or a URI", validate_text)


def _check_texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(validate_text(name, text) for text in value)


TEXTS: Final[Kind[tuple[str, ...]]] = Kind(
    "tuple[str, ...]", "texts", _check_texts, encode=list, decode=tuple
)


class Rate(str):
    """Units in a time, such as 100 messages a second, which is the text "100/s"."""

    amount: int
    per: int  # microseconds

    def __new__(cls, amount: int, per: int) -> Rate:
        period = _PERIODS.get(per) or show_duration(per * MICROSECOND)
        rate = super().__new__(cls, f"{amount}/{period}")
        rate.amount, rate.per = amount, per
        return rate

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return self.amount, self.per

    def duration_of(self, units: int) -> int:
        """Return how long some units take, in microseconds."""
        return -(-units * self.per // self.amount)

    def units_in(self, duration: int) -> int:
        """Return how many units take at most some microseconds."""
        return duration * self.amount // self.per


_PERIODS: Final = {1_000_000: "s", 60_000_000: "m", 3_600_000_000: "h", 86_400_000_000: "d"}


def rate(*, of_bytes: bool = False) -> Kind[Rate]:
    """Return the kind of rates of messages, or of bytes."""
    examples = ("10m/s", "1g/h") if of_bytes else ("100/s", "5000/h", "3/10s")
    values = f"a rate, such as {', '.join(f'`{example}`' for example in examples)}"

    def check(name: str, value: Any) -> Rate:
        if isinstance(value, Rate):
            return value
        amount, _, period = str(value).partition("/")
        period = period.strip()
        try:
            if not isinstance(value, str) or period[-1:].isdigit():  # of what unit
                raise ValueError(value)
            units = validate_size(name, amount) if of_bytes else int(amount)
            text = f"1{period}" if period in _PERIODS.values() else period
            per = validate_duration(name, text)
        except ValueError:  # InvalidOption is one
            units = per = 0
        if units < 1:
            shown = " or ".join(map(repr, examples))
            raise invalid(name, value, f"is not a rate: use text like {shown}")
        return Rate(units, per)

    return Kind(
        "str",
        values,
        check,
        encode=lambda value: [value.amount, value.per],
        decode=lambda stored: Rate(*stored),
    )


_MOST_WEIGHTS: Final = 100  # keys, because each commit of a ledger has the settings
_WEIGHTS: Final = (
    "a weight from 0.01 to 100 for each of up to 100 keys, such as `gold=4, silver=0.5`"
)


def _check_weights(name: str, value: Any) -> dict[str, float]:
    """Return weights by key, which a person types as ``gold=4, silver=2``."""
    if isinstance(value, str):
        value = dict(pair.strip().rpartition("=")[::2] for pair in value.split(","))
    named = isinstance(value, Mapping) and "" not in value
    if not named or not 0 < len(value) <= _MOST_WEIGHTS:
        raise invalid(name, value, f"is not valid: use {_WEIGHTS}".replace("`", "'"))
    return {validate_text(name, key): _weight(name, key, each) for key, each in value.items()}


def _weight(name: str, key: str, value: Any) -> float:
    weight = parse_number(value.strip()) if isinstance(value, str) else plain_number(value)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        weight = 0
    if not 0.01 <= weight <= 100:
        raise invalid(name, {key: value}, "is not a weight: use a number from 0.01 to 100")
    return weight


def _show_weights(value: Mapping[str, float]) -> str:
    return ", ".join(f"{key}={weight:g}" for key, weight in value.items())


WEIGHTS: Final[Kind[Mapping[str, float]]] = Kind(
    "Mapping[str, float] | str", _WEIGHTS, _check_weights, show=_show_weights
)


@dataclass(frozen=True)
class Setting:
    """One setting: its kind, its default and its meaning."""

    kind: Kind[Any]
    default: Any
    doc: str
    optional: bool
    fixed: str | None  # why it cannot change after a create
    argument: bool  # whether a user gives it
    name: str = ""

    @property
    def values(self) -> str:
        values = f"`{SHORTEST[self.name]}` or more" if self.name in SHORTEST else self.kind.values
        return f"{values}, or none" if self.optional else values

    @property
    def shown_default(self) -> str:
        return self.show(self.default)

    def check(self, value: Any) -> Any:
        """Return the clean value. Raise InvalidOption."""
        return None if value is None and self.optional else self.kind.check(self.name, value)

    def parse(self, text: str) -> Any:
        """Return what a person typed. "none" or "null" is None, if the setting may be None."""
        none = self.optional and text.lower() in ("none", "null")
        return None if none else self.kind.parse(text)

    def encode(self, value: Any) -> Any:
        return None if value is None else self.kind.encode(value)

    def decode(self, stored: Any) -> Any:
        return None if stored is None else self.kind.decode(stored)

    def show(self, value: Any) -> str:
        return "None" if value is None else self.kind.show(value)


def setting(
    kind: Kind[V_co],
    default: Any,
    doc: str,
    *,
    optional: bool | None = None,
    fixed: str | None = None,
    argument: bool = True,
) -> V_co:
    """Return the field of a setting.

    `kind` says what values are valid, and `default` is written as a user would give it, such as
    "60s". `doc` is for the reference, with names between backticks. With `optional`, which is the
    default if the default is None, None means no limit, or that the setting is off. `fixed` says
    why the setting cannot change after a create, and the remedy. Without `argument` only the
    library sets it.
    """
    clean = None if default is None else kind.check("default", default)
    may_be_none = default is None if optional is None else optional
    described = Setting(kind, clean, doc, may_be_none, fixed, argument)
    return cast(V_co, field(default=clean, compare=argument, metadata={"setting": described}))


def settings_of(owner: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in the order of its fields."""
    return _settings(cast(Hashable, owner))


@cache
def _settings(owner: Any) -> Mapping[str, Setting]:
    named = {field.name: field.metadata.get("setting") for field in fields(owner)}
    return {name: replace(each, name=name) for name, each in named.items() if each is not None}


def parse_settings(texts: Mapping[str, str], *owners: type[Any]) -> dict[str, Any]:
    """Return the settings that a person typed. An unknown one stays text, and is refused later."""
    known = {name: each for owner in owners for name, each in settings_of(owner).items()}
    return {
        name: known[name].parse(text) if name in known else text for name, text in texts.items()
    }


def documented(owner: type[_T]) -> type[_T]:
    """Describe the settings of a dataclass in its docstring."""
    return with_attributes(owner, {n: _document(each) for n, each in settings_of(owner).items()})


def _document(setting: Setting) -> str:
    default = f" Default: {setting.shown_default}." if setting.argument else ""
    return f"{setting.doc}{default}".replace("`", "``")


class Settings(Record):
    """A frozen dataclass of settings. Each field is one, or holds other settings."""

    __slots__ = ()
    owner: ClassVar[str]  # whose settings these are, for errors
    nested: ClassVar[Mapping[str, type[Settings]]] = {}  # the fields that hold other settings

    def changed(self, **given: Any) -> Self:
        """Return the settings with a user's values. Raise InvalidOption."""
        known = settings_of(type(self))
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise self._unknown(unknown, given[unknown])
        checked = {name: known[name].check(value) for name, value in given.items()}
        return cast(Self, replace(cast(Any, self), **checked))

    def _unknown(self, name: str, value: Any) -> InvalidOption:
        raise NotImplementedError

    def encoded(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them, with durations in microseconds."""
        known = settings_of(type(self))
        own = {name: kind.encode(getattr(self, name)) for name, kind in known.items()}
        return own | {name: getattr(self, name).encoded() for name in self.nested}

    @classmethod
    def decoded(cls, data: Any, path: str | None = None) -> Self:
        """Create settings from their JSON. Raise UnsupportedTable if another version wrote them."""
        whose = f"{cls.owner} at {path}" if path else cls.owner
        known = settings_of(cls)
        names = known.keys() | cls.nested.keys()
        unknown = sorted(map(str, data.keys() - names)) if isinstance(data, dict) else [str(data)]
        if unknown:
            raise UnsupportedTable(
                f"cannot read the settings of {whose}: this version of spark_mq does not know "
                f"{', '.join(unknown)}. To fix this, update spark_mq.",
                path=path,
                features=unknown,
            )
        try:
            own = {name: known[name].decode(data[name]) for name in data if name in known}
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsupportedTable(
                f"cannot read the settings of {whose}: {error}. To fix this, update spark_mq, or "
                "restore the table from a backup.",
                path=path,
                features=[],
            ) from error
        others = {name: owner.decoded(data.get(name)) for name, owner in cls.nested.items()}
        return cls(**own, **others)

    def changes(self, after: Self) -> str:
        """Return the settings that differ `after`, with their new values, for people."""
        known = ((each, getattr(after, name)) for name, each in settings_of(type(self)).items())
        return ", ".join(
            f"{each.name}={each.show(value)}"
            for each, value in known
            if value != getattr(self, each.name)
        )
