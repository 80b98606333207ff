"""Provide pytest fixtures for code that uses a queue. pytest loads them by itself.

The queue is in memory, and time moves only by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_mq.inspect import PeekedMessage
    from spark_mq.message import ReceivedMessage
    from spark_mq.queue import Queue
    from spark_mq.testing import ManualClock

__all__ = [
    "assert_published",
    "assert_settled",
    "drain",
    "mq_clock",
    "mq_queue",
    "mq_settings",
    "run_batch",
]

_LEFT = ("ready", "delayed", "leased", "blocked", "transferring")


@pytest.fixture
def mq_clock() -> ManualClock:
    """Return a clock that a test moves."""
    from spark_mq.testing import ManualClock

    return ManualClock()


@pytest.fixture
def mq_settings() -> Mapping[str, Any]:
    """Return the settings of ``mq_queue``. Override it to change the defaults."""
    return {}


@pytest.fixture
def mq_queue(mq_clock: ManualClock, mq_settings: Mapping[str, Any]) -> Queue:
    """Return a queue in memory that follows ``mq_clock``."""
    from spark_mq.testing import memory_queue

    return memory_queue(mq_clock, **mq_settings)


@pytest.fixture
def drain(mq_queue: Queue, mq_clock: ManualClock) -> Callable[..., list[ReceivedMessage]]:
    """Return a function that handles all messages and returns them.

    ``drain(handler=None, group="default", wait=True, **options)``: without a handler it acks all
    messages. With `wait` it moves the clock to the times of delayed messages and retries. The
    options are those of :meth:`spark_mq.ConsumerGroup.work`, such as ``threads=4``, and a
    handler may be ``async`` as there. An error of the handler is raised here, unless `on_error`
    says what becomes of it.
    """

    def run(
        handler: Callable[[Any], Any] | None = None,
        group: str = "default",
        *,
        wait: bool = True,
        **options: Any,
    ) -> list[ReceivedMessage]:
        from spark_mq.testing import drain_group

        return drain_group(mq_queue.group(group), mq_clock if wait else None, handler, **options)

    return run


@pytest.fixture
def assert_published(mq_queue: Queue) -> Callable[..., list[Any]]:
    """Return a function that asserts which messages were published, and returns them.

    ``assert_published(value=None, key=None, headers=None, message_id=None, count=None,
    queue=None)``: messages that match all arguments. `headers` need only contain the given ones.
    A `value` that is a dict or a list is compared as JSON. Without `count` one match is enough.
    Pass ``queue=mq_queue.dead_letters`` for dead letters.
    """

    def check(
        value: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        count: int | None = None,
        queue: Queue | None = None,
    ) -> list[Any]:
        there = queue or mq_queue
        matching = [
            message
            for message in there.peek(2**31 - 1, key=key, message_id=message_id)
            if _has_value(message, value) and dict(headers or {}).items() <= message.headers.items()
        ]
        right = bool(matching) if count is None else len(matching) == count
        if not right:
            expected = "one at least" if count is None else str(count)
            shown = "\n".join(map(_shown, there.peek(10))) or "nothing"
            raise AssertionError(
                f"{len(matching)} messages match, not {expected}; published:\n{shown}"
            )
        return matching

    return check


def _has_value(message: PeekedMessage, wanted: Any) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, dict | list):
        with suppress(ValueError):
            return bool(json.loads(message.value or b"") == wanted)
        return False
    return message.value == (wanted.encode() if isinstance(wanted, str) else wanted)


def _shown(message: PeekedMessage) -> str:
    named = {"key": message.key, "headers": message.headers, "message_id": message.message_id}
    return f"{message.value!r} " + " ".join(
        f"{name}={part!r}" for name, part in named.items() if part
    )


@pytest.fixture
def assert_settled(mq_queue: Queue) -> Callable[..., Any]:
    """Return a function that asserts that a group has settled all messages.

    ``assert_settled(group="default", **counts)`` returns the group's :class:`~spark_mq.GroupStats`.
    It also asserts the given counts of them, such as ``acked=3``. Dead messages count as settled.
    """

    def check(group: str = "default", **counts: int) -> Any:
        own = mq_queue.group(group)
        stats = own._ledger.stats()  # also of a group that nobody has created
        left = {name: getattr(stats, name) for name in _LEFT if getattr(stats, name)}
        assert not left, f"group {group!r} has messages left: {left}"
        actual = {name: getattr(stats, name) for name in counts}
        assert actual == counts, f"group {group!r} has {actual}, not {counts}"
        return stats

    return check


@pytest.fixture
def run_batch(mq_queue: Queue) -> Callable[..., Any]:
    """Return a function that runs ``process(batch, lease)`` once on a batch of ``mq_queue``.

    ``run_batch(process, group="default", spark=None, ...)``: see
    :func:`spark_mq.testing.run_batch`.
    """

    def run(process: Callable[[Any, Any], Any], group: str = "default", **options: Any) -> Any:
        from spark_mq.testing import run_batch as run_once

        return run_once(process, mq_queue.group(group), **options)

    return run
