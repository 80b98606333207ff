"""Run a case of :mod:`support.crash_points` while one call of the C library on its files fails, or
the process is killed there.

``failing_calls.c`` is loaded before the C library, so it also sees what Arrow and delta-rs do on a
local disk. This module is both sides: the test asks through :class:`Runner`, and the program at the
end, which has the library loaded, forks a process for each try.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODES = {"fails": 1, "fails after its work": 2, "kills": 3}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Try:
    """What became of one run: its calls, what it reported, and its error, if it raised one."""

    exit_code: int
    calls: list[str] = field(default_factory=list)
    reported: list[int] = field(default_factory=list)
    error: dict[str, Any] | None = None


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "failing_calls.so"
    source = str(HERE / "failing_calls.c")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True
    )
    return library


class Runner:
    """The program below. A context manager."""

    def __init__(self, library: Path, case: str | None) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.failing_calls", json.dumps(case)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def run(self, path: Path, *, at: int = -1, mode: str = "fails", number: int = 0) -> Try:
        """Run the case on a queue. At call `at` of it this happens; -1 is none."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"path": str(path), "at": at, "mode": MODES[mode], "number": number}
        print(json.dumps(asked), file=process.stdin, flush=True)
        return Try(**json.loads(process.stdout.readline()))


# -- the program


def attempt(case: str | None, asked: dict[str, Any], answer: int, log: int) -> None:
    """In a process of its own: runs the case, and writes what it said to `answer`."""
    from spark_mq import Queue, SparkMQError
    from support.crash_points import run_case

    said: dict[str, Any] = {"reported": [], "error": None}
    library = ctypes.CDLL(None)
    folder = f"{asked['path']}/".encode()
    library.failing_calls_arm(folder, asked["at"], asked["mode"], asked["number"], log)
    try:
        if case == "recover":
            Queue.open(asked["path"]).recover()
        else:
            run_case(case, asked["path"], said["reported"].extend)
    except BaseException as error:
        said["error"] = {
            "kind": type(error).__name__,
            "ours": isinstance(error, SparkMQError),
            "landed": getattr(error, "landed", "unsaid"),
            "text": str(error),
            "trace": traceback.format_exc()[-3000:],
        }
    library.failing_calls_disarm()
    os.write(answer, json.dumps(said).encode())


def content(file: int) -> Iterator[bytes]:
    os.lseek(file, 0, os.SEEK_SET)
    while data := os.read(file, 1 << 20):
        yield data


def serve(case: str | None) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        answer, log = os.memfd_create("answer"), os.memfd_create("calls")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                attempt(case, asked, answer, log)
            sys.stderr.flush()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = json.loads(b"".join(content(answer)) or b"{}")
        names = b"".join(content(log)).decode(errors="replace").splitlines()
        calls = [name.replace(asked["path"], "") for name in names]
        os.close(answer)
        os.close(log)
        print(json.dumps({"exit_code": code, "calls": calls, **said}), flush=True)


if __name__ == "__main__":
    import spark_mq.maintenance.sweep
    import spark_mq.operations.trace
    import spark_mq.streaming.source
    import spark_mq.worker.run  # noqa: F401
    import support.crash_points  # noqa: F401

    serve(json.loads(sys.argv[1]))
