"""Report the steps of a long operation, and the messages that it has finished."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from spark_mq.util.show import show_number

T = TypeVar("T")


class Progress:
    """Hears of an operation, from any of its threads. This one ignores it."""

    def step(self, text: str) -> None:
        """Note the step that begins."""

    def expect(self, messages: int) -> None:
        """Note how many messages there are in all."""

    def finish(self, messages: int, share: float | None = None) -> None:
        """Note messages that are finished, and which share of all is done if that is known."""

    def fail(self, messages: int, error: str, sequence: int | None, retry_at: int | None) -> None:
        """Note messages that failed with one error, and the first retry in microseconds, if any.

        The sequence is that of a message that failed alone.
        """


_progress: Final[ContextVar[Progress]] = ContextVar("spark_mq_progress", default=Progress())  # noqa: B039


def progress() -> Progress:
    """Return what hears of the operations of this thread. A thread of a pool has another one."""
    return _progress.get()


@contextmanager
def listening(to: Progress) -> Iterator[None]:
    token = _progress.set(to)
    try:
        yield
    finally:
        _progress.reset(token)


def step(text: str) -> None:
    progress().step(text)


def counted(text: str, items: Collection[T]) -> Iterator[T]:
    """Iterate over items, and report how many are done."""
    for done, item in enumerate(items):
        step(f"{text}, {show_number(done)} of {show_number(len(items))} done")
        yield item
