"""``spark-mq web`` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from spark_mq import Queue

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_MQ_")}
    path = os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH"))))
    return {**own, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **more}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal(queue: Queue, end: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_mq", "web", str(Path(queue.path).parent), "--port", "0"],
        env=environment(SPARK_MQ_WEB_PASSWORD="correct horse battery",
                        SPARK_MQ_WEB_TOKEN="a-token-of-prometheus"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    headers = {"Authorization": "Bearer a-token-of-prometheus"}
    for page in ("", "queue/orders", "metrics"):
        with urlopen(Request(address + page, headers=headers), timeout=30) as answer:
            assert b"orders" in answer.read()
    process.send_signal(end)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def fails(*words: str, code: int, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "spark_mq", "web", *words],
        env=environment(**env), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_other_machines_need_a_password(tmp_path: Path) -> None:
    error = fails(str(tmp_path), "--address", "0.0.0.0", "--port", "0", code=2)
    assert "SPARK_MQ_WEB_PASSWORD" in error
    short = fails(str(tmp_path), "--port", "0", code=2, SPARK_MQ_WEB_PASSWORD="shorty")
    assert "12" in short
    assert "shorty" not in short


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = fails(str(tmp_path), "--port", str(taken.getsockname()[1]), code=2)
    assert "--port" in error


def test_a_missing_extra_is_named_in_one_line() -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['spark-mq', 'web']; "
        "from spark_mq.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'spark-mq[web]'" in done.stderr
