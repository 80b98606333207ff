"""Define which messages a group wants, by key and headers."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_mq.util.setting_fields import Kind
from spark_mq.util.validation import invalid, short_repr

KEY_PREFIX: Final = "key_prefix"
HEADER: Final = "header"
_HEADER_DOT: Final = f"{HEADER}."
_MOST: Final = 100  # values, because each commit of a ledger has the settings
_LONGEST: Final = 1_000  # characters of a value


def _check(name: str, value: Any) -> dict[str, Any]:
    given = _from_text(name, value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not given:
        raise _invalid(name, value)
    checked = dict[str, Any]()
    for condition, wanted in given.items():
        if condition == KEY_PREFIX:
            checked[KEY_PREFIX] = _texts(name, value, wanted)
        elif condition == HEADER and isinstance(wanted, Mapping) and wanted:
            texts = {key: _texts(name, value, wanted[key]) for key in wanted}
            if not all(key and _is_text(key) for key in texts):
                raise _invalid(name, value)
            checked[HEADER] = dict(sorted(texts.items()))
        else:
            raise _invalid(name, value, condition)
    if "" in checked.get(KEY_PREFIX, ()):
        raise invalid(name, value, "has an empty key_prefix: leave it out")
    headers = checked.get(HEADER, {})
    if len(checked.get(KEY_PREFIX, ())) + sum(map(len, headers.values())) > _MOST:
        raise _invalid(name, value)
    return dict(sorted(checked.items()))


def _texts(name: str, value: Any, given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    valid = isinstance(texts, list | tuple | set | frozenset) and 0 < len(texts) <= _MOST
    if not valid or not all(map(_is_text, texts)):
        raise _invalid(name, value)
    return sorted(set(texts))


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that a message could have."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)  # no UTF-8 has these


def _from_text(name: str, text: str) -> Any:
    """Return the conditions that a person typed, also as JSON."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _invalid(name, text) from error
    prefixes, headers = list[str](), dict[str, list[str]]()
    for part in text.split(","):
        condition, given, wanted = part.strip().partition("=")
        if given and condition == KEY_PREFIX:
            prefixes.append(wanted)
        elif given and condition.startswith(_HEADER_DOT):
            headers.setdefault(condition.removeprefix(_HEADER_DOT), []).append(wanted)
        else:
            raise _invalid(name, text, condition)
    both = ((KEY_PREFIX, prefixes), (HEADER, headers))
    return {condition: wanted for condition, wanted in both if wanted}


def _invalid(name: str, value: Any, condition: Any = None) -> Exception:
    known = not condition or condition in (KEY_PREFIX, HEADER)
    known = known or str(condition).startswith(_HEADER_DOT)
    problem = "is not a filter" if known else f"has no condition {short_repr(condition)}"
    return invalid(
        name,
        value,
        f"{problem}: use conditions "
        "such as {'key_prefix': 'eu-'} or {'header': {'region': "
        "['eu', 'uk']}}, as text 'key_prefix=eu-' or 'header.region=eu, header.region=uk', "
        f"of up to {_MOST} values of up to {_LONGEST:,} characters. None: no filter",
    )


def _show(value: Mapping[str, Any]) -> str:
    """Return the conditions as a person would type them."""
    pairs = [(KEY_PREFIX, prefix) for prefix in value.get(KEY_PREFIX, ())]
    for header, wanted in value.get(HEADER, {}).items():
        pairs += [(f"{HEADER}.{header}", text) for text in wanted]
    text = ", ".join(f"{condition}={wanted}" for condition, wanted in pairs)
    plain = not any("=" in name or name != name.strip() for name, _ in pairs) and not any(
        "," in text or text != text.strip() for pair in pairs for text in pair
    )
    return text if plain else json.dumps(dict(value))


FILTERS: Final[Kind[Mapping[str, Any]]] = Kind(
    "Mapping[str, object] | str",
    "conditions, such as `key_prefix=eu-, header.region=eu`, with up to 100 values of up to 1,000 "
    "characters",
    _check,
    show=_show,
)


def filter_id(wanted: Mapping[str, Any]) -> str:
    """Return a text that only equal filters share."""
    return json.dumps(wanted)


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The rows of a data file in runs, of which every other one matches a filter."""

    ends: array[int]  # the row after each run
    first_matches: bool

    @property
    def all_match(self) -> bool:
        return self.first_matches and len(self.ends) == 1

    def between(self, low: int, high: int) -> Iterator[tuple[bool, int, int]]:
        """Yield whether each run matches, and its first and last row, in order."""
        at = bisect_right(self.ends, low)
        while low <= high:
            end = min(self.ends[at] - 1, high)
            yield (at % 2 == 0) is self.first_matches, low, end
            low, at = end + 1, at + 1
