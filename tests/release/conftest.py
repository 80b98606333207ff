"""The programs that check a release."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import parse

ROOT = Path(__file__).parents[2]
OPTIONAL = {"actionlint", "check-board", "helm", "promtool"}
"""Programs that go compiles (``make GO_TOOLS=`` does without them) or that a machine may lack."""


@pytest.fixture(scope="session")
def tools() -> Callable[..., str]:
    """Run programs of ``.venv/release`` and ``.venv/tools``, which SUITE=release installs."""

    def run(name: str, *arguments: object, stdin: str = "", expect: int = 0) -> str:
        """Run one from the project's folder and return what it prints, or skip the test."""
        places = [ROOT / ".venv" / folder / name for folder in ("release/bin", "tools")]
        there = [place for place in places if place.exists()]
        if not there and name in OPTIONAL:
            pytest.skip(f"{name} is not installed")
        done = subprocess.run(
            [there[0], *map(str, arguments)], cwd=ROOT, input=stdin, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        printed = done.stdout[-4_000:], done.stderr[-4_000:]
        assert done.returncode == expect, (name, arguments, *printed)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def make() -> Callable[..., None]:
    """Run a target as from a shell, also if make has started the tests."""

    def run(*arguments: str) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        subprocess.run(["make", *arguments], cwd=ROOT, env=own, timeout=600, check=True)

    return run


@pytest.fixture(scope="session")
def version() -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@pytest.fixture
def parse_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Parse the words after ``spark-mq`` as the command does, without running it."""

    def parse_in(*words: str, **environment: str) -> None:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        assert parse(*words)

    return parse_in
