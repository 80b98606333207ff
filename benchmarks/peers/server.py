"""A peer's server: started in a folder of its own, stopped and removed at the end, also after an
error.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.base import Missing

READY = "ready to accept connections"
"""What both PostgreSQL and Valkey print."""
PATIENCE = 60.0
"""Seconds that a server may take to start, or to stop."""


@contextlib.contextmanager
def server_folder(owner: str | None = None) -> Iterator[Path]:
    """A new folder that `owner` (a user's name) may use.

    Not below the benchmark's own: that is for its user alone, and sockets need short names.
    """
    with tempfile.TemporaryDirectory(prefix="peer-") as name:
        if owner:
            shutil.chown(name, owner)
        yield Path(name)


def user_for_postgres() -> str | None:
    """Return another user if we are root, as PostgreSQL wants, else None. Raise Missing."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Missing("PostgreSQL does not run as root, and there is no user postgres or nobody")


def as_user(user: str | None) -> dict[str, object]:
    """Arguments of a Popen that runs as `user`, and that a Ctrl-C in the terminal does not reach:
    we stop it ourselves.
    """
    entry = pwd.getpwnam(user) if user else None
    return {"start_new_session": True} | (
        {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []} if entry else {}
    )


def accepts(port: int, process: subprocess.Popen[str]) -> bool:
    """Whether a server accepts connections on a port of this machine before it ends or time is
    up.
    """
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def running(
    command: Sequence[object],
    folder: Path,
    stop: signal.Signals,
    user: str | None = None,
    port: int | None = None,
) -> Iterator[None]:
    """The server of `command`, from when it is ready until the block ends.

    Raises Missing with its last words if it does not start.

    With a `port` it is ready once that accepts connections.
    """
    said: deque[str] = deque(maxlen=20)
    process = subprocess.Popen(
        [str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **as_user(user),
    )  # type: ignore[call-overload]  # fmt: skip
    ready = threading.Event()

    def listen() -> None:
        for line in process.stdout:
            said.append(line.strip())
            if READY in line.lower():
                ready.set()
        ready.set()  # it has ended

    listener = threading.Thread(target=listen, daemon=True)
    try:
        listener.start()
        if port is not None:
            up = accepts(port, process)
        else:
            up = ready.wait(PATIENCE) and any(READY in line.lower() for line in said)
        if not up or process.poll() is not None:
            raise Missing(
                f"{Path(str(command[0])).name} does not start: "
                f"{' / '.join(list(said)[-3:]) or 'it says nothing'}"
            )
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        listener.join()
