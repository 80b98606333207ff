"""Keep a small file for each running worker of a group, which shows it while it is idle.

The files lie beside the ledgers, and no operation depends on them. So anybody may delete them.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from functools import cache
from heapq import nlargest
from importlib.metadata import distributions
from operator import attrgetter
from typing import Annotated, Final

import msgspec

from spark_mq.delta.actions import LOG_FOLDER, parse_foreign
from spark_mq.delta.object_store import ObjectStore, is_data_path
from spark_mq.delta.store_errors import STORE_ERRORS, wrap_store_errors
from spark_mq.util.clock import EARLIEST, LATEST
from spark_mq.util.show import printable

_FOLDER: Final = "_workers"  # Delta's VACUUM leaves folders with an underscore alone.
OLD_SECONDS: Final = 86_400.0  # since the last write of a worker that was killed
MAX_READ: Final = 1_000  # files of one group, the newest
_MAX_BYTES: Final = 4_096
_MISSED: Final = 2  # a worker is gone after so many intervals without a write
_Number = Annotated[int, msgspec.Meta(ge=EARLIEST, le=LATEST)]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker says of itself in a group. Times are in microseconds since 1970."""

    worker_id: str
    host: str
    process_id: _Number
    version: str  # of spark_mq
    started_at: _Number
    seen_at: _Number
    interval: _Number  # microseconds between two writes
    state: str  # "busy" if a handler had messages, else "idle"
    settled: _Number  # messages that the worker has acked or rejected, in all of its groups

    @classmethod
    def of_process(
        cls, name: str, *, began: int, now: int, interval: int, state: str, settled: int = 0
    ) -> Heartbeat:
        """Return what a worker of this process says of itself."""
        host = printable(socket.gethostname())
        return cls(name, host, os.getpid(), _version(), began, now, interval, state, settled)

    def is_gone(self, now: int) -> bool:
        """Return whether the worker has missed so many writes that it probably died."""
        return now - self.seen_at > _MISSED * self.interval

    @classmethod
    def decode(cls, data: bytes) -> Heartbeat | None:
        try:
            return msgspec.convert(parse_foreign(data.decode()), cls)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return None


@cache
def _version() -> str:
    """Return the version of the package, or "" if it runs from its source."""
    return next((found.version for found in distributions(name="spark_mq")), "")


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
