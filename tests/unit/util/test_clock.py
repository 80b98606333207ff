"""How much time has passed, by two clocks."""

from __future__ import annotations

import time

import pytest
from support.clocks import PAUSES, MachineClocks

from spark_mq.util.clock import ElapsedClock


@pytest.mark.parametrize(("running", "wall"), [(0.0, 0.0), (3.0, 3.5), (3.5, 3.0), (90.0, 90.9)])
def test_the_longer_time_counts_if_the_clocks_agree(running: float, wall: float) -> None:
    clocks = MachineClocks()
    before = clocks.elapsed.now()
    clocks.move(running, wall)
    assert clocks.elapsed.since(before) == pytest.approx(max(running, wall))


@pytest.mark.parametrize(("running", "wall"), [*PAUSES.values(), (0.1, -2.0), (0.1, 2.0)])
def test_a_pause_or_a_clock_that_was_set_is_no_short_time(running: float, wall: float) -> None:
    clocks = MachineClocks()
    before = clocks.elapsed.now()
    clocks.move(running, wall)
    assert clocks.elapsed.since(before) >= 3600.0
    after = clocks.elapsed.now()
    assert clocks.elapsed.since(after) == 0.0, "from then on they are trusted again"


def test_nobody_knows_how_long_ago_never_was() -> None:
    assert MachineClocks().elapsed.since(None) == float("inf")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_the_running_clock_is_the_one_that_counts_a_suspend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)
    assert ElapsedClock().now().running == 7.0


def test_the_clocks_of_this_machine_agree() -> None:
    clock = ElapsedClock()
    assert 0.0 <= clock.since(clock.now()) < 1.0
