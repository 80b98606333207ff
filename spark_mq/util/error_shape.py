"""Reduce the text of an error to what all errors of one cause have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

MAX_SHAPE: Final = 200
"""Most characters of a shape."""
_LOOKED_AT: Final = 2_000  # characters of a text, so that a long one costs no more

# A number that says what went wrong stays. There are few of each kind, so a shape has few variants.
_PHRASES: Final = "|".join(sorted({re.escape(status.phrase) for status in HTTPStatus}))
_CODES: Final = (  # what stands before it, what stays, and what may not or must follow
    (  # HTTP Error 503, status code: 429, "status": 404, Response [503]
        "",
        r"['\"]?\b(?:(?:http(?:/[0-9](?:\.[0-9])?)?|status|error|response|occurred)[ _-]?){1,3}"
        r"(?:code)?['\"]?(?: is| was| of)?(?: ?[:=] ?| ?[(\[]| )[1-5][0-9]{2}\b",
        r"(?![.,][0-9])",
    ),
    (  # returned 500
        "",
        r"\b(?:returned|(?:responded|answered|replied|failed) with)(?: an?)? [1-5][0-9]{2}\b",
        r"(?=\s*(?:$|[^\w\s.,]|[.,](?![0-9]))|\s+(?:for|from|on|when|while|after|with|instead)\b)",
    ),
    ("", rf"['\"]?\b[1-5][0-9]{{2}}:? (?:{_PHRASES}|(?:Server|Client) Error)\b['\"]?", ""),
    ("", r"\b[45][0-9]{2} error(?: responses?)?\b", ""),  # too many 503 error responses
    ("", r"\b[1-5][0-9]{2},? (?-i:GET|HEAD|POST|PUT|PATCH|DELETE|message)\b", ""),
    ("", r"\b(?:errno|winerror|sqlcode)\W{1,2}-?[0-9]{1,5}\b", ""),
    (  # exit code 137, error code 1045
        "",
        r"\b(?:exit(?:ed)?|return|error|result|vendor|native)[ _-]?(?:with )?(?:exit )?"
        r"(?:code|status)\W{1,2}(?:0x[0-9a-f]{1,8}|-?[0-9]{1,5})\b",
        "",
    ),
    ("", r"\bSystemExit: -?[0-9]{1,5}\b", ""),
    ("", r"\bsignal[ :=]{1,2}[0-9]{1,2}\b", ""),
    ("", r"\bgrpc[ _-]status(?:[ _-]code)?\W{1,3}[0-9]{1,2}\b", ""),
    ("", r"\bsqlstate\W{1,2}[0-9a-z]{5}\b", ""),
    ("", r"\b(?:ORA|TNS|PLS|MY)-[0-9]{4,6}\b", ""),
    ("", r"\berror [0-9]{4} \([0-9a-z]{5}\)", ""),  # of MySQL, as is the next
    (r"Error: \(", r"[0-9]{4}\b", r"(?=, ['\"])"),
)
_MAY_HAVE_CODE: Final = "(?i)" + "|".join(before + stays for before, stays, _ in _CODES)
"""What each text with such a number matches, and some others. It is a pattern for Arrow, too."""

# The order counts: what is quoted may have a path inside, and a path a number. Each repetition is
# possessive or bounded, so a text cannot make a match slow.
_PARTS: Final[Mapping[str, str]] = {
    "lease": r"\Alease \S{32,}+ of .+? expired",  # of ledger/transitions.py. A worker has any name
    "url": r"\b[a-z][a-z0-9+.-]{1,30}+://[^\s'\"<>)\],;]++",
    "jdbc": r"\bjdbc:[^\s'\"<>)\],;]++",
    "email": r"\b[\w.+-]{1,64}+@[\w-]{1,63}+(?:\.[\w-]{1,63}+)+",
    "uuid": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "date": (
        r"\b(?=[0-9])(?:[0-9]{4}-[0-9]{2}-[0-9]{2}"
        r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
        r"|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}\b|[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}\b"
        r"|[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?)"
    ),
    "code": (
        r"(?=['\"]?[0-9aefghmnoprstvw])(?:"
        + "|".join(f"(?<={before}){stays}{after}" for before, stays, after in _CODES)
        + ")"
    ),
    "quoted": (
        r"(?<!\w)'(?:[^'\\]|\\.|(?<=\w)'(?=\w)){0,1000}+'"
        r'|"(?:[^"\\]|\\.){0,1000}+"|`[^`]{0,1000}+`'
    ),
    "path": (
        r"(?<![\w/<.])(?:[A-Za-z]:\\|~?/|\.{1,2}/)"
        r"(?=[/=]*+[^\s'\"<>:,;()\[\]])[^\s'\"<>:,;()\[\]]++"  # "//" and "/=" are operators
    ),
    "hex": (
        r"\b(?=[0-9a-f])(?:0x[0-9a-f]++|(?=[a-f]{0,31}[0-9])(?=[0-9]{0,31}[a-f])[0-9a-f]{8,}+\b)"
        r"|@[0-9a-f]{5,}+\b"
    ),
    "n": r"(?<![A-Za-z_])[-+]?[0-9]++(?:[.,_][0-9]++)*+(?:e[+-]?[0-9]++)?",
}
_SIGNS: Final[Mapping[str, str]] = {
    "://": "url",
    "jdbc:": "jdbc",
    "@": "email",
    "'": "quoted",
    '"': "quoted",
    "`": "quoted",
    "/": "path",
    "\\": "path",
    "-": "uuid",
    " expired": "lease",
}
"""What a text must have in it, so that a part can be of a kind. The rest may always be there."""
_START: Final = r"(?=[-+0-9'\"`@/.~]|\b\w)"
"""Where a part may begin. Without it, the search tries all kinds at each letter of a word."""
_ALIKE_DIGITS: Final = r"([ -@\[-^`{-~])[2-9]"
"""What may be replaced by group 1 and a 1, without an effect on a shape.

A digit is in a placeholder, unless it follows a letter or "_", or _MAY_HAVE_CODE matches the text.
Only 0 is special there, as in 0x.
"""
_SHOWN: Final = {"jdbc": "<url>", "quoted": "<text>", "lease": "lease of <worker> expired"}
_LIST: Final = re.compile(r"(<\w+>)(?:, ?\1)+")


def error_shape(text: str) -> str:
    """Return the text of an error with placeholders for what differs from message to message.

    These are numbers, dates, ids, paths, addresses and quoted parts, so two errors of one shape
    probably have one cause. The class of the exception stays, and so does a number that is the
    cause: the status of HTTP and gRPC, an errno, an exit code, a signal, and the codes of
    databases. Expired leases of all workers have one shape. Only the first 2,000 characters count,
    and the result is a line of at most 200.

    Examples
    --------
    >>> error_shape("KeyError: 'customer_17'")
    'KeyError: <text>'
    >>> error_shape("ValueError: amount -12.50 of order 4711 is negative")
    'ValueError: amount <n> of order <n> is negative'
    >>> error_shape("HTTP Error 503 for order 4711")
    'HTTP Error 503 for order <n>'
    """
    text = text[:_LOOKED_AT]
    shape = _pattern(tuple(sign in text for sign in _SIGNS)).sub(_placeholder, text)
    shape = _LIST.sub(r"\1, …", " ".join(shape.split()))
    return shape if len(shape) <= MAX_SHAPE else shape[: MAX_SHAPE - 1] + "…"


def error_shapes(texts: pa.Array) -> pa.Array:
    """Return the shape of each error. It is computed once for texts that differ in digits alone."""
    alike = given = texts.cast(pa.string())
    for _ in range(2):  # a match ends with its digit, so each pass finds every second one
        alike = pc.replace_substring_regex(alike, _ALIKE_DIGITS, r"\11")
    each = pc.if_else(pc.match_substring_regex(given, _MAY_HAVE_CODE), given, alike)
    each = each.dictionary_encode()
    shapes = pa.array([error_shape(text) for text in each.dictionary.to_pylist()], pa.string())
    return shapes.take(each.indices)


def recent_error_shape(text: str) -> str:
    """Return :func:`error_shape`, but do not compute it again for an error that was just noted."""
    return _recent(text[:_LOOKED_AT])


@lru_cache(1_024)
def _recent(text: str) -> str:
    return error_shape(text)


@cache
def _pattern(signs: tuple[bool, ...]) -> re.Pattern[str]:
    """Return the pattern of the parts that a text with these signs can have."""
    kinds = {kind for kind, seen in zip(_SIGNS.values(), signs, strict=True) if seen}
    kinds |= _PARTS.keys() - set(_SIGNS.values())
    parts = "|".join(f"(?P<{kind}>{part})" for kind, part in _PARTS.items() if kind in kinds)
    return re.compile(f"{_START}(?:{parts})", re.IGNORECASE)


def _placeholder(match: re.Match[Any]) -> str:
    name = match.lastgroup or ""
    if name == "code":
        return str(match[0])
    return _SHOWN.get(name, f"<{name}>")
