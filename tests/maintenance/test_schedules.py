"""Schedules of a queue: each instant is published once, whichever sweep runs, and however often.

Sweeps race each other, on machines whose clocks differ. test_chores kills them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.handles import again, housekeep, killed, once, take
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import messages_of, on_publish

from spark_mq import InvalidOption, Message, Queue, ScheduleNotFound, UnsupportedTable
from spark_mq.testing import ManualClock

NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _noon(clock: ManualClock) -> None:
    clock.set(NOON)


def instants(queue: Queue, name: str = "s") -> list[str]:
    """The instants of the schedule's messages in the queue, in order of sequence."""
    found = [
        datetime.fromisoformat(message.headers["spark_mq.scheduled_at"]).astimezone(UTC)
        for message in queue.peek(10_000)
        if message.headers.get("spark_mq.schedule") == name
    ]
    return [f"{one:%d %H:%M}" for one in found]


def entries(queue: Queue) -> dict[str, str]:
    found = messages_of(queue).log.refresh().metadata["configuration"]
    return {name: text for name, text in found.items() if name.startswith("spark_mq.")}


# -- publishing


def test_a_sweep_publishes_what_is_due_once(queue: Queue, clock: ManualClock) -> None:
    message = Message("run", key="k", headers={"own": "1"}, priority=3, expires_at="1h")
    made = queue.schedule("s", every="15m", message=message)
    assert made == having(name="s", next_at=NOON + timedelta(minutes=15), last_at=None)
    assert queue.sweep().scheduled == 0
    clock.advance("16m")
    assert [queue.sweep().scheduled for _ in range(2)] == [1, 0]
    (found,) = queue.peek()
    assert found == having(key="k", value=b"run", priority=3)
    assert found.message_id == "s/2027-01-15T12:15:00+00:00"
    assert found.headers == {
        "own": "1",
        "spark_mq.schedule": "s",
        "spark_mq.scheduled_at": "2027-01-15T12:15:00+00:00",
    }
    (listed,) = queue.schedules()
    assert listed == having(
        last_at=NOON + timedelta(minutes=15), next_at=NOON + timedelta(minutes=30), value=b"run"
    )


@pytest.mark.parametrize(
    "given", [{"schedule_instants": 4}, {"schedule_bytes": 4_500}], ids=["instants", "bytes"]
)
def test_many_missed_instants_are_published_in_several_sweeps(
    queue: Queue, clock: ManualClock, limits: Limits, given: dict[str, int]
) -> None:
    limits(**given)
    queue.schedule("s", every="1h", message=b"\xff" * 1_000, catch_up="all")
    clock.advance("10h")
    assert queue.schedules()[0].next_at == NOON + timedelta(hours=1), "it waits for a sweep"
    assert [queue.sweep().scheduled for _ in range(4)] == [4, 4, 2, 0]
    assert instants(queue) == [f"15 {hour}:00" for hour in range(13, 23)]
    assert {message.value for message in queue.peek()} == {b"\xff" * 1_000}


def test_jitter_delays_each_message_by_its_own_part(make: Make, clock: ManualClock) -> None:
    queue = make(delivery_delay="10m")
    queue.schedule("plain", every="1h", message="x")
    queue.schedule("s", every="1h", message="y", jitter="30m", catch_up="all")
    queue.schedule("own", every="1h", message=Message("z", deliver_at="2h"), jitter="1s")
    clock.advance("1h")
    assert queue.sweep().scheduled == 3
    assert take(queue.group()) == []
    clock.advance("10m")
    assert take(queue.group()) == ["x"]
    clock.advance("30m")
    assert take(queue.group()) == ["y"]
    clock.advance("79m")
    assert take(queue.group()) == []
    clock.advance("2m")
    assert take(queue.group()) == ["z"]


def test_each_message_expires_by_its_instant(queue: Queue, clock: ManualClock) -> None:
    least = timedelta(microseconds=1)  # so no jitter
    message = Message("x", expires_at=2 * least)
    queue.schedule("s", every="1h", message=message, jitter=least, catch_up="all")
    clock.advance("2h")
    assert queue.sweep().scheduled == 2
    assert take(queue.group()) == ["x"]


def test_schedules_and_producers_of_the_same_name_do_not_meet(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedule("s", every="1h", message="x")
    queue.publish("own", producer_id="s", producer_sequence=2**62)
    clock.advance("1h")
    assert queue.sweep().scheduled == 1
    queue.remove_schedule("s")
    assert queue.schedule("s", every="1h", message="x").last_at is None


# -- races and crashes


def test_a_sweep_whose_clock_is_ahead_publishes_no_instant_again(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.schedule("s", every="5m", message="x", catch_up="all")
    clock.advance("11m")
    other = again(queue)
    ahead = ManualClock(clock())
    ahead.advance("5m")
    late = again(queue, ahead)
    # One has planned two instants. Meanwhile another publishes these, or these and one more.
    on_publish(monkeypatch, queue, once(before=late.sweep))
    on_publish(monkeypatch, late, once(before=other.sweep))
    queue.sweep()
    assert instants(queue) == ["15 12:05", "15 12:10", "15 12:15"]
    clock.advance("5m")
    assert queue.sweep().scheduled == 0


@pytest.mark.parametrize("change", ["pause", "remove", "rule", "message", "messages"])
def test_a_change_while_a_sweep_publishes_is_obeyed(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    queue.schedule("s", every="1h", message="old")
    clock.advance("1h")
    other, texts = again(queue), iter("abc")
    changes: dict[str, Callable[[], Any]] = {
        "pause": lambda: other.pause_schedule("s"),
        "remove": lambda: other.remove_schedule("s"),
        "rule": lambda: other.schedule("s", every="30m", message="old"),
        "message": lambda: other.schedule("s", every="1h", message="new"),
        "messages": lambda: other.schedule("s", every="1h", message=next(texts)),
    }

    def publish_changed(publish: Callable[[], Any]) -> Any:
        changes[change]()
        return publish()

    on_publish(monkeypatch, queue, publish_changed)
    assert queue.sweep().scheduled == (change == "message")
    assert [message.value for message in queue.peek()] == ([b"new"] if change == "message" else [])


@pytest.mark.parametrize("table", ["messages", "leases"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_definition_killed_at_any_commit_is_whole_or_missing(
    queue: Queue, table: str, when: str
) -> None:
    with killed(table, when=when):
        queue.schedule("s", every="1h", message="x")
    there = (table, when) != ("messages", "before")
    assert len(again(queue).schedules()) == there
    again(queue).schedule("s", every="1h", message="x")
    assert [schedule.name for schedule in queue.schedules()] == ["s"]


# -- changes


def test_the_same_definition_makes_no_commit(queue: Queue, clock: ManualClock) -> None:
    queue.schedule("s", cron="0 2 * * *", timezone="Europe/Berlin", message="x")
    version = messages_of(queue).look().version
    clock.advance("1h")
    queue.schedule("s", cron=" 0 2  * * *", timezone="Europe/Berlin", message=b"x")
    assert messages_of(queue).look().version == version


def every(interval: str, catch_up: str = "all") -> Callable[[Queue], object]:
    return lambda queue: queue.schedule("s", every=interval, message="x", catch_up=catch_up)


def sweep(queue: Queue) -> object:
    return queue.sweep()


def pause(queue: Queue) -> object:
    return queue.pause_schedule("s")


def resume(queue: Queue) -> object:
    return queue.resume_schedule("s")


def remove(queue: Queue) -> object:
    return queue.remove_schedule("s")


def by_a_clock_behind(step: Callable[[Queue], object]) -> Callable[[Queue], object]:
    return lambda queue: step(again(queue, ManualClock(NOON)))


HOURLY = every("1h")
STORIES: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "a new rule has no instant of before it": (
        (HOURLY, "150m", every("20m"), sweep, "10m"), ["15 14:40"],
    ),
    "a definition that changes no rule loses none": ((HOURLY, "61m", HOURLY), ["15 13:00"]),
    "catching up begins when it is asked for": (
        (every("1h", "none"), "330m", HOURLY, "1h"), ["15 18:00"],
    ),
    "a pause skips the instants within it": (
        (HOURLY, "1h", sweep, pause, "2h", sweep, HOURLY, resume, sweep, "1h"),
        ["15 13:00", "15 16:00"],
    ),
    "a clock behind brings back no instant of before the pause": (
        (HOURLY, "150m", pause, by_a_clock_behind(resume)), [],
    ),
    "nor one of before a new rule": (
        (HOURLY, "150m", every("20m"), by_a_clock_behind(every("30m"))), [],
    ),
    "one made again starts at its creation": (
        (HOURLY, "1h", sweep, "3h", remove, sweep, "3h", HOURLY, sweep, "1h"),
        ["15 13:00", "15 20:00"],
    ),
}  # fmt: skip
"""What happens, with the times that pass, and the instants that are published by the next sweep."""


@pytest.mark.parametrize("story", STORIES)
def test_the_instants_after_changes(queue: Queue, clock: ManualClock, story: str) -> None:
    steps, expected = STORIES[story]
    for step in steps:
        if isinstance(step, str):
            clock.advance(step)
        else:
            step(queue)
    queue.sweep()
    assert instants(queue) == expected


def test_a_pause_says_since_when_and_why(queue: Queue, clock: ManualClock) -> None:
    HOURLY(queue)
    paused = queue.pause_schedule("s", "upgrade")
    assert paused == having(paused_at=clock(), pause_reason="upgrade", next_at=None)
    clock.advance("2h")
    assert queue.pause_schedule("s") == paused
    changed = queue.schedule("s", every="1h", message="y", catch_up="all")
    assert changed.pause_reason == "upgrade"
    resumed = queue.resume_schedule("s")
    assert resumed == having(paused_at=None, pause_reason=None, last_at=None)
    assert resumed == queue.resume_schedule("s")


# -- the queue around it


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_schedule_that_waits_for_a_sweep_is_a_problem_if_it_catches_up(
    queue: Queue, clock: ManualClock, catch_up: str
) -> None:
    queue.schedule("s", every="15m", message="x", catch_up=catch_up)
    queue.sweep()
    clock.advance("15m")
    assert queue.sweep_state().waiting_since == (None if catch_up == "none" else clock())
    clock.advance("1h")
    assert queue.health().healthy
    clock.advance("1m")
    problems = [problem.check for problem in queue.health().problems if "is due" in problem.text]
    assert problems == ([] if catch_up == "none" else ["not_swept"])
    queue.sweep()
    queue.pause_schedule("s")
    queue.sweep()
    clock.advance("5h")
    assert queue.health().healthy


def test_schedules_and_batches_stay_with_configure_purge_and_a_checkpoint(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedule("s", every="1h", message="x")
    queue.schedule("other", cron="* * * * *", message=b"\xff")
    queue.publish("x", batch_id="b")
    before = entries(queue)
    queue.configure(retention="1d")
    queue.purge(queue.name)
    for _ in range(120):
        queue.publish("x")
    queue.sweep()
    housekeep(queue, keep_versions=0, keep_seconds=0)
    assert entries(again(queue)) == before
    assert [schedule.value for schedule in again(queue).schedules()] == [b"\xff", b"x"]
    clock.advance("1h")
    assert again(queue).sweep().scheduled == 2


def test_a_copy_has_the_schedules_and_continues_where_the_copy_was_made(
    delta_queue: Make, clock: ManualClock, tmp_path: Path
) -> None:
    queue = delta_queue()
    queue.schedule("s", every="1h", message="x")
    clock.advance("1h")
    queue.sweep()
    shutil.copytree(queue.path, tmp_path / "copy")
    copy = Queue.open(tmp_path / "copy", clock=clock).rehome(copy=True)
    assert copy.sweep().scheduled == 0
    clock.advance("1h")
    assert (copy.sweep().scheduled, queue.sweep().scheduled) == (1, 1)


def test_other_engines_read_the_table_and_its_schedules(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.schedule("s", every="1h", message="x")
    found = DeltaTable(f"{queue.path}/messages").metadata().configuration
    entry = json.loads(found["spark_mq.schedule.s"])
    assert (entry["every"], entry["text"], entry["format"]) == (3_600_000_000, "x", 1)


def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedule("a", every="1h", message="x")
    queue.schedule("s", every="1h", message="x")
    messages_of(queue).change_property("spark_mq.schedule.a", lambda _: '{"format": 2}', "test")
    clock.advance("1h")
    with pytest.raises(UnsupportedTable, match="'a'"):
        queue.sweep()
    assert instants(queue) == ["15 13:00"]
    queue.remove_schedule("a")
    assert [schedule.name for schedule in queue.schedules()] == ["s"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "{", '{"format": 1}', '{"format": 1, "created_at": 1, "since": 1}',
     '{"format": 1, "created_at": 1, "since": 1, "every": "x"}',
     '{"format": 1, "created_at": 1, "since": 1, "every": 1000000, "data": "?"}',
     '{"format": 1, "created_at": 1, "since": 1, "every": 1000000, "catch_up": "x"}',
     '{"format": 1, "created_at": 1, "since": 1, "every": 1000000, "new_field": 1}'],
)  # fmt: skip
def test_an_entry_of_another_version_is_named(queue: Queue, text: str) -> None:
    messages_of(queue).change_property("spark_mq.schedule.s", lambda _: text, "test")
    with pytest.raises(UnsupportedTable, match="schedule 's' of"):
        queue.schedules()
    assert queue.sweep_state().waiting_since is None


# -- what is refused


def test_messages_of_a_schedule_outlive_the_delay_of_their_queue(make: Make) -> None:
    queue = make(delivery_delay="1h")
    with pytest.raises(InvalidOption, match="Give more than 1h") as refused:
        queue.schedule("s", every="1h", message=Message("x", expires_at="30m"))
    assert refused.value.option == "expires_at"
    schedule = queue.schedule(
        "s", every="1h", jitter="30m", message=Message("x", deliver_at=0, expires_at="31m")
    )
    assert schedule.jitter == timedelta(minutes=30)


def test_all_schedules_together_have_a_limit(queue: Queue) -> None:
    for number in range(16):
        text = "x" * (65_470 if number < 15 else 64_990)
        queue.schedule(f"s{number}", every="1h", message=text)
    assert sum(map(len, entries(queue).values())) == 2**20, "and no byte more"
    with pytest.raises(InvalidOption, match="remove some"):
        queue.schedule("more", every="1h", message="x")
    assert len(queue.schedules()) == 16


@pytest.mark.parametrize("call", ["pause_schedule", "resume_schedule", "remove_schedule"])
def test_a_schedule_that_is_missing_is_named(queue: Queue, call: str) -> None:
    queue.schedule("nightly", every="1h", message="x")
    with pytest.raises(ScheduleNotFound, match="Did you mean 'nightly'") as refused:
        getattr(queue, call)("nihgtly")
    assert refused.value.schedule == "nihgtly"
