"""``spark-mq web`` as a process."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.commands import started

from spark_mq import Queue


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal(queue: Queue, end: signal.Signals) -> None:
    secrets = {"SPARK_MQ_WEB_PASSWORD": "correct horse battery",
               "SPARK_MQ_WEB_TOKEN": "a-token-of-prometheus"}  # fmt: skip
    process = started("web", Path(queue.path).parent, "--port", "0", **secrets)
    address = process.stderr.readline().split()[-1]
    headers = {"Authorization": "Bearer a-token-of-prometheus"}
    for page in ("", "queue/orders", "metrics"):
        with urlopen(Request(address + page, headers=headers), timeout=30) as answer:
            assert b"orders" in answer.read()
    process.send_signal(end)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
