"""Parameters of tests that make test leaves out."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest

__all__ = ["slow", "slow_but"]


def slow(*values: Any) -> Any:
    """Mark one set of parameters as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(daily: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Mark all values of one parameter as slow but the daily ones."""
    return [value if value in daily else slow(value) for value in values]
