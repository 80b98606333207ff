"""Errors and warnings name the call in Python and the command that help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import Run

import spark_mq


def advised() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command that a text of the library names, with its place."""
    for path in Path(spark_mq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shell_command":
                words = [one.value if isinstance(one, ast.Constant) else "-" for one in node.args]
                yield f"{path.stem}:{node.lineno}", words


@pytest.mark.parametrize(("place", "words"), list(advised()))
def test_each_advised_command_is_there(run: Run, place: str, words: list[str]) -> None:
    out = run(*(word for word in words[:2] if word.isalpha()), "--help").out
    for option in words:
        assert not re.match("--?[a-z]", option) or option in out, (place, option)
