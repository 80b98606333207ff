"""A Spark standalone cluster of processes on this machine: a master, two workers, and the executors
that they start.

The two workers have different names for the one machine: Spark never runs two attempts of a task on
one host, so with one name it would not speculate.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

__all__ = ["Cluster", "free_port", "java_class", "wait_for_port"]

HOSTS = ("localhost", "127.0.0.1")
PATIENCE = 240.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def java_class(name: str, *arguments: object, log: Path, **env: str) -> subprocess.Popen[bytes]:
    """Starts a class of Spark's in a JVM of its own; what it says goes to `log`."""
    home = Path(pyspark.__file__).parent
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *map(str, arguments)],
            env={**os.environ, **python, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a process listens. Fails with what it said if it ends before."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, log.read_text()[-3_000:]
        assert time.monotonic() < deadline, f"nothing listens at {port}: {log.read_text()[-3_000:]}"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


class Cluster:
    """``url``: its master.

    A context manager: at its end, and at the end of this process, nothing is left of it.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        env = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        log = home / "master.log"
        master = java_class(
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", port, "--webui-port", 0),
            log=log,
            **env,
        )
        self._processes = [master]
        try:
            wait_for_port(port, master, log)
            for n, host in enumerate(HOSTS):
                self._processes.append(
                    java_class(
                        "org.apache.spark.deploy.worker.Worker", "--host", host, "--port", 0,
                        "--webui-port", 0,
                        "--cores", 2, "--memory", "768m", "--work-dir", home / f"worker{n}",
                        self.url,
                        log=home / f"worker{n}.log", **env,
                    )
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        executors = self.executors()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for pid in executors:
            kill(pid)
        shutil.rmtree(self._home / "worker0", ignore_errors=True)
        shutil.rmtree(self._home / "worker1", ignore_errors=True)

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        workers = {process.pid for process in self._processes[1:]}
        return [
            pid
            for pid, parent, command in _processes()
            if parent in workers and "CoarseGrainedExecutorBackend" in command
        ]

    def executor_of(self, pid: int) -> int | None:
        """The executor that a Python worker works for; None if either is gone."""
        parents = {child: parent for child, parent, _ in _processes()}
        executors = self.executors()
        while pid in parents and pid not in executors:
            pid = parents[pid]
        return pid if pid in executors else None


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal. False if the process was gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, command) of every process."""
    reported = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    ).stdout
    for line in reported.splitlines():
        pid, parent, command = [*line.split(None, 2), ""][:3]
        yield int(pid), int(parent), command
