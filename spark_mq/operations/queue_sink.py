"""Publish the results of leases to a queue, each lease's once.

It does for a queue what :mod:`spark_mq.storage.delta_sink` does for a Delta table. A writer is a
producer there, so ``messages/`` keeps its last number in the commit that publishes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from spark_mq.errors import InvalidOption, LeaseLost, NotAQueue
from spark_mq.ledger.sink_writes import SinkWrite
from spark_mq.operations.context import QueueContext
from spark_mq.operations.publish import publish_messages
from spark_mq.storage.publishes import fence_of, producer_txn

__all__ = ["QueueSink", "other_queue"]


class QueueSink:
    """A queue as the sink of a group. `names` is what the names of its producers begin with."""

    def __init__(self, queue: QueueContext, names: str) -> None:
        self._queue, self._names = queue, names

    @property
    def path(self) -> str:
        return self._queue.path

    @property
    def storage_options(self) -> Mapping[str, str]:
        return self._queue.storage_options

    def has_one_of(self, writes: Sequence[SinkWrite]) -> bool:
        """Return whether the queue has one of the earlier writes of a lease's messages.

        Those before it, or all, are fenced.
        """
        with self._unless_replaced():
            messages = self._queue.messages
            # In order, because each holder fenced the writes before its own, before it wrote.
            return any(messages.has_or_fence(self._txn(write), write.number) for write in writes)

    def append(self, rows: Any, write: SinkWrite, schema_mode: str | None = None) -> None:
        """Publish messages in the write of a lease. Raise LeaseLost if it was fenced."""
        self.check_schema_mode(schema_mode)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            rows = pa.table(rows)
        with self._unless_replaced():
            receipt = publish_messages(
                self._queue, rows, producer_id=self.producer_id(write),
                producer_sequence=write.number, on_duplicate="skip", deliver_at=None,
            )  # fmt: skip
        if receipt.duplicate:
            self.check_own(write)

    def check_schema_mode(self, schema_mode: str | None) -> None:
        """Raise InvalidOption if there is one."""
        if schema_mode is not None:
            raise InvalidOption(
                "schema_mode is for a sink that is a Delta table, and this one is a queue. Leave "
                "it out",
                option="schema_mode",
                value=schema_mode,
            )

    def check_own(self, write: SinkWrite) -> None:
        """Raise LeaseLost if another worker has fenced a write."""
        fenced = self._queue.messages.last_number(fence_of(self._txn(write)))
        if fenced is not None and fenced >= write.number:
            raise LeaseLost(
                f"the messages were not published to {self.path}: another worker has the lease's "
                "messages, and has made sure that only it can publish for them",
                lost=[],
            )

    @contextmanager
    def _unless_replaced(self) -> Iterator[None]:
        try:
            yield
        except NotAQueue as error:
            raise other_queue(self.path) from error

    def producer_id(self, write: SinkWrite) -> str:
        """Return the producer of a write, whose number is that of the write."""
        return f"{self._names}.{write.writer}"

    def _txn(self, write: SinkWrite) -> str:
        return producer_txn(self.producer_id(write))


def other_queue(path: str) -> InvalidOption:
    """Return the error for a queue that is not the one which the sink was."""
    return InvalidOption(
        f"sink={path!r} cannot be used: it is another queue than when it was set, and does not "
        "know what the old one had. Configure the group with the sink again, and all unsettled "
        "messages are written there",
        option="sink",
        value=path,
    )
