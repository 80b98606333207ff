"""Keep the ids of recent publishes in small files beside the messages, to find duplicates.

Each commit with ids has a block of them, and names it by the number of a txn. So two commits with
ids conflict, and the second one is computed again. That makes the check and the publish one commit.
The file of a block names the blocks before it. A block also takes over those of them that are no
larger, without expired ids. So there are few blocks, and each id is written a few times only.

A block is written before its commit, whose version is not known yet. So its own ids have their rows
only. A second txn has the version, and the blocks after it write it down.
"""

from __future__ import annotations

import json
import secrets
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

from spark_mq.delta.backend import FileInfos
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import ORDINAL_BITS, sequence
from spark_mq.ledger.walk import AskHeld, Held

# The txn of each commit with ids. Its number is the name of the newest block.
DEDUP_APP: Final = "spark_mq.dedup"
# The txn whose number is the version of that commit.
DEDUP_VERSION_APP: Final = "spark_mq.dedup_version"
ID_BYTES: Final = 16  # of the hash of an id
_FOLDER: Final = "_dedup"  # Delta's VACUUM leaves folders with an underscore alone.
_FORMAT: Final = 2
# A block of so many ids leaves out those that no message holds any longer. That needs a look at the
# ledgers. So one publish in so many has it.
ASK_IDS: Final = 256
_ORDINALS: Final = (1 << ORDINAL_BITS) - 1


class Published(NamedTuple):
    """Where and when an id was published."""

    at: int  # in microseconds since 1970
    sequence: int  # of version 0 until the version of its commit is known


class Head(NamedTuple):
    """The newest block, and the version of the commit that names it."""

    name: int
    version: int


@dataclass(frozen=True, slots=True)
class BlockRef:
    """The place and the age of a block."""

    name: int
    count: int
    newest: int  # when its latest id was published, in microseconds since 1970
    last: int  # the highest sequence of its ids, which is of its commit

    @property
    def version(self) -> int:
        """Return the version of its commit, or 0 until that has landed."""
        return self.last >> ORDINAL_BITS


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The ids that one commit has written down."""

    ref: BlockRef
    ids: Mapping[bytes, Published]

    @classmethod
    def of(cls, name: int, ids: Mapping[bytes, Published], version: int = 0) -> IdBlock:
        newest = max((place.at for place in ids.values()), default=0)
        last = max((place.sequence for place in ids.values()), default=sequence(version, 0))
        return cls(BlockRef(name, len(ids), newest, last), ids)

    def landed(self, version: int) -> IdBlock:
        own = sequence(version, 0)
        ids = {
            hashed: place
            if place.sequence > _ORDINALS
            else Published(place.at, own + place.sequence)
            for hashed, place in self.ids.items()
        }
        return IdBlock.of(self.ref.name, ids, version)


@dataclass(frozen=True, slots=True)
class IdWindow:
    """The blocks of the last commit with ids, the newest first."""

    blocks: tuple[IdBlock, ...] = ()

    def duplicates(
        self, ids: Sequence[bytes | None], since: int, ask: AskHeld | None = None
    ) -> dict[int, int]:
        """Return the positions of ids that come again, or count still.

        An id counts if it was published after `since`, or if its message holds it by `ask`. With
        each stands the sequence of the message that it met. For one of the same publish that is not
        known yet, so ``~position`` stands for it.
        """
        known = self._counting(ids, since, ask)
        duplicates: dict[int, int] = {}
        seen: dict[bytes, int] = {}
        for at, hashed in enumerate(ids):
            if hashed is None:
                continue
            if hashed not in seen:
                seen[hashed] = known.get(hashed, ~at)
            if seen[hashed] != ~at:
                duplicates[at] = seen[hashed]
        return duplicates

    def replaced(
        self, ids: Sequence[bytes | None], since: int, ask: AskHeld | None = None
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the positions of ids that come again later, and of those that count still.

        The first are duplicates as :meth:`duplicates` returns them. Each of the others, the last of
        its id, replaces the message with the sequence that stands with it.
        """
        last = {hashed: at for at, hashed in enumerate(ids) if hashed is not None}
        repeated = {
            at: ~last[hashed]
            for at, hashed in enumerate(ids)
            if hashed is not None and last[hashed] != at
        }
        known = self._counting(ids, since, ask)
        return repeated, {last[hashed]: met for hashed, met in known.items()}

    def _counting(
        self, ids: Sequence[bytes | None], since: int, ask: AskHeld | None
    ) -> dict[bytes, int]:
        """Return the ids that count, each with the sequence of its latest message."""
        known = {
            hashed: met for hashed in ids if hashed is not None and (met := self._find(hashed))
        }
        expired = {met.sequence for met in known.values() if met.at <= since}
        held = ask(expired).sequences if ask is not None and expired else set[int]()
        return {
            hashed: met.sequence
            for hashed, met in known.items()
            if met.at > since or met.sequence in held
        }

    def latest(self, ids: Sequence[bytes | None]) -> dict[int, int]:
        """Return the latest sequence of each known id by position, even of expired ones."""
        places = {at: self._find(hashed) for at, hashed in enumerate(ids) if hashed is not None}
        return {at: place.sequence for at, place in places.items() if place is not None}

    def _find(self, hashed: bytes) -> Published | None:
        # The newest block knows the latest publish.
        return next((block.ids[hashed] for block in self.blocks if hashed in block.ids), None)

    def with_ids(
        self,
        name: int,
        fresh: Mapping[bytes, int],
        now: int,
        since: int,
        ask: AskHeld | None = None,
    ) -> IdWindow:
        """Return the window with a new block, without blocks that end at `since` or before.

        `fresh` has the row of each id in the commit. With `ask`, what has ended stays until a block
        is large enough to ask which messages hold their id.
        """
        own = {hashed: Published(now, row) for hashed, row in fresh.items()}
        older = [block for block in self.blocks if ask is not None or block.ref.newest > since]
        while older and older[0].ref.count <= len(own):
            taken = older.pop(0).ids
            if ask is None:
                taken = {hashed: place for hashed, place in taken.items() if place.at > since}
            own = {**taken, **own}
        if ask is not None and len(own) >= ASK_IDS:
            known = {place.sequence for place in own.values() if place.at <= since}
            expired = {hashed for hashed in known if hashed > _ORDINALS}
            held = ask(expired) if expired else Held(-1, expired)
            ended = expired - held.sequences
            own = {hashed: place for hashed, place in own.items() if place.sequence not in ended}
            older = [b for b in older if b.ref.newest > since or b.ref.last > held.up_to]
        return IdWindow((IdBlock.of(name, own), *older))

    def landed(self, version: int) -> IdWindow:
        return IdWindow((self.blocks[0].landed(version), *self.blocks[1:]))


NO_IDS: Final = IdWindow()


def block_path(name: int) -> str:
    return f"{_FOLDER}/{name:016x}.ids"


def head_of(txns: Mapping[str, int]) -> Head | None:
    """Return the newest block as the txns of ``messages/`` name it, or None without one."""
    name = txns.get(DEDUP_APP)
    return None if name is None else Head(name, txns[DEDUP_VERSION_APP])


def new_name() -> int:
    """Return a random number of 62 bits to name a block."""
    return secrets.randbits(62) | 1 << 61


class IdFiles:
    """The files of the ids of one queue. Thread-safe."""

    def __init__(self, files: ObjectStore) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._blocks: dict[int, IdBlock] = {}
        self._head: Head | None = None

    def load(self, head: Head | None) -> IdWindow:
        """Return the newest block's window, or none. Raise FileNotFoundError or CorruptLog."""
        if head is None:
            return NO_IDS
        with self._lock:
            known = self._blocks
            if self._head != head:
                block, older = self._read(*head)
                loaded = [
                    known.get(ref.name) or self._read(ref.name, ref.version)[0] for ref in older
                ]
                known = {each.ref.name: each for each in (block, *loaded)}
                self._blocks, self._head = known, head
            return IdWindow(tuple(known.values()))

    def write(self, window: IdWindow) -> str:
        """Write the newest block of a window. Its commit syncs it. Return its path."""
        path = block_path(window.blocks[0].ref.name)
        self._files.write(path, _encoded(window), sync=False)
        return path

    def landed(self, window: IdWindow, version: int) -> None:
        window = window.landed(version)
        with self._lock:
            self._blocks = {block.ref.name: block for block in window.blocks}
            self._head = Head(window.blocks[0].ref.name, version)

    def delete(self, window: IdWindow) -> None:
        self._files.delete(block_path(window.blocks[0].ref.name))

    def listed(self) -> FileInfos:
        return self._files.list(_FOLDER)

    def named(self, head: Head | None) -> set[str]:
        """Return the paths of the blocks that the newest one names, with its own."""
        return {block_path(block.ref.name) for block in self.load(head).blocks}

    def _read(self, name: int, version: int) -> tuple[IdBlock, list[BlockRef]]:
        path = block_path(name)
        data = self._files.read(path)
        if not data:  # Its owner has given the ids up.
            return IdBlock.of(name, {}, version), []
        try:
            block, older = _decoded(name, data)
            return block.landed(version), older
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLog(
                f"{self._files.root}/{path} cannot be read: {error}. Restore it from a backup. "
                f"Without one, put an empty file in its place: its dedup ids are then forgotten",
                path=self._files.root,
                version=None,
            ) from error


def _encoded(window: IdWindow) -> bytes:
    block, *older = window.blocks
    listed = sorted(
        (*_commit_of(place), place.sequence, hashed) for hashed, place in block.ids.items()
    )
    rows = struct.pack(f"<{len(listed)}I", *(place & _ORDINALS for _, _, place, _ in listed))
    body = b"".join(hashed for *_, hashed in listed) + rows
    commits = Counter(map(_commit_of, block.ids.values()))
    header = {
        "format": _FORMAT,
        "older": [astuple(block.ref) for block in older],
        "commits": [(*commit, count) for commit, count in sorted(commits.items())],
        "crc": zlib.crc32(body),
    }
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body


def _commit_of(place: Published) -> tuple[int, int]:
    return place.sequence >> ORDINAL_BITS, place.at


def _decoded(name: int, data: bytes) -> tuple[IdBlock, list[BlockRef]]:
    start = data.index(b"\n") + 1
    header: Mapping[str, Any] = json.loads(data[:start])
    body = data[start:]
    if header["format"] != _FORMAT:
        raise ValueError(f"format {header['format']!r}, not {_FORMAT}")
    if zlib.crc32(body) != header["crc"]:
        raise ValueError("its bytes have changed")
    total = sum(count for _, _, count in header["commits"])
    rows = struct.unpack(f"<{total}I", body[total * ID_BYTES :])
    ids: dict[bytes, Published] = {}
    first = 0
    for version, time, count in header["commits"]:
        for at in range(first, first + count):
            hashed = body[at * ID_BYTES : (at + 1) * ID_BYTES]
            ids[hashed] = Published(time, sequence(version, rows[at]))
        first += count
    return IdBlock.of(name, ids), [BlockRef(*ref) for ref in header["older"]]
