"""Processes that use a queue by another version of the package, as the history has it."""

from __future__ import annotations

import multiprocessing
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ROOT", "Version", "running", "version_of"]

ROOT = Path(__file__).parents[2]
SPAWN = multiprocessing.get_context("spawn")


class Calls:
    """What a process does with one queue, by the package that it finds."""

    def __init__(self, folder: Path, path: Path) -> None:
        import spark_mq

        assert Path(spark_mq.__file__).parents[1] == folder, spark_mq.__file__
        self.package, self.path = spark_mq, path
        self.held: dict[str, tuple[Any, int]] = {}

    def _queue(self) -> Any:
        return self.package.Queue.open(self.path)

    def create(self, **settings: Any) -> None:
        self.package.Queue.create(self.path, **settings)

    def publish(self, values: list[str]) -> None:
        self._queue().publish(values)

    def lease(self, count: int) -> list[str]:
        taken = self._queue().group().lease("w", max_messages=count, visibility_timeout="10m")
        messages = taken.messages if taken else []
        self.held |= {message.text: (taken, message.sequence) for message in messages}
        return [message.text for message in messages]

    def settle(self, verb: str, value: str, **options: Any) -> None:
        taken, sequence = self.held.pop(value)
        getattr(taken, verb)([sequence], **options)

    def drain(self, count: int) -> list[str]:
        values, group = [], self._queue().group()
        while taken := group.lease("w", max_messages=count, wait="1s"):
            values += [message.text for message in taken.messages]
            taken.extend("5m")
            taken.ack()
        return values

    def sweep(self) -> None:
        self._queue().sweep()

    def redrive(self) -> int:
        return int(self._queue().redrive().messages)

    def stats(self) -> dict[str, Any]:
        found = self._queue().group().stats()
        names = "ready", "delayed", "leased", "dead", "acked", "dead_lettered", "nacked", "rejected"
        return {name: getattr(found, name) for name in names}


class Version(BaseManager):
    """A process with one version of the package."""


Version.register("calls", Calls)


def version_of(commit: str, folder: Path) -> Path:
    """Return a folder with the package as of a commit. Skip without the history."""
    archive = folder / "package.tar"
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "-o", str(archive), commit, "spark_mq"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"a clone without its history has no {commit}: {made.stderr.strip()}")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder


@contextmanager
def running(*folders: Path, on: Path) -> Iterator[list[Any]]:
    """Run a process for each folder with a package. Yield what makes its :class:`Calls`."""
    versions = list[Any]()
    with ExitStack() as stack:
        for folder in folders:
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(folder)  # where the process looks first
                process = stack.enter_context(Version(ctx=SPAWN))
            versions.append(process.calls(folder, on))
        yield versions
