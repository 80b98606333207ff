"""What a peer is: something that holds messages, hands them out to one worker at a time, and
forgets them once acked.
"""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Missing(Exception):
    """A peer that this machine cannot have; the message says why."""


@dataclass(frozen=True)
class Leased:
    """Messages held by one worker.

    ``read`` gets their values; ``token`` is what :meth:`Peer.ack` wants.
    """

    read: Callable[[], Sequence[bytes]]
    token: Any


class Peer(ABC):
    """A queue as the benchmark uses it, with one worker.

    ``survives``: the reported work that a power cut leaves.
    """

    survives: str

    def joined(self) -> Callable[[], Peer]:
        """Return a call that opens the same queue in another process. It can be pickled."""
        raise NotImplementedError

    @abstractmethod
    def fill(self, values: Sequence[bytes]) -> None:
        """Takes in many messages in the quickest way; not measured."""

    @abstractmethod
    def publish(self, value: bytes) -> None:
        """One message; done when it returns."""

    @abstractmethod
    def publish_all(self, values: Sequence[bytes], at_once: int) -> None:
        """Messages that come one by one and are sent `at_once` together; done when it returns."""

    @abstractmethod
    def lease(self, count: int) -> Leased | None:
        """So many messages, or what there is, or None."""

    @abstractmethod
    def ack(self, leased: Leased) -> None:
        """Done with all of them."""


Opener = Callable[[Path], contextlib.AbstractContextManager[Peer]]


def read_all(values: Sequence[bytes]) -> int:
    """Touches every byte, and gives the sum of the checksums: what a consumer does, wherever the
    messages come from.
    """
    return sum(map(zlib.crc32, values))
