"""Waking those who wait for messages: at once for what happens in this process, and at the right moment for what time alone changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from weakref import WeakSet, WeakValueDictionary

import pyarrow.compute as pc

from spark_mq.index import CommitIndex
from spark_mq.ranges import LEASED, UNREAD, WAITING, Ledger, Range
from spark_mq.settings import GroupSettings
from spark_mq.timing import sort_out

__all__ = ["Bell", "bell_at", "listening", "next_due"]


class Bell:
    """Rung by whoever has changed something; sets the events of all who listen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: WeakSet[threading.Event] = WeakSet()

    def ring(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for event in listeners:
            event.set()

    def listen(self, event: threading.Event) -> None:
        with self._lock:
            self._listeners.add(event)

    def leave(self, event: threading.Event) -> None:
        with self._lock:
            self._listeners.discard(event)


_bells: WeakValueDictionary[str, Bell] = WeakValueDictionary()
_lock = threading.Lock()


def bell_at(path: str) -> Bell:
    """The bell of all handles on the table at a path in this process."""
    with _lock:
        bell = _bells.get(path)
        if bell is None:
            bell = _bells[path] = Bell()
        return bell


@contextlib.contextmanager
def listening(*bells: Bell) -> Iterator[threading.Event]:
    """An event that any of some bells sets."""
    event = threading.Event()
    for bell in bells:
        bell.listen(event)
    try:
        yield event
    finally:
        for bell in bells:
            bell.leave(event)


def next_due(ledger: Ledger, index: CommitIndex, rules: GroupSettings, now: int) -> int | None:
    """When time alone may next make something due: a lease runs out, a delay ends. Microseconds; None if nothing is on its way."""
    deadlines = ledger.ranges.filter(ledger.is_state(LEASED))["expires_at"].cast("int64")
    delays = ledger.ranges.filter(ledger.is_state(WAITING))["available_at"].cast("int64")
    ends = [pc.min(delays.filter(pc.greater(delays, now))).as_py()]
    if len(deadlines):
        ends.append(pc.min(deadlines).as_py() + rules.clock_skew + 1)
    if index.timed_after(ledger.frontier):
        first = index.at_or_after(ledger.frontier + 1)
        if first is not None:
            unread = Range(first, index.tail, UNREAD, index.count(first, index.tail))
            ends += [r.available_at for r in sort_out(unread, index, now, now).later]
    return min((end for end in ends if end is not None), default=None)
