"""Signals that come at any line end the work, and never wait for a lock."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

import pytest

from spark_mq.util.signals import calling_on_signal

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_event_is_set_even_if_the_interrupted_thread_holds_its_lock(number: int) -> None:
    stop = threading.Event()
    before = signal.getsignal(number)
    with calling_on_signal(lambda _: stop.set(), number):
        with stop._cond, threading._active_limbo_lock:  # type: ignore[attr-defined]
            signal.raise_signal(number)
            signal.raise_signal(number)
        assert stop.wait(30)
    assert signal.getsignal(number) is before


def test_the_block_waits_for_the_call_of_its_signal() -> None:
    calls: list[int] = []
    with calling_on_signal(calls.append, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
    assert calls == [signal.SIGTERM]


def test_no_other_module_sets_a_handler() -> None:
    paths = [*ROOT.glob("spark_mq/**/*.py"), *ROOT.glob("jobs/*.py")]
    calls = re.compile(r"signal\.signal\(|add_signal_handler")
    found = [str(path.relative_to(ROOT)) for path in paths if calls.search(path.read_text())]
    assert found == ["spark_mq/util/signals.py"]
