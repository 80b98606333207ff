"""Run the examples in the docstrings of the package."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from support.blocks import ROOT


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


WITH_EXAMPLES = [
    _module(path)
    for path in sorted((ROOT / "spark_mq").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_public_docstrings_have_examples() -> None:
    assert {"spark_mq.message", "spark_mq.testing", "spark_mq.inspect.views"} <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module).failed == 0
