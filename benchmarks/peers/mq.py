"""spark_mq, as its README uses it from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from peers.base import Leased, Opener, Peer
from spark_mq import Lease, Queue

SYNCED = "all: commits are synced"


class SparkMQ(Peer):
    """``rows``: whether messages are read as objects (``lease.messages``), or else as a table
    (``lease.table()``).
    """

    survives = SYNCED

    def __init__(self, path: Path, rows: bool = False, *, create: bool = True) -> None:
        self.queue = Queue.create(path, visibility_timeout="10m") if create else Queue.open(path)
        self.rows = rows
        self._group = self.queue.group("bench")

    def joined(self) -> Callable[[], Peer]:
        return partial(SparkMQ, Path(self.queue.path), self.rows, create=False)

    def fill(self, values: Sequence[bytes]) -> None:
        self.queue.publish(pa.table({"value": pa.array(values, pa.binary())}))

    def publish(self, value: bytes) -> None:
        self.queue.publish(value)

    def publish_all(self, values: Sequence[bytes], at_once: int) -> None:
        with self.queue.publisher(max_messages=at_once) as publisher:
            for value in values:
                publisher.publish(value)

    def lease(self, count: int) -> Leased | None:
        lease = self._group.lease("bench", max_messages=count)
        return Leased(lambda: self._values(lease), lease) if lease else None

    def _values(self, lease: Lease) -> list[bytes]:
        return (
            [message.value for message in lease.messages]
            if self.rows
            else lease.table()["value"].to_pylist()
        )

    def ack(self, leased: Leased) -> None:
        leased.token.ack()


def opener(rows: bool = False) -> Opener:
    """Opens a new queue."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Peer]:
        yield SparkMQ(folder / "queue", rows)

    return opened
