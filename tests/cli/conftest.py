"""How the tests run a command: in this process, or as a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Run, in_a_process, in_this_process


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_this_process(tmp_path, capsys)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Exit codes, streams and questions as a shell has them, at half a second for each command."""
    return in_a_process(tmp_path)
