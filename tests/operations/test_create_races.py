"""Creating and opening a queue while others create it: at each step, and by real processes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from support.byte_store import ByteStore, Call
from support.handles import again, archive, index_commits, lease, leased
from support.queues import Place

from spark_mq import Queue
from spark_mq.errors import QueueExists, QueueNotFound

W = TypeVar("W")
CALLS = ("read", "open", "stat", "list", "iterate", "write", "create")
"""What a store is asked for while a queue is created, opened or swept."""
ANYWHERE = pytest.mark.parametrize(
    "where",
    [
        pytest.param(r"(?<!dead_letters)/(messages|leases)$", id="own tables"),
        pytest.param("", id="all", marks=pytest.mark.slow),
    ],
)
"""The stores whose calls count as steps: without those of the dead letters it is quick."""


def each_step(
    prepare: Callable[[], W], act: Callable[[W], Any], rival: Callable[[W], Any], where: str
) -> Iterator[tuple[W, list[Any]]]:
    """Let a rival act at each step of an act in turn, each time on what has just been prepared.

    Yield that, and what came of the act and of the rival's. A step is a call to a store with such
    a path.
    """
    for step in itertools.count(1):
        prepared = prepare()
        outcomes = at_step(step, prepared, act, rival, where)
        yield prepared, outcomes
        if len(outcomes) == 1:
            assert step > 3
            return


def at_step(
    step: int, prepared: W, act: Callable[[W], Any], rival: Callable[[W], Any], where: str
) -> list[Any]:
    calls, others = itertools.count(1), list[Any]()

    def interrupted(call: Call) -> Any:
        if not others and re.search(where, call.store.root) and next(calls) == step:
            others.append(None)  # so that no call of the rival is a step
            others[:] = [outcome(rival, prepared)]
        return call.run()

    with pytest.MonkeyPatch.context() as patch:
        ByteStore(patch).on(*CALLS, act=interrupted)
        return [outcome(act, prepared), *others]


def outcome(act: Callable[[W], Any], prepared: W) -> Any:
    """Return the result of an act, or its error."""
    try:
        return act(prepared)
    except (QueueExists, QueueNotFound) as error:
        return error


def creator(lanes: int, exist_ok: bool = False) -> Callable[[dict[str, Any]], Queue]:
    return lambda at: Queue.create(**at, lanes=lanes, exist_ok=exist_ok)


def open_at(at: dict[str, Any]) -> Queue:
    return Queue.open(**at)


@ANYWHERE
@pytest.mark.parametrize("exist_ok", [False, True])
def test_of_creators_with_unlike_settings_one_wins_wherever_they_meet(
    place: Place, exist_ok: bool, where: str
) -> None:
    mine, theirs = creator(1, exist_ok), creator(2, exist_ok)
    for at, outcomes in each_step(place, mine, theirs, where):
        (winner,) = [one for one in outcomes if isinstance(one, Queue)]
        for error in (one for one in outcomes if one is not winner):
            assert isinstance(error, QueueExists)
            assert "remove" not in str(error)
            assert f"lanes={winner.settings.lanes}, not {3 - winner.settings.lanes}" in str(error)
        assert open_at(at).settings == winner.settings


@ANYWHERE
@pytest.mark.parametrize("exist_ok", [False, True])
def test_of_creators_with_the_same_settings_one_wins_or_all_may_use_it(
    place: Place, exist_ok: bool, where: str
) -> None:
    for at, outcomes in each_step(place, creator(2, exist_ok), creator(2, exist_ok), where):
        queues = [one for one in outcomes if isinstance(one, Queue)]
        assert len(queues) == (len(outcomes) if exist_ok else 1)
        assert {queue.settings for queue in queues} == {open_at(at).settings}


@ANYWHERE
def test_a_queue_can_be_opened_at_each_step_of_its_creation(place: Place, where: str) -> None:
    missing = 0
    for at, (created, *opened) in each_step(place, creator(2), open_at, where):
        for queue in opened:
            missing += isinstance(queue, QueueNotFound)
            assert isinstance(queue, QueueNotFound) or queue.settings == created.settings
        created.publish("a")
        assert lease(open_at(at)).ack().settled == 1
    assert 0 < missing < 20


def test_a_queue_can_be_created_at_each_step_of_an_open(place: Place) -> None:
    for _, (_, *created) in each_step(place, open_at, creator(2), ""):
        assert all(isinstance(queue, Queue) for queue in created)


@pytest.mark.parametrize("table", ["commits", "history"])
def test_two_sweeps_create_a_table_at_once(place: Place, table: str) -> None:
    """At each step of the one that comes first."""

    def two_handles() -> list[Queue]:
        queue = Queue.create(**place(), durable=False)
        leased(queue, "a").release()
        return [queue, again(queue)]

    chore = archive if table == "history" else index_commits
    first, second = (lambda queues: chore(queues[0])), (lambda queues: chore(queues[1]))
    for queues, _ in each_step(two_handles, first, second, f"/{table}$"):
        queues[1].sweep()
        assert again(queues[0]).stats()["published"] == 1


# -- settings of a queue that is there


SETTINGS: dict[str, Any] = {"lanes": 2, "visibility_timeout": "30s", "dedup_window": "1h"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lanes": 0}, "lanes=2, not 0."),  # although it is the default
        ({"visibility_timeout": "40s"}, "visibility_timeout=30s, not 40s."),
        (
            {"dedup_window": None, "retention": "2d"},
            "retention=7d, not 2d, dedup_window=1h, not None.",
        ),
    ],
)
def test_an_existing_queue_refuses_other_settings_and_lists_them(
    place: Place, given: dict[str, Any], named: str
) -> None:
    at = place()
    queue = Queue.create(**at, **SETTINGS)
    for exist_ok in (True, False):
        with pytest.raises(QueueExists, match=f"with other settings: {named}") as refused:
            Queue.create(**at, **given, exist_ok=exist_ok)
        assert refused.value.path == queue.path
    assert open_at(at).settings == queue.settings


def test_an_existing_queue_is_not_compared_with_defaults_that_nobody_gave(place: Place) -> None:
    at = place()
    queue = Queue.create(**at, **SETTINGS)
    with pytest.raises(QueueExists) as refused:
        Queue.create(**at)
    assert refused.value.path == queue.path
    assert "with other settings" not in str(refused.value)
    for given in ({}, {"lanes": 2}, {"visibility_timeout": 30, "retention": "168h"}):
        assert Queue.create(**at, **given, exist_ok=True).settings == queue.settings
