"""What the storage does under ``make fault``: permissions go and come back, the disk is full and is
freed, one table is put back.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from support.tables import messages_of

from spark_mq import Queue

from .actors import GROUP

TABLES = ("messages", "leases", "commits")
SECONDS = (1.5, 5.0)
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


def obey_permissions() -> None:
    """Take from root the right to read and write what it may not."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, rights):
        raise OSError(ctypes.get_errno(), "capget")
    rights[0] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    if libc.capset(header, rights):
        raise OSError(ctypes.get_errno(), "capset")


class Disk:
    """A folder on a disk of its own, if one may be mounted. Only such a disk is ever full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(path)]
        self.mounted = not subprocess.run(mount, capture_output=True, check=False).returncode

    def fill(self) -> None:
        for size in (2**20, 512):
            with suppress(OSError), (self.path / "filler").open("ab", buffering=0) as file:
                while file.write(bytes(size)):
                    pass

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)


class Outages:
    """Outages of the storage, one at a time, each for some seconds."""

    def __init__(self, disk: Disk, queue: Path) -> None:
        self._disk, self._queue = disk, queue
        self._end: Callable[[], None] | None = None
        self._until = 0.0

    @property
    def on(self) -> bool:
        return self._end is not None

    def begin(self, number: int) -> str:
        """Start one of the kinds. Returns its name."""
        self._until = time.monotonic() + random.uniform(*SECONDS)
        if number % 2 and self._disk.mounted:
            self._end = self._disk.free
            self._disk.fill()
            return "full disks"
        folders = [
            path for name in ("messages", "leases") for path in self._folders(self._queue / name)
        ]
        if number % 4:
            folders = [self._queue / random.choice(("messages", "leases"))]
        self._end = lambda: _chmod(reversed(folders), 0o755)
        _chmod(folders, 0o555 if number % 4 else 0o000)
        return "times without permission to write" if number % 4 else "times without permissions"

    def tick(self) -> None:
        if time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _folders(self, path: Path) -> list[Path]:
        return [*(one for one in path.rglob("*") if one.is_dir()), path]


def _chmod(folders: object, mode: int) -> None:
    for folder in folders:  # type: ignore[attr-defined]
        with suppress(FileNotFoundError):
            folder.chmod(mode)


def put_back(queue: Path, past: Path, table: str, folder: Path) -> list[str]:
    """Put one table of a copy of a queue back, recover, and return what is wrong then."""
    path = folder / f"with-old-{table}"
    shutil.copytree(queue, path)
    shutil.rmtree(path / table, ignore_errors=True)
    if (past / table).exists():
        shutil.copytree(past / table, path / table)
    expected = Queue.open(path).recover(dry_run=True)
    wrong = [] if expected.needed or table == "commits" else ["nobody noticed"]
    if (report := Queue.open(path).recover()) != expected:
        wrong.append(f"a dry run said {expected}, and then it was {report}")
    back = Queue.open(path)
    must = set(back.publish([f"after {n}" for n in range(50)]).sequences)
    if table == "leases":  # what the old ledgers do not know is delivered again
        known = messages_of(Queue.open(past)).index().last_sequence
        files = (file for file in messages_of(back).index().files if file.first > known)
        must |= {seq for file in files for seq in range(file.first, file.last + 1)}
    delivered = set[int]()
    while (lease := back.group(GROUP).lease("last", max_messages=1_000, wait="5s")) is not None:
        delivered |= {m.sequence for m in lease.messages}
        lease.ack()
    if must - delivered:
        wrong.append(f"{len(must - delivered)} of {len(must)} messages are lost")
    back.sweep()
    stats = back.group(GROUP).stats()
    if stats.unsettled - stats.delayed:
        wrong.append(f"not drained: {stats}")
    if (left := Queue.open(path).recover(dry_run=True)).needed:
        wrong.append(f"not recovered: {left}")
    return [f"{table} put back: {one}" for one in wrong]
