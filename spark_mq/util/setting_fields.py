"""Define settings: fields of a dataclass with a kind, a default and a meaning.

All that handles settings is a loop over :func:`settings_of`. ``ledger/settings.py`` lists them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast

from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.util.records import Record, with_attributes
from spark_mq.util.setting_kinds import Kind

__all__ = ["Setting", "Settings", "documented", "parse_settings", "setting", "settings_of"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Setting:
    """One setting: its kind, its default and its meaning."""

    kind: Kind
    default: Any
    doc: str
    optional: bool
    fixed: str | None  # why it cannot change after a create
    argument: bool  # whether a user gives it
    name: str = ""

    @property
    def values(self) -> str:
        return f"{self.kind.values}, or none" if self.optional else self.kind.values

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
        decode = self.kind.decode
        return stored if stored is None or decode is None else decode(stored)

    def show(self, value: Any) -> str:
        return "None" if value is None else self.kind.show(value)


def setting(
    kind: Kind,
    default: Any,
    doc: str,
    *,
    optional: bool | None = None,
    fixed: str | None = None,
    argument: bool = True,
) -> Any:
    """Return the field of a setting.

    Parameters
    ----------
    kind
        What values are valid.
    default
        The default, as a user would give it, such as "60s".
    doc
        What the setting means, for the reference, with names between backticks.
    optional
        Whether None is valid, which means no limit, or that the setting is off. Default: whether
        the default is None.
    fixed
        Why the setting cannot change after a create, and the remedy.
    argument
        Whether a user gives the setting. The library itself sets the others.
    """
    clean = None if default is None else kind.check("default", default)
    may_be_none = default is None if optional is None else optional
    found = Setting(kind, clean, doc, may_be_none, fixed, argument)
    return field(default=clean, compare=argument, metadata={"setting": found})


def settings_of(owner: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in the order of its fields."""
    return _settings(cast(Hashable, owner))


@cache
def _settings(owner: Any) -> Mapping[str, Setting]:
    found = {one.name: one.metadata.get("setting") for one in fields(owner)}
    return {name: replace(one, name=name) for name, one in found.items() if one is not None}


def parse_settings(texts: Mapping[str, str], *owners: type[Any]) -> dict[str, Any]:
    """Return the settings that a person typed. An unknown one stays text, and is refused later."""
    known = {name: one for owner in owners for name, one in settings_of(owner).items()}
    return {
        name: known[name].parse(text) if name in known else text for name, text in texts.items()
    }


def documented(owner: type[_T]) -> type[_T]:
    """Describe the settings of a dataclass in its docstring."""
    return with_attributes(owner, {n: _described(one) for n, one in settings_of(owner).items()})


def _described(one: Setting) -> str:
    default = f" Default: {one.shown_default}." if one.argument else ""
    return f"{one.doc}{default}".replace("`", "``")


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
        """Return the error for a name that is no setting of these."""
        raise NotImplementedError

    def encoded(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them, with durations in microseconds."""
        known = settings_of(type(self))
        own = {name: one.encode(getattr(self, name)) for name, one in known.items()}
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
        others = {name: one.decoded(data.get(name)) for name, one in cls.nested.items()}
        return cls(**own, **others)

    def changes(self, after: Self) -> str:
        """Return the settings that differ `after`, with their new values, for people."""
        pairs = ((one, getattr(after, name)) for name, one in settings_of(type(self)).items())
        return ", ".join(
            f"{one.name}={one.show(value)}"
            for one, value in pairs
            if value != getattr(self, one.name)
        )
