"""A Spark session for queues in an object store, with the clock of the stories, and its job.

It has no JAR for a store: the source and the sink bring their own access.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from faulty_store import proxy
from support.blocks import ROOT
from support.queues import clock
from support.spark_session import spark

__all__ = ["clock", "proxy", "spark"]


@pytest.fixture
def run_worker(tmp_path: Path) -> Callable[[list[str], Mapping[str, str]], str]:
    """Run ``jobs/worker.py`` with the handler in mine.py on what is due. Return what it says."""
    (tmp_path / "conf").mkdir()  # without the packages of the repository's conf/

    def run(words: list[str], variables: Mapping[str, str]) -> str:
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "SPARK_CONF_DIR": str(tmp_path / "conf"),
        }
        done = subprocess.run(
            [
                sys.executable, ROOT / "jobs" / "worker.py", "--group", "g",
                "--handler", "mine:process", "--checkpoint", tmp_path / "checkpoint",
                "--trigger", "available-now", *words,
            ],
            cwd=tmp_path, env={**os.environ, **own, **variables}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3_000:]
        return done.stdout + done.stderr

    return run
