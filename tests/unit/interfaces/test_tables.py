"""Tables of a command in terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spark_mq.interfaces.cli.output import Rows, make_table

ROWS = [
    {"id": 4_294_967_297, "none": 0, "many": 1_234_567, "why": "the payment failed again"},
    {"id": 4_294_967_298, "none": 0, "many": 2, "why": "x" * 30 + " was not there today"},
]
COLUMNS = [("ID", "id"), ("NONE", "none"), ("MANY", "many"), ("WHY", "why")]


def printed(width: int) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    console.print(make_table(Rows(ROWS, COLUMNS), console))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [*range(34, 90, 3), 200])
def test_a_table_breaks_texts_and_no_numbers(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    for number in ("4,294,967,297", "1,234,567"):
        assert sum(number in line for line in lines) == 1
    text = "".join(line[-(width - 26) :].strip() for line in lines if width < 70)
    assert "x" not in text or text.count("x") == 30, "no text is cut off"


def test_columns_without_a_value_go_if_a_table_is_too_wide() -> None:
    assert printed(200)[0].split() == ["ID", "NONE", "MANY", "WHY"]
    assert printed(60)[0].split() == ["ID", "MANY", "WHY"]
