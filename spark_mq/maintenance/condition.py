"""Select dead letters by a condition in SQL, at a bounded cost.

A condition becomes steps over Arrow columns. No step returns much more than it reads, and the time
is checked between two steps. SQL engines keep no such bounds: DuckDB computes `repeat('a', 1e9)` in
one step that neither its memory limit nor an interrupt stops.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pyarrow as pa

from spark_mq.errors import InvalidOption
from spark_mq.maintenance.condition_parser import Parser, Refused
from spark_mq.maintenance.dead_letters import COLUMNS, letter_schema
from spark_mq.util.validation import short_repr

__all__ = ["Condition"]

SECONDS: Final = 30.0  # for the steps of a condition in one call. Reading letters is extra.
_PIECE_BYTES: Final = 4 * 2**20  # of letters that one step reads, but one letter at least


class Condition:
    """A condition over the columns of dead letters. Raises InvalidOption when it is made."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = SECONDS
        if not (isinstance(where, str) and where.strip()):
            raise InvalidOption(
                f"where={short_repr(where)} is not a condition: give SQL like "
                "\"reason = 'rejected'\"",
                option="where",
                value=where,
            )
        try:
            self._steps, self.may_fail = Parser(where).parse()
        except Refused as error:
            raise self._refusal(str(error)) from None
        mask = self._mask(letter_schema().empty_table())
        if not pa.types.is_boolean(mask.type):
            raise self._refusal("it is not true or false for a message")

    def select(self, letters: pa.Table) -> pa.Table:
        """Return the letters for which the condition holds. Raises InvalidOption."""
        rows = max(1, _PIECE_BYTES * letters.num_rows // max(1, letters.nbytes))
        pieces = [letters.slice(at, rows) for at in range(0, letters.num_rows, rows)]
        found = [piece.filter(self._mask(piece)) for piece in pieces]
        return pa.concat_tables([letters.slice(0, 0), *found])

    def _mask(self, letters: pa.Table) -> pa.Array:
        deadline = time.monotonic() + self._left
        stack: list[Any] = []
        try:
            for run, number in self._steps:
                if time.monotonic() >= deadline:
                    raise self._refusal(f"it computes for more than {SECONDS:.0f} seconds")
                at = len(stack) - number
                stack[at:] = [run(letters, *stack[at:])]
        except Refused as error:
            raise self._refusal(str(error)) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            zero = "divide by zero" in str(error)
            problem = "it divides by zero" if zero else "it uses values of different types"
            raise self._refusal(f"{problem} for a message") from None
        self._left = deadline - time.monotonic()
        mask = stack.pop()
        if not isinstance(mask, pa.Scalar):
            return mask
        return pa.array([mask.as_py()] * letters.num_rows, mask.type)

    def _refusal(self, problem: str) -> InvalidOption:
        return InvalidOption(
            f"where={short_repr(self._where)} cannot be run: {problem}. Give SQL like "
            f"\"reason = 'rejected'\". The columns are {', '.join(COLUMNS)}",
            option="where",
            value=self._where,
        )
