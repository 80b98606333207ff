"""Groups that hold back the trim: who they are, and when they no longer count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.handles import again, lease, take_all, trim
from support.tables import ledgers_of

from spark_mq import Queue
from spark_mq.errors import DataLossError
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.maintenance.retention import (
    GroupStart,
    HeldBack,
    counting_groups,
    held_back,
    lowest_start,
)
from spark_mq.testing import ManualClock, memory_queue

Make = Callable[..., Queue]


# -- who blocks


def test_stats_and_the_sweep_name_the_groups_that_block_a_trim(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h")
    for name in ("quick", "slow", "stuck"):
        queue.group(name).ensure()
    queue.publish(["a", "b"])
    take_all(queue.group("quick"))
    report = queue.sweep()
    assert report.trim_blocked_by == (), "nothing is old enough"
    assert "blocked" not in str(report)
    assert queue.stats()["trim_blocked_by"] == []
    clock.advance("2h")
    report = queue.sweep()
    assert report.trim_blocked_by == ("slow", "stuck")
    assert str(report).endswith("trim blocked by: slow, stuck")
    assert again(queue).stats()["trim_blocked_by"] == ["slow", "stuck"]
    assert {one.group for one in queue.blockers() if one.blocks == "trim"} == {"slow", "stuck"}
    take_all(queue.group("slow"))
    assert queue.stats()["trim_blocked_by"] == ["stuck"]
    take_all(queue.group("stuck"))
    assert queue.sweep().trim_blocked_by == ()
    assert queue.stats()["trim_blocked_by"] == []
    assert queue.horizon() > 0


def test_the_ages_of_the_files_are_looked_at_only_if_messages_wait(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(retention="1h")
    looks: list[int] = []
    real = MessageIndex.last_of_older

    def counted(index: MessageIndex, instant: int) -> int:
        looks.append(instant)
        return real(index, instant)

    monkeypatch.setattr(MessageIndex, "last_of_older", counted)
    queue.publish("a")
    clock.advance("2h")
    assert queue.stats()["trim_blocked_by"] == []
    assert looks == [], "there is no group"
    queue.group("g").ensure()
    assert queue.stats()["trim_blocked_by"] == ["g"]
    assert len(looks) == 1
    take_all(queue.group("g"))
    looks.clear()
    assert queue.stats()["trim_blocked_by"] == []
    assert not [one for one in queue.blockers() if one.blocks == "trim"]
    assert looks == []


# -- groups without activity


def test_off_by_default_a_group_holds_back_the_trim_for_ever(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h")
    assert queue.settings.group_expiry is None
    queue.group("gone").ensure()
    queue.publish("a")
    take_all(queue.group("live"))
    clock.advance("300d")
    assert trim(queue) == 0
    assert queue.stats()["trim_blocked_by"] == ["gone"]


def test_a_group_without_activity_no_longer_holds_back_the_trim(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h", group_expiry="7d")
    gone = again(queue).group("gone").ensure()
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
    found = gone.lease("w", fail_on_data_loss=False)
    assert [message.value for message in found.messages] == [b"c"]
    assert gone.stats().lost == 2


def test_any_commit_of_a_group_is_activity(clock: ManualClock) -> None:
    # In memory, because a table takes the time of a commit from the machine.
    queue = memory_queue(clock, retention="1h", group_expiry="7d")
    queue.publish(["a", "b"])
    take_all(queue.group("live"))
    idle = queue.group("idle").ensure()
    clock.advance("6d")
    idle.pause("holiday")
    clock.advance("6d")
    assert trim(queue) == 0
    assert queue.stats()["trim_blocked_by"] == ["idle"]
    clock.advance("2d")
    assert trim(queue) == 1


def test_a_store_knows_when_a_group_changed_last(queue: Queue) -> None:
    ledgers = ledgers_of(queue)
    assert ledgers.last_change("g") is None
    queue.group("g").ensure()
    first = ledgers.last_change("g")
    queue.group("other").ensure()
    assert ledgers.last_change("g") == first
    queue.group("g").pause("x")
    committed = ledgers_of(again(queue)).commit_time(ledgers.version())
    changed = ledgers.last_change("g")
    assert None not in (first, committed, changed)
    assert first <= changed  # type: ignore[operator]
    assert abs(changed - committed) < 1_000_000  # type: ignore[operator]


def test_what_no_group_has_settled_stays_even_if_all_groups_are_gone(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h", group_expiry="7d")
    queue.publish("a")
    take_all(queue.group("one"))
    queue.publish("b")
    queue.group("two").ensure()
    clock.advance("30d")
    assert trim(queue) == 1
    assert queue.stats()["trim_blocked_by"] == ["one"]
    assert queue.group("one").stats().ready == 1
    taken = lease(queue, group="one")
    assert [message.value for message in taken.messages] == [b"b"]


def test_a_group_that_has_settled_all_does_not_expire(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h", group_expiry="7d")
    queue.publish("a")
    take_all(queue.group("idle"))
    take_all(queue.group("live"))
    clock.advance("30d")
    assert trim(queue) == 1
    queue.publish("b")
    taken = lease(queue, group="idle")
    assert [message.value for message in taken.messages] == [b"b"], "no loss to accept"


def test_an_expiry_can_be_set_later_and_reaches_open_groups(make: Make, clock: ManualClock) -> None:
    queue = make(retention="1h")
    gone = again(queue).group("gone").ensure()
    queue.publish("a")
    take_all(queue.group("live"))
    clock.advance("8d")
    assert trim(queue) == 0
    queue.configure(group_expiry="7d")
    assert trim(queue) == 1
    with pytest.raises(DataLossError):
        gone.lease("w")


# -- the pure rules


def index_of(*rows: int) -> MessageIndex:
    """An index with a file for each number of rows. File n was committed at n."""
    files = [DataFile(at << 32, n, f"f{at}", n, at) for at, n in enumerate(rows)]
    return MessageIndex(files, len(rows))


def test_no_group_counts_twice_and_none_is_needed() -> None:
    assert lowest_start({}) == -1
    assert counting_groups({}, 9, 100, 5) == {}
    assert held_back({}, index_of(2, 2), -1, 1) is None


@pytest.mark.parametrize(
    ("change", "expiry", "counts"),
    [(100, 10, True), (90, 10, True), (89, 10, False), (0, None, True), (None, 10, True)],
)
def test_a_group_expires_after_its_last_commit(
    change: int | None, expiry: int | None, counts: bool
) -> None:
    groups = {"live": GroupStart(9, 100), "old": GroupStart(3, change)}
    assert ("old" in counting_groups(groups, 9, 100, expiry)) is counts


def test_find_held_back_counts_old_messages_above_the_floor() -> None:
    index = index_of(2, 3, 4)
    groups = {"a": GroupStart(1), "b": GroupStart(1), "c": GroupStart(2 << 32)}
    old = (1 << 32) + 2
    assert held_back(groups, index, -1, old) == HeldBack(("a", "b"), 1, 3)
    assert held_back(groups, index, -1, 1) is None, "what is old is settled"
    assert held_back(groups, index, old, old) is None, "it is trimmed already"
