"""What an owner does with single messages, without a lease."""

from __future__ import annotations

import pytest
from support.handles import again, lease, leased, notes, route, take, trim
from support.having import having
from support.queues import Make
from support.working import counts

from spark_mq import Message, Queue, SettleResult
from spark_mq.errors import InvalidOption, MessagesHeld
from spark_mq.testing import ManualClock

CHANGES = ("discard", "retry_now", "dead_letter")


def test_several_are_discarded_in_one_commit(queue: Queue) -> None:
    s = queue.publish([str(n) for n in range(10)]).sequences
    group = queue.group().ensure()
    commits = len(notes(queue))
    assert group.discard([]) == 0
    assert group.discard([s[0], s[4], s[5]]) == 3
    assert len(notes(queue)) == commits + 1
    assert notes(queue)[-1]["ranges"] == f"{s[0]}-{s[0]},{s[4]}-{s[5]}"
    assert take(group) == ["1", "2", "3", *"6789"]
    assert counts(queue) == {"acked": 7, "dropped": 3}


def test_messages_are_named_by_id_or_key_and_routed_with_a_reason(queue: Queue) -> None:
    queue.publish([Message("a", key="k"), Message("b", message_id="one"), Message("c", key="k")])
    group = queue.group().ensure()
    assert group.dead_letter(group.peek(1), reason="wrong customer") == 1
    assert group.dead_letter(key="k", reason="wrong customer") == 1
    assert group.discard(message_id=["one"]) == 1
    assert counts(queue) == {"dead": 2, "dropped": 1}
    assert [failure.error for failure in group.last_errors()] == ["wrong customer"]
    assert group.dead_letter(key="k") == 0
    assert route(group) == 2
    for letter in lease(queue.dead_letters).messages:
        assert letter.headers["spark_mq.reason"] == "requested"
        assert letter.headers["spark_mq.error"] == "wrong customer"


@pytest.mark.parametrize("state", ["dead", "delayed"])
def test_an_expired_message_is_not_retried(queue: Queue, clock: ManualClock, state: str) -> None:
    """It would expire again before any worker gets it."""
    group = queue.group()
    group.configure(on_expired="dead_letter")
    s = queue.publish([Message(until, expires_at=until) for until in ("5m", "10m")]).sequences
    if state == "dead":
        group.dead_letter(s[0])
    else:
        lease(queue).nack(delay="10m")
    clock.advance("6m")
    before = counts(queue)
    with pytest.raises(InvalidOption, match=f"changed nothing: .* {s[0]}..{s[0]} is over") as found:
        group.retry_now(list(s))
    assert (found.value.option, found.value.value) == ("sequences", [(s[0], s[0])])
    assert counts(queue) == before
    clock.advance("4m")
    assert group.retry_now(s[1]) == 0, "it is due already"
    assert group.discard(s[0]) == 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("floor", ["below it", "at it"])
def test_a_change_of_a_settled_message_does_nothing(
    make: Make, clock: ManualClock, change: str, floor: str
) -> None:
    """It is below the start sequence, or above it."""
    queue = make(retention="0s")
    names = ["one", "two"] if floor == "at it" else ["two", "one"]
    s = queue.publish([Message("a", key=name, message_id=name) for name in names]).sequences
    group = queue.group().ensure()
    assert group.discard(message_id="one") == 1
    named = {"message_id": "one"}, {"key": "one"}, {"sequences": s[names.index("one")]}
    assert [getattr(group, change)(**one) for one in named] == [0, 0, 0]
    clock.advance("1m")  # on a disk the publish has the time of the machine
    trim(queue)
    assert group.discard(message_id="two") == 1
    with pytest.raises(InvalidOption, match="no message"):
        getattr(group, change)(message_id="one" if floor == "at it" else "three")


def test_retry_now_delivers_before_deliver_at(queue: Queue, clock: ManualClock) -> None:
    s = queue.publish([Message(str(n), deliver_at="1h") for n in range(3)]).sequences
    group = queue.group().ensure()
    assert group.retry_now([s[1]]) == 1
    for _ in range(2):  # also after a release
        held = lease(queue)
        assert [m.sequence for m in held.messages] == [s[1]]
        held.release()
    clock.advance("61m")
    assert group.retry_now(list(s)) == 0, "all are due"
    assert sorted(m.sequence for m in lease(again(queue)).messages) == list(s)


def test_a_message_that_is_retried_during_its_last_attempt_does_not_die(queue: Queue) -> None:
    group = queue.group()
    group.configure(max_delivery_attempts=1)
    (message,) = leased(queue, "a").messages
    assert group.retry_now(message.sequence, force=True) == 1
    assert lease(queue).messages[0].delivery_count == 1


@pytest.mark.parametrize("how", CHANGES)
def test_a_held_message_is_refused_and_nothing_changes(queue: Queue, how: str) -> None:
    s = queue.publish(["a", "b"]).sequences
    held = lease(queue, 1)
    with pytest.raises(MessagesHeld, match="force") as refused:
        getattr(queue.group(), how)(list(s))
    assert [place for *place, _ in refused.value.data["held"]] == [[s[0], s[0]]]
    assert held.lease_id in str(refused.value)
    assert counts(queue) == {"leased": 1, "ready": 1}
    assert held.ack() == SettleResult(1)


def test_a_late_lease_does_not_hold_its_messages(queue: Queue, clock: ManualClock) -> None:
    (message,) = leased(queue, "a").messages
    clock.advance("62s")
    assert queue.group().discard(message) == 1
    assert counts(queue) == {"dropped": 1}


def test_the_history_says_who_did_it(queue: Queue) -> None:
    s = queue.publish(["a", "b"]).sequences
    held = lease(queue, 1)
    queue.group().discard(s[0], force=True, by="alice", reason="test data")
    queue.group().dead_letter(s[1])
    trace = queue.trace(s[0])
    assert [(e.event, e.lease_id, e.user) for e in trace.events] == [
        ("leased", held.lease_id, None),
        ("fenced", held.lease_id, "alice"),
        ("discarded", held.lease_id, "alice"),
    ]
    assert trace.events[-1] == having(reason="requested", error="test data")
    (row,) = queue.finished(outcome="dropped").to_pylist()
    assert (row["sequence"], row["error"]) == (s[0], "test data")
    *_, fenced, discarded, _ = str(trace).splitlines()
    assert "fenced -> available  from w  user alice" in fenced
    assert "discarded -> settled: dropped  user alice" in discarded, "the worker did not do it"
    (made_dead,) = queue.trace(s[1]).events
    assert made_dead.event == "made_dead"
    assert "@" in str(made_dead.user), "the user and the host of this process"
