"""Compute conditions and values of dead letters in SQL, at a bounded cost.

SQL becomes steps over Arrow columns. No step returns much more than it reads, and the time is
checked between two steps. SQL engines keep no such bounds: DuckDB computes `repeat('a', 1e9)` in
one step that neither its memory limit nor an interrupt stops.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.dead_letters import letter_schema
from spark_mq.maintenance.sql_functions import Refused
from spark_mq.maintenance.sql_parser import Parser
from spark_mq.util.validation import short_repr

__all__ = ["ARROW_ERRORS", "Condition", "Expression", "problem_of"]

SECONDS: Final = 30.0  # for the steps of a condition in one call. Reading letters is extra.
_MOST_BYTES: Final = 64 * 2**20  # of all values between two steps, or four times their letters
_PIECE_BYTES: Final = 4 * 2**20  # of letters that one step reads, but one letter at least
ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class Expression:
    """An expression over the columns of dead letters, or of another schema.

    Raises InvalidOption when it is made. `example` stands in its errors.
    """

    option = "transform"
    kind, example = "an expression", "replace(CAST(value AS TEXT), 'EURO', 'EUR')"

    def __init__(
        self, text: str, schema: pa.Schema | None = None, example: str | None = None
    ) -> None:
        schema = letter_schema() if schema is None else schema
        self._text, self._columns = text, schema.names
        self.example = example or self.example
        self._left = SECONDS
        if not (isinstance(text, str) and text.strip()):
            raise InvalidOption(
                f"{self.option}={short_repr(text)} is not {self.kind}: give SQL like "
                f'"{self.example}"',
                option=self.option,
                value=text,
            )
        try:
            self._steps, self.may_fail = Parser(text.removeprefix("\ufeff"), self._columns).parse()
        except Refused as error:
            raise self.refusal(str(error)) from None
        self.check(self.run(schema.empty_table()).type)

    def check(self, kind: pa.DataType) -> None:
        """Raise InvalidOption unless the type of the values fits."""

    def pieces(self, letters: pa.Table) -> list[pa.Table]:
        """Return letters in pieces, each of which a step may read at once."""
        rows = max(1, _PIECE_BYTES * letters.num_rows // max(1, letters.nbytes))
        return [letters.slice(at, rows) for at in range(0, letters.num_rows, rows)]

    def run(self, letters: pa.Table) -> pa.Array:
        """Return a value for each letter of a piece. Raises InvalidOption."""
        try:
            return self.try_run(letters)
        except ARROW_ERRORS as error:
            raise self.refusal(f"{problem_of(error)} for a message") from None

    def try_run(self, letters: pa.Table) -> pa.Array:
        """Return the values as :meth:`run`, but raise the errors of Arrow unchanged."""
        deadline = time.monotonic() + self._left
        stack: list[Any] = []
        try:
            for step, number in self._steps:
                if time.monotonic() >= deadline:
                    raise Refused(f"it computes for more than {SECONDS:.0f} seconds")
                at = len(stack) - number
                stack[at:] = [step(letters, *stack[at:])]
                if sum(_size(one) for one in stack) > max(_MOST_BYTES, 4 * letters.nbytes):
                    raise Refused("it makes too much of the messages")
        except Refused as error:
            raise self.refusal(str(error)) from None
        finally:
            self._left = deadline - time.monotonic()
        values = stack.pop()
        if not isinstance(values, pa.Scalar):
            return values
        return pa.array([values.as_py()] * letters.num_rows, values.type)

    def refusal(self, problem: str) -> InvalidOption:
        return InvalidOption(
            f"{self.option}={short_repr(self._text)} cannot be run: {problem}. Give SQL like "
            f'"{self.example}". The columns are {", ".join(self._columns)}',
            option=self.option,
            value=self._text,
        )


def problem_of(error: Exception) -> str:
    """Return what an error of Arrow means, without the engine's text."""
    zero = "divide by zero" in str(error)
    return "it divides by zero" if zero else "it uses values of different types"


def _size(value: Any) -> int:
    return 0 if isinstance(value, pa.Scalar) else int(value.nbytes)


class Condition(Expression):
    """A condition, which selects rows."""

    option = "where"
    kind, example = "a condition", "reason = 'rejected'"

    def check(self, kind: pa.DataType) -> None:
        if not pa.types.is_boolean(kind):
            raise self.refusal("it is not true or false for a message")

    def select(self, letters: pa.Table) -> pa.Table:
        """Return the letters for which the condition holds. Raises InvalidOption."""
        found = [piece.filter(self.run(piece)) for piece in self.pieces(letters)]
        return pa.concat_tables([letters.slice(0, 0), *found])
