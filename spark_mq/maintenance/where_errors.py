"""Explain a wrong SQL condition without the SQL engine's text."""

from __future__ import annotations

import re
from typing import Final

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.letter_tables import COLUMNS
from spark_mq.util.validation import suggest

__all__ = ["invalid_where", "is_about_condition", "may_fail_at_a_row"]

_UNKNOWN_COLUMN: Final = re.compile(r"No field named \"?(?:dead\.)?(\w+)")
_AT_A_ROW: Final = re.compile(r"ArrowError|Arrow error|Compute error")
_FAILS_AT_A_ROW: Final = re.compile(r"(?<!TRY_)\bCAST\(| [/%] |\b[a-z]\w*\(")
"""Casts, divisions and functions in a plan. The engine writes functions in lower case."""
_PROBLEMS: Final = (
    (re.compile(r"ParserError|TokenizerError"), "it has a syntax error, or is not complete"),
    (re.compile(r"non-boolean"), "it is not true or false for a message"),
    (re.compile(r"Invalid function|expects \d+ arg"), "it calls a function that does not fit"),
    (re.compile(r"table .* not found"), "it names another table"),
    (re.compile(r"Aggregate"), "it counts or sums, so it is not about one message"),
    (re.compile(r"DivideByZero"), "it divides by zero for a message"),
    (re.compile(r"[Cc]ast|coerc|parsing"), "it compares values of different types"),
)


def may_fail_at_a_row(plan: str) -> bool:
    """Return whether a planned condition may fail for single rows.

    A comparison of text with a number is such a condition. The engine casts the text of each row.
    """
    return _FAILS_AT_A_ROW.search(plan) is not None


def is_about_condition(error: Exception) -> bool:
    """Return whether an error of the SQL engine concerns the condition.

    Other errors are, for instance, a full disk.
    """
    # While it reads rows, the engine raises a plain Exception for any cause.
    return isinstance(error, ValueError) or bool(_AT_A_ROW.search(str(error)))


def invalid_where(where: str, engine_text: str) -> InvalidOption:
    """Return the error for a condition that the SQL engine refuses."""
    if found := _UNKNOWN_COLUMN.search(engine_text):
        hint = suggest(found[1], COLUMNS)
        meant = f" (did you mean {hint!r}?)" if hint else ""
        problem = f"there is no column {found[1]!r}{meant}"
    else:
        known = (problem for kind, problem in _PROBLEMS if kind.search(engine_text))
        problem = next(known, "it cannot be computed")
    return InvalidOption(
        f"where={where!r} cannot be run: {problem}. Give SQL like \"reason = 'rejected'\". The "
        f"columns are {', '.join(COLUMNS)}",
        option="where",
        value=where,
    )
