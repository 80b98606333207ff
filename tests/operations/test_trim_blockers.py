"""Groups that hold back the trim: who they are, and when they no longer count."""

from __future__ import annotations

import pytest
from support.handles import again, take, take_all, trim
from support.having import having
from support.queues import Make
from support.tables import ledgers_of

from spark_mq.errors import DataLossError
from spark_mq.testing import ManualClock, memory_queue

# -- who blocks


def test_stats_and_sweeps_name_the_groups_that_block_a_trim(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h")
    for name in ("quick", "slow", "stuck"):
        queue.group(name).ensure()
    queue.publish(["a", "b"])
    take_all(queue.group("quick"))
    assert "blocked" not in str(queue.sweep()), "nothing is old enough"
    assert queue.stats()["trim_blocked_by"] == []
    clock.advance("2h")
    assert queue.sweep().trim_blocked_by == ("slow", "stuck")
    assert again(queue).stats()["trim_blocked_by"] == ["slow", "stuck"]
    blockers = [(held.group, held.messages) for held in queue.blockers() if held.blocks == "trim"]
    assert sorted(blockers) == [("slow", 2), ("stuck", 2)]
    take_all(queue.group("slow"))
    assert queue.stats()["trim_blocked_by"] == ["stuck"]
    take_all(queue.group("stuck"))
    assert queue.sweep() == having(trimmed_files=1, trim_blocked_by=())
    assert queue.stats()["trim_blocked_by"] == []


# -- groups without activity


def test_a_group_without_activity_holds_back_no_trim(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h")
    gone = again(queue).group("gone").ensure()
    queue.configure(group_expiry="7d")
    queue.publish(["a", "b"])
    take_all(queue.group("live"))
    clock.advance("6d")
    assert queue.sweep().trim_blocked_by == ("gone",)
    clock.advance("2d")
    report = queue.sweep()
    assert (report.trimmed_files, report.trim_blocked_by) == (1, ())
    assert queue.groups() == ["gone", "live"], "the group stays with its place and its counts"
    queue.publish("c")
    with pytest.raises(DataLossError, match="group_expiry") as caught:
        gone.lease("w")
    assert caught.value.data["lost"] == 2
    assert take(gone, fail_on_data_loss=False) == ["c"]
    assert gone.stats().lost == 2


def test_any_commit_of_a_group_is_activity(clock: ManualClock) -> None:
    # In memory, because a table takes the time of a commit from the machine.
    queue = memory_queue(clock, retention="1h", group_expiry="7d")
    queue.publish(["a", "b"])
    take_all(queue.group("live"))
    take(queue.group("idle"), 1)
    clock.advance("6d")
    queue.group("idle").pause("holiday")
    clock.advance("7d")
    assert trim(queue) == 0
    assert queue.stats()["trim_blocked_by"] == ["idle"]
    clock.advance("1s")
    assert trim(queue) == 1


def test_what_nobody_settled_stays_if_all_groups_are_gone(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h", group_expiry="7d")
    queue.publish("a")
    take_all(queue.group("one"))
    queue.publish("b")
    queue.group("two").ensure()
    clock.advance("30d")
    assert trim(queue) == 1
    assert queue.stats()["trim_blocked_by"] == ["one"]
    assert take(queue.group("one")) == ["b"]


def test_nobody_holds_back_what_a_hard_limit_has_trimmed(clock: ManualClock) -> None:
    queue = memory_queue(clock, retention="1h", hard_retention="2h")
    queue.group("slow").ensure()
    queue.publish("old")
    clock.advance("3h")
    queue.publish("young")
    assert trim(queue) == 1
    assert queue.stats()["trim_blocked_by"] == []


def test_a_group_counts_if_its_last_commit_is_unknown(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_queue(clock, retention="1h", group_expiry="1d")
    live, _ = (queue.group(name).ensure() for name in ("live", "old"))
    queue.publish("a")
    clock.advance("2d")
    assert take(live) == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr(ledgers_of(queue), "last_change", lambda _: None)
        assert trim(queue) == 0
    assert trim(queue) == 1
