"""Processes that use a queue by another version of the package, as the history has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ROOT", "Version", "running", "version_of"]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
import spark_mq

assert Path(spark_mq.__file__).parents[1] == Path(sys.argv[1]), spark_mq.__file__
held = {}

def create(path, **settings):
    spark_mq.Queue.create(path, **settings)

def publish(path, values):
    spark_mq.Queue.open(path).publish(values)

def lease(path, count):
    taken = group.lease("w", max_messages=count, visibility_timeout="10m")
    if taken is None:
        return []
    held.update((message.text, (taken, message.sequence)) for message in taken.messages)
    return [message.text for message in taken.messages]

def settle(path, verb, value, **options):
    taken, sequence = held.pop(value)
    getattr(taken, verb)([sequence], **options)

def drain(path, count):
    values = []
    while taken := group.lease("w", max_messages=count, wait="1s"):
        values += [message.text for message in taken.messages]
        taken.extend("5m")
        taken.ack()
    return values

def sweep(path):
    queue.sweep()

def redrive(path):
    return queue.redrive().messages

def stats(path):
    found = group.stats()
    names = "ready", "delayed", "leased", "dead", "acked", "dead_lettered", "nacked", "rejected"
    return {name: getattr(found, name) for name in names}

for line in sys.stdin:
    name, path, values, options = json.loads(line)
    if name != "create":
        queue = spark_mq.Queue.open(path)
        group = queue.group()
    print(json.dumps(globals()[name](path, *values, **options)), flush=True)
"""


class Version:
    """A process that makes the calls of ``PROGRAM`` on one queue, by one version of the package."""

    def __init__(self, folder: Path, path: Path) -> None:
        self._path = path
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path.parent,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip

    def begin(self, name: str, *values: Any, **options: Any) -> None:
        """Begin a call, whose result :meth:`end` returns."""
        assert self.process.stdin is not None
        print(
            json.dumps([name, str(self._path), values, options]),
            file=self.process.stdin, flush=True,
        )  # fmt: skip

    def end(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended, see its error"
        return json.loads(line)

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
    versions = [Version(folder, on) for folder in folders]
    try:
        yield versions
    finally:
        for version in versions:
            version.process.kill()
            version.process.wait()
            for stream in (version.process.stdin, version.process.stdout):
                if stream is not None:
                    stream.close()
