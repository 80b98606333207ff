"""How the tests run a command in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Run, in_this_process


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_this_process(tmp_path, capsys)
