"""Processes that use a queue by another version of the package, as the history has it."""

from __future__ import annotations

import multiprocessing
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

    @property
    def queue(self) -> Any:
        return self.package.Queue.open(self.path)

    def create(self, **settings: Any) -> None:
        self.package.Queue.create(self.path, **settings)

    def publish(self, values: list[str]) -> None:
        self.queue.publish(values)

    def lease(self, count: int) -> list[str]:
        taken = self.queue.group().lease("w", max_messages=count, visibility_timeout="10m")
        messages = taken.messages if taken else []
        self.held |= {message.text: (taken, message.sequence) for message in messages}
        return [message.text for message in messages]

    def settle(self, verb: str, value: str, **options: Any) -> None:
        taken, sequence = self.held.pop(value)
        getattr(taken, verb)([sequence], **options)

    def drain(self, count: int) -> list[str]:
        values, group = [], self.queue.group()
        while taken := group.lease("w", max_messages=count, wait="1s"):
            values += [message.text for message in taken.messages]
            taken.extend("5m")
            taken.ack()
        return values

    def sweep(self) -> None:
        self.queue.sweep()

    def redrive(self) -> int:
        return int(self.queue.redrive().messages)

    def stats(self) -> dict[str, Any]:
        found = self.queue.group().stats()
        names = "ready", "delayed", "leased", "dead", "acked", "dead_lettered", "nacked", "rejected"
        return {name: getattr(found, name) for name in names}


def serve(folder: Path, path: Path, pipe: Any) -> None:
    calls = Calls(folder, path)
    while True:
        name, values, options = pipe.recv()
        pipe.send(getattr(calls, name)(*values, **options))


class Version:
    """A process that makes :class:`Calls`, by one version of the package."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.end = pipe.recv

    def begin(self, name: str, *values: Any, **options: Any) -> None:
        """Begin a call, whose result :meth:`end` returns."""
        self._pipe.send((name, values, options))

    def call(self, name: str, *values: Any, **options: Any) -> Any:
        self.begin(name, *values, **options)
        return self.end()


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
def running(*folders: Path, on: Path) -> Iterator[list[Version]]:
    """Run a process for each folder with a package, on one queue."""
    versions = list[Version]()
    with ExitStack() as stack:
        for folder in folders:
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=serve, args=(folder, on, theirs))
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(folder)  # where the process looks first
                process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            versions.append(Version(ours))
        yield versions
