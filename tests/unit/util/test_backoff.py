"""The pauses of writers that compete."""

from __future__ import annotations

import pytest

from spark_mq.util import backoff
from spark_mq.util.backoff import Backoff, too_many_conflicts

ATTEMPT = 0.1
"""Seconds that an attempt takes here."""


def test_a_writer_without_rivals_never_pauses() -> None:
    mine = Backoff()
    for _ in range(5):
        mine.won(ATTEMPT)
    assert mine.pause == 0


def test_pauses_grow_with_each_loss_from_the_length_of_an_attempt_up_to_a_limit() -> None:
    mine, seen = Backoff(), list[float]()
    for _ in range(40):
        mine.lost(ATTEMPT)
        seen.append(mine.pause)
    assert seen[:3] == pytest.approx([0.125, 0.15625, 0.1953125])
    assert seen[-1] == 3.0


def test_a_commit_shortens_the_pause_until_it_is_none() -> None:
    mine = Backoff()
    mine.lost(ATTEMPT)
    mine.lost(ATTEMPT)
    before, commits = mine.pause, 0
    while mine.pause:
        mine.won(ATTEMPT)
        assert mine.pause < before
        before, commits = mine.pause, commits + 1
    assert commits == 3


def test_a_writer_takes_over_the_pause_of_another_and_adds_its_own_losses() -> None:
    mine = Backoff()
    mine.take_over(0.4)
    assert mine.pause == pytest.approx(0.4)
    mine.lost(ATTEMPT)
    assert mine.pause == pytest.approx(0.5)
    mine.take_over(0.2)
    assert mine.pause == pytest.approx(0.25)


@pytest.mark.parametrize(("named", "taken"), [(-3, 0), (1e9, 3.0), (float("inf"), 3.0)])
def test_a_pause_in_a_commit_cannot_stop_others(named: float, taken: float) -> None:
    mine = Backoff()
    mine.take_over(named)
    assert mine.pause == taken


def test_a_wait_is_random_around_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    mine = Backoff()
    mine.take_over(1.0)
    for _ in range(200):
        mine.wait(0.5)
    assert 0 <= min(slept) < 0.1
    assert 0.9 < max(slept) <= 1.0
    assert sum(slept) / 200 == pytest.approx(0.5, abs=0.1)


def test_the_error_says_how_many_races_were_lost() -> None:
    error = too_many_conflicts("group 'g': a commit", 7, 30.0, "g")
    assert str(error).startswith("group 'g': a commit lost 7 races in 30 s. Nothing was changed")
    assert (error.group, error.attempts) == ("g", 7)  # type: ignore[attr-defined]
