"""Run a server on this machine as a process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.handles import until

__all__ = ["free_port", "listens", "server"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def server(
    command: Sequence[object], port: int | None, log: Path = Path(os.devnull), **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends, which begins once it listens at its port, if it has one.

    Raises AssertionError with what it said if it ends before.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command], env={**os.environ, **env},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or port is None or listens(port), seconds=240)
        assert process.poll() is None, f"{command[0]} has ended: {log.read_text()[-3_000:]}"
        yield process
    finally:
        process.kill()
        process.wait()
