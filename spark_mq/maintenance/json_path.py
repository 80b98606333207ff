"""Read and change one value of a JSON text, and leave all other characters as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NoReturn, TypeAlias

__all__ = ["Path", "extract", "parse_path", "remove", "to_json", "write"]

Path: TypeAlias = Sequence[str | int]
_Member: TypeAlias = tuple[str | int, int, int, int]
"""A key or an index, and where it begins, and where its value begins and ends."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_STEP: Final = re.compile(r"""\.(?:([A-Za-z_][A-Za-z0-9_-]*)|"([^"]+)")|\[([0-9]{1,9})\]""")


def parse_path(text: str) -> Path | None:
    """Return the steps of a path such as ``$.items[0].name``, or None if it is none."""
    steps, at = list[str | int](), 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return None
        steps.append(int(step[3]) if step[3] else step[1] or step[2])
        at = step.end()
    return steps if steps and text.startswith("$") else None


def extract(text: str, path: Path) -> str | None:
    """Return a text, or another value as JSON. None if it is missing or null, or for no JSON."""
    span = _span(text, path) if _is_json(text) else None
    if span is None:
        return None
    raw = text[slice(*span)]
    if raw.startswith('"'):
        return str(json.loads(raw))
    return None if raw == "null" else raw


def write(text: str, path: Path, value: str) -> str | None:
    """Return a text with a value in JSON at a path. None if nothing can be there."""
    if not _is_json(text):
        return None
    span = _span(text, path)
    if span is not None:
        return text[: span[0]] + value + text[span[1] :]
    parent, key = _span(text, path[:-1]), path[-1]
    if parent is None or text[parent[0]] != "{" or not isinstance(key, str):
        return None
    end = parent[1] - 1  # the closing brace
    comma = "," if any(_members(text, parent[0])) else ""
    return text[:end] + f"{comma}{to_json(key)}:{value}" + text[end:]


def remove(text: str, path: Path) -> str | None:
    """Return a text without the member of an object. None for no JSON, or no such object."""
    if not _is_json(text):
        return None
    while True:  # a key may be there more than once
        parent = _span(text, path[:-1])
        if parent is None or text[parent[0]] != "{":
            return None
        members = list(_members(text, parent[0]))
        at = next((at for at, one in enumerate(members) if one[0] == path[-1]), None)
        if at is None:
            return text
        first, end = members[at][1], members[at][3]
        if at + 1 < len(members):
            end = members[at + 1][1]
        elif at:
            first = members[at - 1][3]
        text = text[:first] + text[end:]


def to_json(value: Any) -> str | None:
    """Return a text, a number, a boolean or None as JSON, or None for others."""
    if value is not None and not isinstance(value, str | int | float):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _span(text: str, path: Path) -> tuple[int, int] | None:
    """Return where the value of a path begins and ends, or None. The last of equal keys counts."""
    begin = _skip(text, 0)
    span = begin, _end(text, begin)
    for step in path:
        kind = "{" if isinstance(step, str) else "["
        found = list(_members(text, span[0])) if text[span[0]] == kind else []
        spans = [(first, end) for key, _, first, end in found if key == step]
        if not spans:
            return None
        span = spans[-1]
    return span


def _members(text: str, at: int) -> Iterator[_Member]:
    """Yield what the object or array at a position has."""
    is_object = text[at] == "{"
    at, index = _skip(text, at + 1), 0
    while text[at] not in "}]":
        begin, key = at, index
        if is_object:
            key, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        end = _end(text, at)
        yield key, begin, at, end
        at, index = _skip(text, end), index + 1
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


_decode: Final = JSONDecoder().raw_decode


def _end(text: str, at: int) -> int:
    return int(_decode(text, at)[1])
