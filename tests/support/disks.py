"""Disks that are full, or read-only, when a test says so: a real one of a few megabytes where one
may be mounted.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
NOBODY = 65534


class TmpFs:
    """A file system in memory. Needs the right to mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path],
            capture_output=True,
            check=False,
        ).returncode:
            raise PermissionError(f"no file system may be mounted at {path}")

    @contextmanager
    def full(self, pages: int) -> Iterator[None]:
        filler = self.path / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                written = 0
                try:
                    while True:
                        written += file.write(bytes(PAGE))
                except OSError:
                    file.truncate(max(0, written // PAGE - pages) * PAGE)
            yield
        finally:
            filler.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        # Of a bind mount: the file system itself has files open that delta-rs left behind when it
        # could not write.
        subprocess.run(["mount", "--bind", self.path, self.path], check=True, capture_output=True)
        try:
            subprocess.run(
                ["mount", "-o", "remount,bind,ro", self.path], check=True, capture_output=True
            )
            yield
        finally:
            subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)


class SizeLimit:
    """The limit that the system puts on the size of each file that this process writes: anybody may
    lower it.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="spark_mq-disk-"))
        self.path.chmod(0o755)

    @contextmanager
    def full(self, pages: int) -> Iterator[None]:
        # A quarter of a page at a time, or one page would do for every file of these tests.
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (pages * PAGE // 4, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @contextmanager
    def read_only(self) -> Iterator[None]:
        with self._mode(0o555):
            yield

    @contextmanager
    def unreadable(self) -> Iterator[None]:
        """A context in which nothing can be read."""
        with self._mode(0o000):
            yield

    @contextmanager
    def _mode(self, mode: int) -> Iterator[None]:
        user = os.geteuid()
        folders = [self.path, *(path for path in self.path.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(mode)
        try:
            if user == 0:  # root may do everything everywhere
                os.seteuid(NOBODY)
            yield
        finally:
            os.seteuid(user)
            for folder in folders:
                folder.chmod(0o755)

    def close(self) -> None:
        shutil.rmtree(self.path)


def disk_at(path: Path) -> TmpFs | SizeLimit:
    """The best that there is here."""
    try:
        return TmpFs(path)
    except (PermissionError, FileNotFoundError):
        return SizeLimit()
