"""What an owner does with single messages, without a lease."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.handles import again, lease, route
from support.tables import group_ledger_of

from spark_mq import Message, Queue, SettleResult
from spark_mq.errors import InvalidOption, MessagesHeld
from spark_mq.testing import ManualClock

Make = Callable[..., Queue]
CHANGES = ("discard", "retry_now", "dead_letter")


def states(queue: Queue) -> dict[str, int]:
    stats = again(queue).group().stats()
    names = ("ready", "delayed", "leased", "dead", "blocked", "acked", "dropped")
    return {name: value for name in names if (value := getattr(stats, name))}


def test_a_discarded_message_reaches_no_worker(queue: Queue) -> None:
    s = queue.publish(["a", "b", "c"]).sequences
    group = queue.group().ensure()
    assert group.discard(s[1]) == 1
    assert group.discard(s[1]) == 0, "it is settled already"
    assert [m.sequence for m in lease(queue).messages] == [s[0], s[2]]
    assert states(queue) == {"leased": 2, "dropped": 1}


def test_several_are_discarded_in_one_commit(queue: Queue) -> None:
    s = queue.publish([str(n) for n in range(10)]).sequences
    group = queue.group().ensure()
    before = group_ledger_of(group).snapshot().ledger
    assert group.discard([s[0], s[4], s[5]]) == 3
    after = group_ledger_of(group).snapshot().ledger
    assert after.head.revision == before.head.revision + 1
    assert [m.sequence for m in lease(queue).messages] == [
        one for one in s if one not in (s[0], s[4], s[5])
    ]


def test_messages_are_named_by_id_or_key(queue: Queue) -> None:
    queue.publish([Message("a", key="k"), Message("b", message_id="one"), Message("c", key="k")])
    group = queue.group().ensure()
    assert group.dead_letter(key="k", reason="wrong customer") == 2
    assert group.discard(message_id=["one"]) == 1
    assert states(queue) == {"dead": 2, "dropped": 1}
    errors = {r.error for r in group_ledger_of(group).current() if r.state == "dead"}
    assert errors == {"wrong customer"}


@pytest.mark.parametrize("state", ["dead", "delayed"])
def test_a_message_past_its_own_time_is_not_retried(
    queue: Queue, clock: ManualClock, state: str
) -> None:
    """It would expire again before any worker gets it."""
    group = queue.group()
    group.configure(on_expired="dead_letter", retry_delay="10m")
    s = queue.publish([Message("short", expires_at="5m"), Message("long")]).sequences
    if state == "dead":
        group.dead_letter(s[0])
    else:
        lease(queue, 1).nack()
    clock.advance("6m")
    before = states(queue)
    with pytest.raises(InvalidOption, match=f"changed nothing: .* {s[0]}..{s[0]} is over") as found:
        group.retry_now(list(s))
    assert (found.value.option, found.value.value) == ("sequences", [(s[0], s[0])])
    assert states(queue) == before
    assert group.retry_now(s[1]) == 0, "it is due already"
    assert group.discard(s[0]) == 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("floor", ["below it", "at it"])
def test_a_change_of_a_settled_message_changes_nothing_however_it_is_named(
    queue: Queue, change: str, floor: str
) -> None:
    """It is below the start sequence, or above it."""
    names = ["one", "two"] if floor == "at it" else ["two", "one"]
    s = queue.publish([Message("a", key=name, message_id=name) for name in names]).sequences
    group = queue.group().ensure()
    assert group.discard(message_id="one") == 1
    named = {"message_id": "one"}, {"key": "one"}, {"sequences": s[names.index("one")]}
    assert [getattr(group, change)(**one) for one in named] == [0, 0, 0]
    with pytest.raises(InvalidOption, match="no message"):
        getattr(group, change)(message_id="three")


def test_a_dead_lettered_message_is_routed_with_its_reason(queue: Queue) -> None:
    s = queue.publish(["a", "b"]).sequences
    group = queue.group().ensure()
    assert group.dead_letter(s[0], reason="by request") == 1
    assert group.dead_letter(s[0]) == 0
    assert route(group) == 1
    letters = lease(queue.dead_letters).messages
    assert [m.value for m in letters] == [b"a"]
    assert letters[0].headers["spark_mq.reason"] == "requested"
    assert letters[0].headers["spark_mq.error"] == "by request"


def test_retry_now_delivers_before_deliver_at(queue: Queue, clock: ManualClock) -> None:
    delay = timedelta(hours=1)
    s = queue.publish([Message(str(n), deliver_at=delay) for n in range(3)]).sequences
    group = queue.group().ensure()
    assert group.retry_now([s[1]]) == 1
    again_leased = lease(queue)
    assert [m.sequence for m in again_leased.messages] == [s[1]]
    again_leased.release()
    assert [m.sequence for m in lease(queue).messages] == [s[1]], "also after a release"
    clock.advance("61m")
    assert group.retry_now(list(s)) == 0, "all are due"
    assert sorted(m.sequence for m in lease(again(queue)).messages) == list(s)


@pytest.mark.parametrize("how", CHANGES)
def test_a_held_message_is_refused_and_nothing_changes(queue: Queue, how: str) -> None:
    s = queue.publish(["a", "b"]).sequences
    held = lease(queue, 1)
    with pytest.raises(MessagesHeld, match="force") as refused:
        getattr(queue.group(), how)(list(s))
    assert [place for *place, _ in refused.value.data["held"]] == [[s[0], s[0]]]
    assert held.lease_id in str(refused.value)
    assert states(queue) == {"leased": 1, "ready": 1}
    assert held.ack() == SettleResult(1)


def test_a_late_lease_does_not_hold_its_messages(queue: Queue, clock: ManualClock) -> None:
    sequence = queue.publish("a").sequences[0]
    lease(queue)
    clock.advance("62s")
    assert queue.group().discard(sequence) == 1
    assert states(queue) == {"dropped": 1}


def test_the_history_says_who_did_it(delta_queue: Make) -> None:
    queue = delta_queue()
    s = queue.publish(["a", "b"]).sequences
    held = lease(queue, 1)
    queue.group().discard(s[0], force=True, by="alice", reason="test data")
    queue.group().dead_letter(s[1])
    first = [(e.event, e.lease_id, e.user) for e in queue.trace(s[0]).events]
    assert first == [
        ("leased", held.lease_id, None),
        ("fenced", held.lease_id, "alice"),
        ("discarded", held.lease_id, "alice"),
    ]
    last = queue.trace(s[0]).events[-1]
    assert (last.reason, last.error) == ("requested", "test data")
    row = queue.finished(outcome="dropped").to_pylist()[0]
    assert (row["sequence"], row["error"]) == (s[0], "test data")
    *_, fenced, discarded, outcome = str(queue.trace(s[0])).splitlines()
    assert "fenced -> available  from w  user alice" in fenced
    assert "discarded -> settled: dropped  user alice" in discarded, "the worker did not do it"
    assert "reason: requested  error: test data" in discarded
    assert "group default settled it: dropped  reason: requested  error: test data" in outcome
    (made_dead,) = queue.trace(s[1]).events
    assert made_dead.event == "made_dead"
    assert "@" in str(made_dead.user), "the user and the host of this process"


def test_an_empty_list_changes_nothing(queue: Queue) -> None:
    queue.publish("a")
    assert queue.group().ensure().discard([]) == 0
