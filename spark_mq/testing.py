"""Test code that uses a queue, with a queue in memory.

A test moves the queue's clock by hand.

    >>> from spark_mq.testing import ManualClock, memory_queue
    >>> clock = ManualClock()
    >>> queue = memory_queue(clock, visibility_timeout="30s")
    >>> receipt = queue.publish(["a", "b"])
    >>> lease = queue.group().lease("worker-1", max_messages=10)
    >>> clock.advance("32s")  # the worker hangs
    >>> queue.group().stats().ready
    2

The queue in memory has the same Delta tables as one on a disk. Only their files are in memory. It
exists in one process, so it cannot be pickled, and a Spark stream cannot read it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.setting_options import CreateOptions
from spark_mq.ledger.settings import new_settings
from spark_mq.operations.create import create_queue_tables, open_context
from spark_mq.queue import Queue
from spark_mq.testing_batch import FakeBatchLease, run_batch
from spark_mq.util.clock import Clock, Duration, system_clock, to_datetime, to_micros
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import validate_duration

__all__ = ["FakeBatchLease", "ManualClock", "memory_queue", "next_due", "run_batch"]


class ManualClock:
    """A clock that only a test moves. Pass it as ``clock`` to a queue.

    It can be pickled. A copy is independent. The commits of a queue on a disk or in an object store
    carry the time of the machine, not that of a queue's clock.

    Parameters
    ----------
    start
        The first time, an aware datetime. Default: the present, in whole milliseconds, which are
        the unit of commit times.

    Examples
    --------
    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance("1h")
    >>> clock()
    datetime.datetime(2026, 1, 1, 1, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.notifier = Notifier()
        """Wakes callers that wait for messages when the clock is moved."""
        now = datetime.now(UTC)
        self._now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        if start is not None:
            self.set(start)

    def __call__(self) -> datetime:
        return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now.isoformat()})"

    def advance(self, duration: Duration) -> None:
        """Move the clock forward by seconds, a timedelta, or text such as "30s"."""
        self._now += timedelta(microseconds=validate_duration("duration", duration, zero=True))
        self.notifier.notify()

    def set(self, to: datetime) -> None:
        """Set the clock to an aware datetime, also back."""
        to_micros(to)  # refuses a naive one
        self._now = to.astimezone(UTC)
        self.notifier.notify()

    def __reduce__(self) -> Any:
        return ManualClock, (self._now,)


def memory_queue(
    clock: Clock | None = None,
    **settings: Unpack[CreateOptions],
) -> Queue:
    """Return a queue in memory, with a dead-letter queue in memory.

    Raises InvalidOption for an invalid setting.

    Parameters
    ----------
    clock
        Returns the time, also that of commits, so that retention follows it. Default: the system's.
    **settings
        As for :meth:`spark_mq.Queue.create`, without ``dead_letter_path``.

    Examples
    --------
    >>> queue = memory_queue(ManualClock(), max_delivery_attempts=1)
    >>> _ = queue.publish("poison")
    >>> _ = queue.group().lease("worker-1").nack()
    >>> queue.sweep().routed
    1
    >>> queue.dead_letters.group().lease("worker-1").messages[0].value
    b'poison'
    """
    if "dead_letter_path" in settings:
        raise InvalidOption(
            "a queue in memory has its own dead-letter queue in memory: leave dead_letter_path out",
            option="dead_letter_path",
            value=settings["dead_letter_path"],
        )
    files = MemoryFiles(clock or system_clock)
    path = f"{files.root}/memory"
    create_queue_tables(path, new_settings(settings), {}, exist_ok=False)
    return Queue(open_context(path, {}, clock))


def next_due(group: ConsumerGroup) -> datetime | None:
    """Return when time alone makes the next message of a group due, or None.

    It is the end of the first lease or delay (aware, UTC).
    """
    ledger = group._ledger
    index = ledger.messages.index()
    at = next_due_at(ledger.current(), index, ledger.settings(), ledger.now())
    return None if at is None else to_datetime(at)
