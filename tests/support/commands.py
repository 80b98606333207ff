"""Commands of the command line, run in this process or as one of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from spark_mq.interfaces.cli.app import app
from spark_mq.interfaces.cli.app import run as run_here

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.rows
        return row


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., Done]
Start = Callable[[list[str], str, dict[str, str]], Done]


def parameters_of_commands() -> dict[str, dict[str, Any]]:
    """The parameters of each command, by their names."""
    found, groups = dict[str, dict[str, Any]](), [("", typer.main.get_command(app))]
    for path, command in groups:
        for name, one in getattr(command, "commands", {}).items():
            groups.append((f"{path} {name}".strip(), one))
            found[groups[-1][0]] = {known.name: known for known in one.params}
    return found


def parse(*words: str) -> list[str]:
    """Parse the words after ``spark-mq``. Return the commands that would run."""
    found = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            typer.core.TyperCommand, "invoke", lambda _, context: found.append(context.command_path)
        )
        typer.main.get_command(app).main([*words], "spark-mq", standalone_mode=False)
    return found


def environment(**more: str) -> dict[str, str]:
    """The environment of a command, without options from that of the tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_MQ_")}
    return {**own, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **more}


def started(*words: object, folder: Path | None = None, **env: str) -> subprocess.Popen[str]:
    """Start a command as a process of its own, with pipes for its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "spark_mq", *map(str, words)],
        cwd=folder, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def run_program(code: str, **env: str) -> Done:
    """Run code in a process of its own, as a script that calls the command line."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**env), capture_output=True, text=True, timeout=120, check=False,
        errors="backslashreplace",
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def checked(start: Start) -> Run:
    """Return a function that runs a command and checks how it ended."""

    def command(*words: object, stdin: str = "", expect: int | None = 0, **env: str) -> Done:
        done = start([str(word) for word in words], stdin, env)
        if expect is not None:
            assert done.code == expect, (words, done.code, done.out[-500:], done.err[-2_000:])
        if expect:
            assert len(done.err.splitlines()) <= 1, done.err
        assert "Traceback" not in done.err
        return done

    return command


def in_this_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def start(words: list[str], stdin: str, env: dict[str, str]) -> Done:
        capsys.readouterr()
        with _as_a_process(folder, stdin, env):
            code = run_here(words)
        return Done(code, *capsys.readouterr())

    return checked(start)


@contextmanager
def _as_a_process(folder: Path, stdin: str, env: dict[str, str]) -> Iterator[None]:
    """Give a command its own folder, environment, stdin and modules."""
    modules = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        for name in [name for name in os.environ if name.startswith("SPARK_MQ_")]:
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        yield
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]  # a handler, of which the next test has another
