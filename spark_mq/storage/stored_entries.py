"""Keep records by name in the table configuration of ``messages/``, one entry for each.

They are of one log with the publishes, so a change of a record conflicts with these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

import msgspec

from spark_mq.delta.state import TableState
from spark_mq.errors import UnsupportedTable

_FORMAT: Final = 1

T = TypeVar("T")


def encode_entry(data: Mapping[str, Any]) -> str:
    """Return the text of an entry with the fields of a record."""
    return json.dumps({"format": _FORMAT, **data}, sort_keys=True)


def decode_entry(text: str, record: type[T]) -> T | None:
    """Return the record in an entry, a dataclass, or None if it cannot be read."""
    try:
        data = json.loads(text)
        if data.pop("format") != _FORMAT:
            return None
        if not data.keys() <= {field.name for field in fields(record)}:  # type: ignore[arg-type]
            return None
        return msgspec.convert(data, record)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Entries(Generic[T]):
    """The entries of one kind. `decode` returns a record, or None if it cannot read a text."""

    kind: str
    decode: Callable[[str], T | None]
    fix: str  # for an entry that cannot be read

    def key(self, name: str) -> str:
        """Return the key of an entry in the table configuration."""
        return f"spark_mq.{self.kind}.{name}"

    def names(self, state: TableState) -> list[str]:
        """Return the names of the records in a state of ``messages/``, in order."""
        prefix = self.key("")
        return sorted(key.removeprefix(prefix) for key in _given(state) if key.startswith(prefix))

    def has(self, state: TableState, name: str) -> bool:
        """Return whether a state has an entry, also one that cannot be read."""
        return self.key(name) in _given(state)

    def find(self, state: TableState, name: str, path: str) -> T | None:
        """Return a record in a state of ``messages/``, or None. Raise UnsupportedTable."""
        text = _given(state).get(self.key(name))
        if text is None:
            return None
        entry = self.decode(text)
        if entry is None:
            raise UnsupportedTable(
                f"{self.kind} {name!r} of {path} cannot be read: another version of spark_mq wrote "
                f"it, or it was changed by hand. {self.fix}",
                path=path,
                features=[self.key(name)],
            )
        return entry

    def size(self, state: TableState, name: str, text: str) -> int:
        """Return the bytes of all entries of a state, with `text` as that of one record."""
        prefix, given = self.key(""), {**_given(state), self.key(name): text}
        return sum(len(text.encode()) for key, text in given.items() if key.startswith(prefix))


def _given(state: TableState) -> Mapping[str, str]:
    return state.metadata.get("configuration") or {}
