"""Parameters of tests that make test leaves out."""

from __future__ import annotations

from collections.abc import Container, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

__all__ = ["slow", "slow_but", "without_delta"]


def slow(*values: Any) -> Any:
    """Mark one set of parameters as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(daily: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Mark all values of one parameter as slow but the daily ones."""
    return [value if value in daily else slow(value) for value in values]


def without_delta() -> str | None:
    """Return why the tests marked ``delta`` cannot run, or None if this Spark has Delta."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return "needs pyspark, which isn't installed"
    known = spark.startswith("4.2.")
    return None if known else f"needs Delta Lake, which has no JAR for Spark {spark}"
