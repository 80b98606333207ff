"""Report the progress of a long operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

__all__ = ["counted", "showing_steps", "step"]

_show: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("spark_mq_steps", default=None)
T_co = TypeVar("T_co", covariant=True)


class _Collection(Sized, Iterable[T_co], Protocol[T_co]):
    """A collection that can be counted and iterated over."""


@contextmanager
def showing_steps(show: Callable[[str], None]) -> Iterator[None]:
    """Show the steps of this thread's operations in the block."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def step(text: str) -> None:
    """Report the step that begins, if anybody listens."""
    if (show := _show.get()) is not None:
        show(text)


def counted(text: str, items: _Collection[T_co]) -> Iterator[T_co]:
    """Iterate over items, and report how many are done."""
    for done, item in enumerate(items):
        step(f"{text}, {done:,} of {len(items):,} done")
        yield item
