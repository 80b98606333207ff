"""Keep the ids of recent publishes in small files beside the messages, to find duplicates.

Each commit with ids has a block of them, and names it by the number of a txn. So two commits with
ids conflict, and the second one is computed again. That makes the check and the publish one commit.
The file of a block names the blocks before it. A block also takes over those of them that are no
larger, without expired ids. So there are few blocks, and each id is written a few times only.
"""

from __future__ import annotations

import json
import secrets
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_mq.delta.file_info import FileInfos
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog

__all__ = [
    "DEDUP_APP",
    "NO_IDS",
    "BlockRef",
    "IdBlock",
    "IdFiles",
    "IdWindow",
    "block_path",
    "new_name",
]

# The txn of each commit with ids. Its number is the name of the newest block.
DEDUP_APP: Final = "spark_mq.dedup"
ID_BYTES: Final = 16  # of the hash of an id
_FOLDER: Final = "_dedup"  # Delta's VACUUM leaves folders with an underscore alone.
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class BlockRef:
    """The place and the age of a block."""

    name: int
    count: int
    newest: int  # when its latest id was published, in microseconds since 1970


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The ids that one commit has written down."""

    ref: BlockRef
    ids: Mapping[bytes, int]  # when each id was published, in microseconds since 1970

    @classmethod
    def of(cls, name: int, ids: Mapping[bytes, int]) -> IdBlock:
        return cls(BlockRef(name, len(ids), max(ids.values(), default=0)), ids)


@dataclass(frozen=True, slots=True)
class IdWindow:
    """The blocks of the last commit with ids, the newest first."""

    blocks: tuple[IdBlock, ...] = ()

    def duplicates(self, ids: Sequence[bytes | None], since: int) -> tuple[int, ...]:
        """Return the positions of ids that come again, or were published after `since`."""
        found: list[int] = []
        seen: set[bytes] = set()
        for at, one in enumerate(ids):
            if one is None:
                continue
            if one in seen or self._has(one, since):
                found.append(at)
            seen.add(one)
        return tuple(found)

    def _has(self, one: bytes, since: int) -> bool:
        for block in self.blocks:
            published = block.ids.get(one)
            if published is not None:
                return published > since  # The newest block knows the latest time.
        return False

    def with_ids(self, name: int, fresh: Iterable[bytes], now: int, since: int) -> IdWindow:
        """Return the window with a new block, without blocks that end at `since` or before."""
        own = dict.fromkeys(fresh, now)
        older = [block for block in self.blocks if block.ref.newest > since]
        while older and older[0].ref.count <= len(own):
            taken = older.pop(0).ids
            own = {one: at for one, at in taken.items() if at > since} | own
        return IdWindow((IdBlock.of(name, own), *older))


NO_IDS: Final = IdWindow()


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
