"""Compare some attributes of an object, each beside its expected value."""

from __future__ import annotations

__all__ = ["having"]


class _Having:
    def __init__(self, expected: dict[str, object]) -> None:
        self._expected = expected

    def __eq__(self, other: object) -> bool:
        return {name: getattr(other, name) for name in self._expected} == self._expected

    def __hash__(self) -> int:
        return hash(tuple(self._expected))

    def __repr__(self) -> str:
        return f"having({', '.join(f'{name}={value!r}' for name, value in self._expected.items())})"


def having(**expected: object) -> _Having:
    """Return what equals each object that has these values: ``assert stats == having(acked=2)``."""
    return _Having(expected)
