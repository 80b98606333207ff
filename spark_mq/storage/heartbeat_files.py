"""Keep a small file for each running worker of a group, which shows it while it is idle.

The files lie beside the ledgers, and no operation depends on them. So anybody may delete them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from heapq import nlargest
from operator import attrgetter
from typing import Final

from spark_mq.delta.actions import LOG_FOLDER, parse_foreign
from spark_mq.delta.object_store import ObjectStore, is_data_path
from spark_mq.delta.store_errors import STORE_ERRORS, wrap_store_errors
from spark_mq.util.clock import EARLIEST, LATEST

_FOLDER: Final = "_workers"  # Delta's VACUUM leaves folders with an underscore alone.
OLD_SECONDS: Final = 86_400.0  # since the last write of a worker that was killed
MAX_READ: Final = 1_000  # files of one group, the newest
_MAX_BYTES: Final = 4_096
_TEXTS: Final = ("worker_id", "host", "version", "state")  # the other values are numbers
_MISSED: Final = 2  # a worker is gone after so many intervals without a write


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker says of itself in a group. Times are in microseconds since 1970."""

    worker_id: str
    host: str
    process_id: int
    version: str  # of spark_mq
    started_at: int
    seen_at: int
    interval: int  # microseconds between two writes
    state: str  # "busy" if a handler had messages, else "idle"
    settled: int  # messages that the worker has acked or rejected, in all of its groups

    def is_gone(self, now: int) -> bool:
        """Return whether the worker has missed so many writes that it probably died."""
        return now - self.seen_at > _MISSED * self.interval

    @classmethod
    def decode(cls, data: bytes) -> Heartbeat | None:
        """Return what a file says, or None if it cannot be read."""
        try:
            stored = parse_foreign(data.decode())
            values = {field.name: stored[field.name] for field in fields(cls)}
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        numbers = [value for name, value in values.items() if name not in _TEXTS]
        right = all(isinstance(values[name], str) for name in _TEXTS) and all(
            type(number) is int and EARLIEST <= number <= LATEST for number in numbers
        )
        return cls(**values) if right else None


def heartbeat_path(group: str, name: str) -> str:
    return f"{_FOLDER}/{group}/{name}.json"


def write_heartbeat(files: ObjectStore, path: str, heartbeat: Heartbeat) -> None:
    """Write a worker's file, unless the queue is gone."""
    # A write would make the folders of a queue again that somebody has deleted.
    if files.is_local and next(iter(files.iterate(LOG_FOLDER)), None) is None:
        return
    files.write(path, json.dumps(asdict(heartbeat)).encode(), sync=False)


def read_heartbeats(files: ObjectStore, group: str) -> list[Heartbeat]:
    """Return what the workers of a group wrote last, without files that cannot be read."""
    with wrap_store_errors(files.root, f"reading the workers of group {group!r} in"):
        listed = [file for file in files.iterate(f"{_FOLDER}/{group}") if file.size <= _MAX_BYTES]
    newest = nlargest(MAX_READ, listed, key=attrgetter("modified"))
    paths = [file.path for file in newest if is_data_path(file.path)]

    def read(path: str) -> Heartbeat | None:
        try:
            return Heartbeat.decode(files.read(path))
        except STORE_ERRORS:
            return None  # its worker has ended since

    return [heartbeat for heartbeat in files.for_each(paths, read) if heartbeat is not None]


def delete_old_heartbeats(files: ObjectStore) -> int:
    """Delete the files of workers that were killed long ago. Return the number of files."""
    return files.delete_older(_FOLDER, files.now() - OLD_SECONDS)


def delete_heartbeats(files: ObjectStore, group: str) -> None:
    files.delete_older(f"{_FOLDER}/{group}", float("inf"))
