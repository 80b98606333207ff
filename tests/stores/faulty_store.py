"""A proxy in front of a store that answers slowly, with errors, or not at all, before or
after the store has done what was asked. It counts the requests.

A process of its own: some calls of libraries hold the interpreter's lock while they wait for an
answer.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import pytest
from support.relays import Relay, running
from support.stores import RemoteStore

__all__ = ["AFTER", "BEFORE", "CONFLICT", "REFUSED", "RESET", "SLOW", "FaultyStore", "proxy"]

BEFORE: Final = "500 before"
AFTER: Final = "500 after"
RESET: Final = "reset after"
SLOW: Final = "slow"
REFUSED: Final = "403 before"
CONFLICT: Final = "409 before"

CONTROL: Final = "/__faults"


class FaultyStore:
    """The proxy, as tests have it.

    ``url`` and ``options`` take the place of the real ones.
    """

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url, self.options = url, options

    def once(self, fault: str, method: str, part: str) -> None:
        """The next request with this method and `part` in its path meets the fault.

        All others pass.
        """
        self._plan([fault], method, part, times=1)

    def always(self, fault: str, method: str, part: str) -> None:
        """Each request with this method and `part` in its path meets the fault."""
        self._plan([fault], method, part)

    def often(self, chance: float, seed: int) -> None:
        """Each request meets one of the faults with this chance."""
        self._plan([BEFORE, AFTER, RESET], chance=chance, seed=seed)

    def met(self) -> int:
        """How many faults have been met."""
        return int(self._tell(None)["met"])

    def asked(self) -> list[tuple[str, str]]:
        """Return method and path of the requests since the last call.

        A listing's method is LIST, and that of a deletion of several files is DELETE.
        """
        return [(method, path) for method, path in self._tell(None)["asked"]]

    def _plan(self, faults: list[str], method: str = "", part: str = "", **more: float) -> None:
        self._tell({"faults": faults, "method": method, "part": part, **more})

    def _tell(self, plan: dict[str, Any] | None) -> Any:
        data = None if plan is None else json.dumps(plan).encode()
        with urllib.request.urlopen(
            urllib.request.Request(self.url + CONTROL, data=data), timeout=30
        ) as reply:
            return json.load(reply)


class Handler(Relay):
    lock = threading.Lock()
    plan: ClassVar[dict[str, Any]] = {"times": 0}
    chance = random.Random()
    asked: ClassVar[list[tuple[str, str]]] = []
    met = 0

    def serve(self, body: bytes) -> None:
        if self.path == CONTROL:
            self.control(json.loads(body) if body else None)
            return
        fault = self.next_fault()
        if fault == SLOW:
            time.sleep(0.5)  # the slowness itself
        if fault in (BEFORE, REFUSED, CONFLICT):
            self.answer(int(fault[:3]), b"", {})
            return
        reply = self.forward(body)
        if fault == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        else:
            self.answer(*((500, b"", {}) if fault == AFTER else reply))

    def control(self, plan: dict[str, Any] | None) -> None:
        """Take a plan, or tell what was asked since the last time."""
        asked: list[tuple[str, str]] = []
        with self.lock:
            if plan:
                Handler.plan, Handler.chance = plan, random.Random(plan.get("seed"))
            else:
                asked, Handler.asked = Handler.asked, []
        self.answer(200, json.dumps({"met": self.met, "asked": asked}).encode(), {})

    def next_fault(self) -> str | None:
        kind, path = self.kind(), unquote(self.path)
        with self.lock:
            self.asked.append((kind, self.path))
            plan, left = self.plan, self.plan.get("times", 1)
            if not left or plan["method"] not in ("", kind) or plan["part"] not in path:
                return None
            if self.chance.random() >= plan.get("chance", 1.0):
                return None
            if "times" in plan:
                plan["times"] -= 1
            Handler.met += 1
            return str(self.chance.choice(plan["faults"]))

    def kind(self) -> str:
        """Return what is asked, by one word in all stores."""
        query = urlsplit(self.path).query
        if "list-type=2" in query or "comp=list" in query:
            return "LIST"
        return "DELETE" if query == "delete" or "comp=batch" in query else self.command


@pytest.fixture
def proxy(remote: RemoteStore) -> Iterator[FaultyStore]:
    with running(Handler, remote.url) as url:
        yield FaultyStore(url, remote.options_at(url))
