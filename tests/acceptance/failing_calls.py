"""Run a case of :mod:`crash_points` while one call of the C library on its files fails, or
the process is killed there.

``failing_calls.c`` is loaded before the C library into the server that forks the processes of the
cases, so it also sees what Arrow and delta-rs do on a local disk.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import traceback
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from crash_points import run, run_case

from spark_mq import Queue

__all__ = ["Try", "attempt", "failing_calls"]

MODES = {"fails": 1, "fails after its work": 2, "kills": 3}


@dataclass(frozen=True)
class Try:
    """What became of one run: its calls, what it reported, and its error, if it raised one."""

    exit_code: int
    calls: list[str]
    reported: list[int] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="session")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the server of the processes, with the library if there is a compiler."""
    if shutil.which("cc"):
        library = str(tmp_path_factory.mktemp("library") / "failing_calls.so")
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", library)
            forkserver.ensure_running()


def attempt(
    case: str | None, path: Path, *, at: int = -1, mode: str = "fails", number: int = 0
) -> Try:
    """Run a case on a queue. At call `at` of it this happens; -1 is none."""
    code, said = run(_child, case, str(path), (at, MODES[mode], number))
    names = Path(f"{path}.calls").read_text(errors="replace").splitlines()
    calls = [name.replace(str(path), "") for name in names]
    return Try(code, calls, said["reported"], dict(said["error"]))


def _child(case: str | None, path: str, fault: tuple[int, int, int], pipe: Any) -> None:
    log = os.open(f"{path}.calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    library = ctypes.CDLL(None)
    library.failing_calls_arm(f"{path}/".encode(), *fault, log)
    try:
        if case == "recover":
            Queue.open(path).recover()
        else:
            run_case(case, path, lambda reported: pipe.send(("reported", reported)))
    except BaseException as error:
        said = {
            "kind": type(error).__name__,
            "landed": getattr(error, "landed", "unsaid"),
            "text": str(error),
            "trace": traceback.format_exc()[-3000:],
        }
        pipe.send(("error", list(said.items())))
    library.failing_calls_disarm()
    pipe.close()
