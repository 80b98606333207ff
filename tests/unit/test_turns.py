"""Lines of tickets: who may try, who waits, and for how long, over a store that is a dict and a clock that sleeping moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from spark_mq.storage.turns import EVERYONE, Turn

from spark_mq.storage import turns


class Store:
    """Tickets in dicts. ``then``: what others do, one thing a look."""

    def __init__(self) -> None:
        self.pace, self.given_up = 0.02, dict[str, int]()
        self.taken, self.served = dict[str, int](), dict[str, int]()
        self.then: list[Callable[[], None]] = []
        self.left: list[tuple[str, int]] = []

    def line(self, name: str) -> tuple[int, int]:
        return self.taken.get(name, 0), self.served.get(name, 0)

    def look(self) -> bool:
        if self.then:
            self.then.pop(0)()
            return True
        return False

    def take_ticket(self, name: str) -> int | None:
        self.taken[name] = self.taken.get(name, 0) + 1
        return self.taken[name]

    def leave_line(self, name: str, ticket: int) -> None:
        self.left.append((name, ticket))

    def serves(self, name: str, ticket: int) -> Callable[[], None]:
        return lambda: self.served.update({name: ticket})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    return clock


@pytest.fixture
def store() -> Any:
    return Store()


def test_where_nobody_waits_it_is_ones_turn_at_once(store: Store, clock: Clock) -> None:
    turn = Turn(store, "g")
    assert turn.has_come(clock.now + 30)
    assert turn.place is None
    assert store.taken == {}


def test_who_sees_others_wait_gets_in_line_behind_them(store: Store, clock: Clock) -> None:
    store.taken["g"], store.served["g"] = 3, 1
    store.then = [store.serves("g", 2), store.serves("g", 3)]
    turn = Turn(store, "g")
    assert not turn.has_come(clock.now + 30)
    assert turn.place == ("g", 4)
    assert not turn.has_come(clock.now + 30)  # it waited, so what was read before is old
    assert store.then == []
    assert turn.has_come(clock.now + 30)


def test_the_front_of_the_line_goes_at_once(store: Store, clock: Clock) -> None:
    store.taken["g"], store.served["g"] = 3, 3
    turn = Turn(store, "g")
    turn.take_ticket()
    before = clock.now
    assert turn.has_come(clock.now + 30)
    assert clock.now == before


def test_a_line_that_stands_still_is_passed_by_once(store: Store, clock: Clock) -> None:
    """Whoever took ticket 1 is dead."""
    store.taken["g"] = 1
    turn, before = Turn(store, "g"), clock.now
    while not turn.has_come(before + 30):
        pass
    assert turn.courtesy <= clock.now - before < turn.courtesy + 0.5
    assert store.given_up == {"g": 1}
    again, before = Turn(store, "g"), clock.now  # ticket 2 was not served either, in this test
    store.served["g"] = 2
    assert again.has_come(before + 30)
    assert clock.now == before


def test_each_one_served_gives_the_next_the_whole_courtesy(store: Store, clock: Clock) -> None:
    store.taken["g"] = 4
    turn = Turn(store, "g")
    turn.take_ticket()
    slow = turn.courtesy * 0.8

    def later(ticket: int) -> Callable[[], None]:
        def act() -> None:
            clock.now += slow
            store.served["g"] = ticket

        return act

    store.then, before = [later(n) for n in (1, 2, 3, 4)], clock.now
    assert not turn.has_come(before + 30)
    assert turn.has_come(before + 30)
    assert store.given_up == {}
    assert clock.now - before > 4 * slow


def test_groups_give_way_to_who_needs_the_whole_table_and_not_to_each_other(store: Store, clock: Clock) -> None:
    store.taken.update({EVERYONE: 1, "other": 5})
    store.then = [store.serves(EVERYONE, 1)]
    turn = Turn(store, "g")
    assert not turn.has_come(clock.now + 30)
    assert store.then == []
    assert turn.has_come(clock.now + 30)
    assert turn.place is None
    whole = Turn(store, EVERYONE)
    store.taken["g"] = 7  # those of a group do not hold it up
    assert whole.has_come(clock.now + 30)


def test_it_tries_a_last_time_at_the_deadline(store: Store, clock: Clock) -> None:
    store.taken["g"] = 500
    turn, deadline = Turn(store, "g"), clock.now + 0.2
    tries = 0
    while not turn.has_come(deadline):
        tries += 1
    assert tries < 5
    assert deadline <= clock.now < deadline + turn.courtesy


def test_who_stands_in_line_and_does_not_commit_leaves_it(store: Store) -> None:
    def fails() -> None:
        with Turn(store, "g") as turn:
            turn.take_ticket()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with Turn(store, "g") as turn:
        turn.take_ticket()
        turn.was_served()
    with Turn(store, "g"):
        pass
    assert store.left == [("g", 1)]
