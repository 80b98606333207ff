"""``spark-mq top`` on a terminal. What it prints into a pipe stands in the approved texts."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path

import pytest

from spark_mq import Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish(["order"] * 30)
    queue.group("billing").lease("worker-7")
    return queue


class Terminal:
    """The command on a terminal, with what it has printed."""

    def __init__(self, queue: Queue, lines: int = 40, **more: str) -> None:
        self._main, self._terminal = pty.openpty()
        self.settings = termios.tcgetattr(self._terminal)
        size = {"COLUMNS": "100", "LINES": str(lines)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_mq", "top", "-q", queue.path, "--interval", "1h"],
            stdin=self._terminal, stdout=self._terminal, stderr=self._terminal,
            env={**os.environ, "TERM": "xterm-256color", **size, **more},
        )  # fmt: skip
        self.seen = b""

    def shows(self, text: str) -> bool:
        """Return whether the command prints a text within a minute, after what it printed."""
        deadline, start = time.monotonic() + 60, len(self.seen)
        while time.monotonic() < deadline:
            if text.encode() in self.seen[start:]:
                return True
            self._read(1)
        return False

    def press(self, key: str) -> None:
        os.write(self._main, key.encode())

    def ends(self) -> bool:
        """Return whether the command ends well and leaves the terminal as it was."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        self._read(0)
        restored = termios.tcgetattr(self._terminal) == self.settings
        return self.process.poll() == 0 and restored and self.seen.endswith(b"\x1b[?1049l")

    def _read(self, seconds: float) -> None:
        if select.select([self._main], [], [], seconds)[0]:
            self.seen += os.read(self._main, 65_536)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._terminal)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_live_view_gives_the_terminal_back(queue: Queue, end: signal.Signals) -> None:
    with closing(Terminal(queue)) as terminal:
        assert terminal.shows("orders")
        terminal.process.send_signal(end)
        assert terminal.ends(), terminal.seen[-2_000:]


@pytest.mark.slow
def test_a_key_refreshes_a_view_and_a_failure_leaves_the_last_one(queue: Queue) -> None:
    with closing(Terminal(queue)) as terminal:
        assert terminal.shows("published 30")
        queue.publish(["a", "b"])
        terminal.press("x")
        assert terminal.shows("published 32")
        Path(queue.path).rename(f"{queue.path}-elsewhere")
        terminal.press("x")
        assert terminal.shows("the last refresh failed: ")
        assert terminal.shows("published 32")


@pytest.mark.slow
def test_a_view_that_is_too_long_ends_with_an_ellipsis(queue: Queue) -> None:
    with closing(Terminal(queue, lines=6)) as terminal:
        assert terminal.shows("...")
        terminal.press("q")
        assert terminal.ends()
        assert b"worker-7" not in terminal.seen


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_works(queue: Queue) -> None:
    queue.group("shipping").pause("Bücher \x1b[31m fehlen")
    with closing(Terminal(queue, PYTHONIOENCODING="ascii")) as terminal:
        assert terminal.shows(r"B\xfccher \ufffd[31m")
