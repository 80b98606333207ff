"""How far the isolation of suspects is, in each view and log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import in_this_process

from spark_mq import Lease, Queue

TEXT = "isolating 1,000 suspects, about 6 leases left"  # pieces of 100, then of 200


@pytest.fixture
def failed(delta_queue: Callable[..., Queue]) -> Queue:
    """A queue whose group g has 1,000 messages that failed together twice."""
    queue = delta_queue()
    queue.publish([str(number) for number in range(1_000)])
    for _ in range(2):
        queue.group("g").lease("worker", max_messages=1_000).nack(delay=0)
    return queue


def test_each_view_shows_how_many_leases_are_left(
    failed: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = failed.group("g").stats()
    assert (stats.isolating, stats.isolation_leases, stats.isolation) == (1_000, 6, TEXT)
    assert failed.stats()["groups"]["g"] == stats
    assert TEXT in str(failed.describe())
    run = in_this_process(tmp_path, capsys)
    assert f"group g: {TEXT}" in run("top", "-q", failed.path, "--count", 1).out.splitlines()


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_worker_logs_when_it_begins_with_suspects_and_how_many_are_left(
    failed: Queue, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    caplog.set_level(logging.INFO)

    def handler(given: Any) -> None:
        first = given.messages[0] if isinstance(given, Lease) else given
        if first.value == b"0":
            raise ValueError("no customer")  # a failure is logged at once

    failed.group("g").work(handler, max_messages=1_000, mode=mode, until="empty", on_error="reject")
    begun, verdicts, *more = [r.getMessage() for r in caplog.records if "isol" in r.getMessage()]
    # A worker with mode="message" begins with a lease of one.
    leased, left = ("100 messages", "900 suspects, about 5")
    if mode == "message":
        leased, left = ("1 message", "999 suspects, about 6")
    assert begun == (
        f"group g: leased {leased} of a lease that failed, isolating {left} leases left"
    )
    assert re.fullmatch(
        r"group g: .*rejected .*, isolating [0-9,]+ suspects, about \d leases left", verdicts
    )
    assert not more, "one line in ten seconds"
