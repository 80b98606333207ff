"""A Spark standalone cluster of processes on this machine: a master, two workers, and the executors
that they start.

The two workers have different names for the one machine: Spark never runs two attempts of a task on
one host, so with one name it would not speculate.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
from support.servers import free_port
from support.spark_session import spark_class

__all__ = ["Cluster", "cluster", "kill"]

HOSTS = ("localhost", "127.0.0.1")


class Cluster:
    """``url``: its master."""

    def __init__(self, url: str, workers: set[int]) -> None:
        self.url, self._workers = url, workers

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        return [
            process.pid
            for process in psutil.process_iter(["ppid", "cmdline"])
            if process.info["ppid"] in self._workers
            and any(
                "CoarseGrainedExecutorBackend" in word for word in process.info["cmdline"] or ()
            )
        ]

    def executor_of(self, pid: int) -> int | None:
        """The executor that a Python worker works for; None if either is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            above = {process.pid for process in psutil.Process(pid).parents()}
            return next((executor for executor in self.executors() if executor in above), None)
        return None


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[Cluster]:
    """A cluster of which nothing is left at the end of the block."""
    port, executors = free_port(), list[int]()
    url = f"spark://127.0.0.1:{port}"
    env = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    master = ("--host", "127.0.0.1", "--port", port, "--webui-port", 0)
    worker = ("--port", 0, "--webui-port", 0, "--cores", 2, "--memory", "768m")
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            spark_class("org.apache.spark.deploy.master.Master", *master,
                        port=port, log=home / "master.log", **env)
        )  # fmt: skip
        workers = [
            stack.enter_context(
                spark_class("org.apache.spark.deploy.worker.Worker", "--host", host, *worker,
                            "--work-dir", home / f"worker{n}", url,
                            log=home / f"worker{n}.log", **env)
            ).pid
            for n, host in enumerate(HOSTS)
        ]  # fmt: skip
        running = Cluster(url, {*workers})
        try:
            yield running
        finally:
            executors = running.executors()
    for pid in executors:
        kill(pid)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal. False if the process was gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
