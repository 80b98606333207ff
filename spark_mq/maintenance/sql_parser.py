"""Parse the SQL over dead letters into steps over Arrow columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.sql_functions import FUNCTIONS, MOST_ARGUMENTS, Refused, case, concat
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.validation import short_repr, suggest, validate_duration

__all__ = ["Parser", "Step", "try_cast"]

_MAX_CHARACTERS: Final = 200_000
_MAX_DEPTH: Final = 30  # parentheses and calls inside each other
_MAX_PATTERN: Final = 1_000  # characters of a pattern of LIKE
_MAX_WILDCARDS: Final = 10
"""Wildcards of a pattern. The time of a match may grow with two to the power of their number."""


def instant(text: str) -> pa.Scalar:
    try:
        at = datetime.fromisoformat(text)
        return pa.scalar(at if at.tzinfo else at.replace(tzinfo=UTC), INSTANT)
    except (ValueError, OverflowError):
        raise Refused(f"{short_repr(text)} is not an instant, such as 2026-01-31T12:00Z") from None


def interval(text: str) -> pa.Scalar:
    try:
        micros = validate_duration("where", text)
    except InvalidOption:
        raise Refused(f"{short_repr(text)} is not a duration, such as 2 hours") from None
    return pa.scalar(timedelta(microseconds=micros), pa.duration("us"))


def comparing(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison in which a text beside an instant is an instant."""
    return lambda a, b: compare(_beside(b, a), _beside(a, b))


def _beside(other: Any, value: Any) -> Any:
    is_text = isinstance(value, pa.StringScalar)
    return instant(value.as_py()) if is_text and other.type == INSTANT else value


def between(x: Any, low: Any, high: Any) -> Any:
    least, most = comparing(pc.greater_equal), comparing(pc.less_equal)
    return pc.and_kleene(least(x, low), most(x, high))


def is_in(x: Any, values: pa.Array) -> Any:
    """Return whether a value is in a list. It is unknown for null, as in SQL."""
    if x.type == INSTANT and pa.types.is_string(values.type):
        values = pa.array([instant(text).as_py() for text in values.to_pylist()], INSTANT)
    elif pa.types.is_integer(x.type):
        x = pc.cast(x, pa.int64())
    return pc.if_else(pc.is_valid(x), pc.is_in(x, value_set=values), pa.scalar(None, pa.bool_()))


def try_cast(x: Any, kind: pa.DataType) -> Any:
    """Cast values. Those that do not fit become null."""
    try:
        return pc.cast(x, kind)
    except pa.ArrowInvalid:
        if isinstance(x, pa.Scalar):
            return pa.scalar(None, kind)
        if len(x) == 1:
            return pa.nulls(1, kind)
    half = len(x) // 2
    return pa.concat_arrays([try_cast(x[:half], kind), try_cast(x[half:], kind)])


_TOKEN: Final = re.compile(
    r"""(?P<space>\s++|--[^\n]*+|/\*.*?\*/)
    |(?P<text>'[^']*+(?:''[^']*+)*+')
    |(?P<number>[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*+|"[^"]+")
    |(?P<sign>\|\||<>|!=|<=|>=|[-+*/%=<>(),\[\]])""",
    re.VERBOSE | re.DOTALL,
)
_EITHER, _BOTH, _TEST, _SUM, _PRODUCT = range(1, 6)  # how tightly operators bind
_BINARY: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "OR": (_EITHER, pc.or_kleene), "AND": (_BOTH, pc.and_kleene),
    "=": (_TEST, comparing(pc.equal)), "<>": (_TEST, comparing(pc.not_equal)),
    "!=": (_TEST, comparing(pc.not_equal)), "<": (_TEST, comparing(pc.less)),
    "<=": (_TEST, comparing(pc.less_equal)), ">": (_TEST, comparing(pc.greater)),
    ">=": (_TEST, comparing(pc.greater_equal)),
    "||": (_SUM, concat), "+": (_SUM, pc.add_checked), "-": (_SUM, pc.subtract_checked),
    "*": (_PRODUCT, pc.multiply_checked), "/": (_PRODUCT, pc.divide_checked),
    "%": (_PRODUCT, pc.remainder_checked),
}  # fmt: skip
_TYPES: Final = {
    "INT": pa.int64(), "INTEGER": pa.int64(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
    "TEXT": pa.string(), "STRING": pa.string(), "VARCHAR": pa.string(),
}  # fmt: skip
_CONSTANTS: Final = {"TRUE": pa.scalar(True), "FALSE": pa.scalar(False), "NULL": pa.scalar(None)}
_TESTS: Final = ("NOT", "IS", "LIKE", "ILIKE", "IN", "BETWEEN")
_CALLS: Final = (*FUNCTIONS, "NOW", "CAST", "TRY_CAST")
Step: TypeAlias = tuple[Callable[..., Any], int]
"""A function, and the number of its arguments on the stack."""


class Parser:
    """Turns a condition into steps of a stack machine. Raises Refused."""

    def __init__(self, where: str, columns: Sequence[str]) -> None:
        if len(where) > _MAX_CHARACTERS:
            raise Refused(f"it has more than {_MAX_CHARACTERS:,} characters")
        if any("\ud800" <= one <= "\udfff" for one in where):
            raise Refused("it is no valid Unicode text")
        self._tokens, self._columns = _tokens(where), columns
        self._steps: list[Step] = []
        self._may_fail = False
        self._depth = 0
        self._advance()

    def parse(self) -> tuple[list[Step], bool]:
        """Return the steps, and whether they may fail at a letter."""
        self._expression(_EITHER)
        if self._kind:
            self._fail()
        return self._steps, self._may_fail

    def _advance(self) -> None:
        self._kind, self._token = next(self._tokens, ("", ""))
        self._word = self._token.upper() if self._kind in ("name", "sign") else ""

    def _take(self, *words: str) -> str:
        """Consume the next token if it is one of these. Return it in upper case, or "" if not."""
        word = self._word if self._word in words else ""
        if word:
            self._advance()
        return word

    def _expect(self, *words: str) -> str:
        return self._take(*words) or self._fail()

    def _fail(self) -> Any:
        raise _wrong(self._token)

    def _emit(self, run: Callable[..., Any], number: int) -> None:
        """Add a step that does not look at the letters themselves."""
        self._steps.append((lambda _, *given: run(*given), number))

    def _constant(self, value: pa.Scalar) -> None:
        self._emit(lambda: value, 0)

    def _expression(self, least: int) -> None:
        """Parse operators that bind at least so tightly."""
        if self._word == "NOT" and least <= _TEST:
            self._inversion()
        else:
            self._factor()
        while True:
            level, run = _BINARY.get(self._word, (0, None))
            if least <= _TEST and self._word in _TESTS:
                self._test()
            elif run is not None and level >= least:
                self._advance()
                self._expression(level + 1)
                self._emit(run, 2)
                self._may_fail |= level >= _SUM
            else:
                return

    def _inversion(self) -> None:
        odd = False
        while self._take("NOT"):
            odd = not odd
        self._expression(_TEST)
        if odd:
            self._emit(pc.invert, 1)

    def _test(self) -> None:
        inverted = bool(self._take("NOT"))
        test = self._take(*_TESTS)
        if test == "IS" and not inverted:
            inverted = bool(self._take("NOT"))
            self._expect("NULL")
            self._emit(pc.is_null, 1)
        elif test in ("LIKE", "ILIKE"):
            pattern = self._pattern()
            self._emit(lambda x: pc.match_like(x, pattern, ignore_case=test == "ILIKE"), 1)
        elif test == "IN":
            values = self._list()
            self._emit(lambda x: is_in(x, values), 1)
        elif test == "BETWEEN":
            self._expression(_SUM)
            self._expect("AND")
            self._expression(_SUM)
            self._emit(between, 3)
        else:
            self._fail()
        if inverted:
            self._emit(pc.invert, 1)

    def _factor(self) -> None:
        if self._kind in ("text", "number") or self._word == "-":
            self._constant(pa.scalar(self._literal()))
        elif self._take("("):
            self._nested(lambda: self._expression(_EITHER))
        elif self._kind == "name":
            self._named()
        else:
            self._fail()

    def _nested(self, parse: Callable[[], object], end: str = ")") -> None:
        """Parse up to a closing parenthesis, or another end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Refused(f"it has more than {_MAX_DEPTH} parentheses inside each other")
        parse()
        self._expect(end)
        self._depth -= 1

    def _named(self) -> None:
        name, word = self._token.strip('"'), self._word
        self._advance()
        if word in _CONSTANTS:
            self._constant(_CONSTANTS[word])
        elif word == "CASE":
            self._nested(self._case, "END")
        elif word in ("TIMESTAMP", "INTERVAL") and self._kind == "text":
            kind = instant if word == "TIMESTAMP" else interval
            self._constant(kind(self._text()))
        elif self._take("("):
            self._nested(lambda: self._call(word))
        else:
            self._column(name)

    def _column(self, name: str) -> None:
        columns = self._columns
        column = name if name in columns else name.lower()
        if column not in columns:
            hint = suggest(name, columns)
            meant = f" (did you mean {hint!r}?)" if hint else ""
            raise Refused(f"there is no column {short_repr(name)}{meant}")
        self._steps.append((lambda letters: letters[column].combine_chunks(), 0))
        if self._take("["):
            key = pa.scalar(self._text())
            self._expect("]")
            self._emit(lambda x: pc.map_lookup(x, query_key=key, occurrence="last"), 1)

    def _case(self) -> None:
        number = 1
        while self._take("WHEN"):
            self._expression(_EITHER)
            self._expect("THEN")
            self._expression(_EITHER)
            number += 2
        if number == 1:
            self._fail()
        if self._take("ELSE"):
            self._expression(_EITHER)
        else:
            self._constant(pa.scalar(None))
        self._emit(case, number)

    def _call(self, word: str) -> None:
        if word == "NOW":
            self._constant(pa.scalar(datetime.now(UTC), INSTANT))
        elif word in ("CAST", "TRY_CAST"):
            self._expression(_SUM)
            self._expect("AS")
            kind, cast = _TYPES[self._expect(*_TYPES)], pc.cast if word == "CAST" else try_cast
            self._emit(lambda x: cast(x, kind), 1)
            self._may_fail |= word == "CAST"
        fits = word in _CALLS
        if word in FUNCTIONS:
            least, most, function, may_fail = FUNCTIONS[word]
            self._expression(_SUM)
            number = 1
            while number < MOST_ARGUMENTS and self._take(","):
                self._expression(_SUM)
                number += 1
            fits = least <= number <= most
            self._emit(function, number)
            self._may_fail |= may_fail
        if self._word == "," or not fits:
            raise Refused(
                f"it calls a function that does not fit, {short_repr(word.lower())}. The functions "
                f"are {', '.join(_CALLS).lower()}"
            )

    def _literal(self) -> str | int | float:
        sign = -1 if self._take("-") else 1
        kind, token = self._kind, self._token
        if kind == "text" and sign == 1:
            self._advance()
            return token[1:-1].replace("''", "'")
        if kind != "number":
            self._fail()
        self._advance()
        if not token.isdigit():
            return sign * float(token)
        if len(token) > 18:
            raise Refused(f"the number {short_repr(token)} is too large")
        return sign * int(token)

    def _text(self) -> str:
        return str(self._literal()) if self._kind == "text" else self._fail()

    def _list(self) -> pa.Array:
        self._expect("(")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        self._expect(")")
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise Refused("it uses values of different types in one list") from None

    def _pattern(self) -> str:
        pattern = self._text()
        wildcards = pattern.count("%") + pattern.count("_")
        if len(pattern) > _MAX_PATTERN or wildcards > _MAX_WILDCARDS:
            raise Refused(
                f"a pattern of LIKE has {len(pattern):,} characters and {wildcards:,} wildcards. "
                f"It may have {_MAX_PATTERN:,} and {_MAX_WILDCARDS}"
            )
        return pattern


def _tokens(where: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds and the texts of the tokens."""
    at = 0
    while at < len(where):
        found = _TOKEN.match(where, at)
        if found is None:
            raise _wrong(where[at:])
        at = found.end()
        if found.lastgroup != "space":
            yield found.lastgroup or "", found[0]


def _wrong(rest: str) -> Refused:
    at = f"it has a syntax error at {short_repr(rest)}"
    return Refused(at if rest else "it is not complete")
