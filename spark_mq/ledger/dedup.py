"""Remember the ids of recent publishes to find duplicates.

Each commit with ids has a block of them. It also takes over the blocks before it that are no
larger, without expired ids. So there are few blocks, and each id is written a few times only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["NO_IDS", "BlockRef", "IdBlock", "IdWindow"]


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
