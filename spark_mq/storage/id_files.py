"""Keep the ids of recent publishes in small files beside the messages.

A commit with ids names its block by the number of a txn. So two commits with ids conflict, and the
second one is computed again. That makes the check and the publish one commit. The file of a block
names the blocks before it.
"""

from __future__ import annotations

import json
import secrets
import threading
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from spark_mq.delta.file_info import FileInfos
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog
from spark_mq.ledger.dedup import NO_IDS, BlockRef, IdBlock, IdWindow

__all__ = ["DEDUP_APP", "IdFiles", "block_path", "new_name"]

# The txn of each commit with ids. Its number is the name of the newest block.
DEDUP_APP: Final = "spark_mq.dedup"
ID_BYTES: Final = 16  # of the hash of an id
_FOLDER: Final = "_dedup"  # Delta's VACUUM leaves folders with an underscore alone.
_FORMAT: Final = 1


def block_path(name: int) -> str:
    """Return the path of a block's file, relative to ``messages/``."""
    return f"{_FOLDER}/{name:016x}.ids"


def new_name() -> int:
    """Return a random number of 62 bits to name a block."""
    return secrets.randbits(62) | 1 << 61


class IdFiles:
    """The files of the ids of one queue. Thread-safe."""

    def __init__(self, files: ObjectStore) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._blocks: dict[int, IdBlock] = {}
        self._head: int | None = None

    def load(self, head: int | None) -> IdWindow:
        """Return the newest block's window, or none. Raise FileNotFoundError or CorruptLog."""
        if head is None:
            return NO_IDS
        with self._lock:
            known = self._blocks
            if self._head != head:
                block, older = self._read(head)
                found = [known.get(ref.name) or self._read(ref.name)[0] for ref in older]
                known = {one.ref.name: one for one in (block, *found)}
                self._blocks, self._head = known, head
            return IdWindow(tuple(known.values()))

    def write(self, window: IdWindow) -> str:
        """Write the newest block of a window. Its commit syncs it. Return its path."""
        path = block_path(window.blocks[0].ref.name)
        self._files.write(path, _encoded(window), sync=False)
        return path

    def landed(self, window: IdWindow) -> None:
        """Keep the window of an own commit."""
        with self._lock:
            self._blocks = {block.ref.name: block for block in window.blocks}
            self._head = window.blocks[0].ref.name

    def delete(self, window: IdWindow) -> None:
        """Delete the newest block's file after its commit lost a race."""
        self._files.delete(block_path(window.blocks[0].ref.name))

    def listed(self) -> FileInfos:
        return self._files.list(_FOLDER)

    def named(self, head: int | None) -> set[str]:
        """Return the paths of the blocks that the newest one names, with its own."""
        return {block_path(block.ref.name) for block in self.load(head).blocks}

    def _read(self, name: int) -> tuple[IdBlock, list[BlockRef]]:
        path = block_path(name)
        data = self._files.read(path)
        if not data:  # Its owner has given the ids up.
            return IdBlock.of(name, {}), []
        try:
            return _decoded(name, data)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLog(
                f"{self._files.root}/{path} cannot be read: {error}. Restore it from a backup. "
                f"Without one, put an empty file in its place: its dedup ids are then forgotten",
                path=self._files.root,
                version=None,
            ) from error


def _encoded(window: IdWindow) -> bytes:
    block, *older = window.blocks
    by_time: list[bytes] = sorted(block.ids, key=lambda one: block.ids[one])
    ids = b"".join(by_time)
    header = {
        "format": _FORMAT,
        "older": [[one.ref.name, one.ref.count, one.ref.newest] for one in older],
        "times": sorted(Counter(block.ids.values()).items()),
        "crc": zlib.crc32(ids),
    }
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + ids


def _decoded(name: int, data: bytes) -> tuple[IdBlock, list[BlockRef]]:
    start = data.index(b"\n") + 1
    header: Mapping[str, Any] = json.loads(data[:start])
    ids = data[start:]
    if header["format"] != _FORMAT:
        raise ValueError(f"format {header['format']!r}, not {_FORMAT}")
    if zlib.crc32(ids) != header["crc"]:
        raise ValueError("its bytes have changed")
    found: dict[bytes, int] = {}
    at = 0
    for time, count in header["times"]:
        end = at + count * ID_BYTES
        found.update((ids[one : one + ID_BYTES], time) for one in range(at, end, ID_BYTES))
        at = end
    return IdBlock.of(name, found), [BlockRef(*ref) for ref in header["older"]]
