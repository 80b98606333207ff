"""A proxy in front of a store that answers slowly, with errors, or not at all, before or
after the store has done what was asked. It counts the requests.
"""

from __future__ import annotations

import math
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
from support.relays import Relay, serving
from support.stores import RemoteStore

__all__ = ["AFTER", "BEFORE", "CONFLICT", "REFUSED", "RESET", "SLOW", "FaultyStore", "proxy"]

BEFORE: Final = "500 before"
AFTER: Final = "500 after"
RESET: Final = "reset after"
SLOW: Final = "slow"
REFUSED: Final = "403 before"
CONFLICT: Final = "409 before"


class FaultyStore:
    """The proxy, as tests have it. ``options`` take the place of the real ones."""

    options: dict[str, str]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked, self._met = list[tuple[str, str]](), 0
        self._plan([], times=0)

    def once(self, fault: str, method: str, part: str) -> None:
        """The next request with this method and `part` in its path meets the fault.

        All others pass.
        """
        self._plan([fault], method, part, times=1)

    def always(self, fault: str, method: str, part: str) -> None:
        """Each request with this method and `part` in its path meets the fault."""
        self._plan([fault], method, part)

    def often(self, share: float, seed: int) -> None:
        """Each request meets one of the faults with this chance."""
        self._plan([BEFORE, AFTER, RESET], share=share, seed=seed)

    def met(self) -> int:
        """How many faults have been met."""
        return self._met

    def asked(self) -> list[tuple[str, str]]:
        """Return method and path of the requests since the last call.

        A listing's method is LIST, and that of a deletion of several files is DELETE.
        """
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def _plan(
        self, faults: list[str], method: str = "", part: str = "", *, times: float = math.inf,
        share: float = 1.0, seed: int | None = None,
    ) -> None:  # fmt: skip
        with self._lock:
            self._faults, self._method, self._part = faults, method, part
            self._left, self._share, self._chance = times, share, random.Random(seed)

    def serve(self, to: Relay, body: bytes) -> None:
        fault = self._next_fault(kind_of(to), to.path)
        if fault == SLOW:
            time.sleep(0.5)  # the slowness itself
        if fault in (BEFORE, REFUSED, CONFLICT):
            to.answer(int(fault[:3]), b"", {})
            return
        reply = to.forward(body)
        if fault == RESET:
            to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            to.close_connection = True
            to.connection.close()
        else:
            to.answer(*((500, b"", {}) if fault == AFTER else reply))

    def _next_fault(self, kind: str, path: str) -> str | None:
        with self._lock:
            self._asked.append((kind, path))
            wanted = self._method in ("", kind) and self._part in unquote(path)
            if not (self._left and wanted) or self._chance.random() >= self._share:
                return None
            self._left -= 1
            self._met += 1
            return self._chance.choice(self._faults)


def kind_of(request: Relay) -> str:
    """Return what is asked, by one word in all stores."""
    query = urlsplit(request.path).query
    if "list-type=2" in query or "comp=list" in query:
        return "LIST"
    return "DELETE" if query == "delete" or "comp=batch" in query else request.command


@pytest.fixture
def proxy(remote: RemoteStore) -> Iterator[FaultyStore]:
    store = FaultyStore()
    with serving(store.serve, remote.url) as url:
        store.options = remote.options_at(url)
        yield store
