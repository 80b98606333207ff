"""Dead letters by failure, and the changes that people made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from support.limits import Limits
from support.people import as_visitor, own_user
from support.rule_variants import rule_variant
from support.tables import context_of

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock, memory_queue


def with_letters(queue: Queue) -> Queue:
    """Seven letters: five of `billing` in two sweeps, two of `audit`."""
    queue.publish([Message(f"{n}", message_id=f"id-{n}") for n in range(5)])
    billing = queue.group("billing")
    billing.lease("w", max_messages=3).reject(error="no customer")
    queue.sweep()
    billing.configure(max_delivery_attempts=1)
    for _ in range(2):
        billing.lease("w").nack(error="timeout")
    queue.group("audit").lease("w", max_messages=2).reject(error="bad")
    queue.sweep()
    return queue


def test_dead_letters_are_grouped_by_group_reason_and_shape(queue: Queue) -> None:
    assert queue.failures().failures == ()
    failures = with_letters(queue).failures()
    assert (failures.counted, failures.complete) == (7, True)
    counts = {(one.reason, one.group): (one.messages, one.error) for one in failures}
    assert counts == {
        ("rejected", "billing"): (3, "no customer"),
        ("max_delivery_attempts", "billing"): (2, "timeout"),
        ("rejected", "audit"): (2, "bad"),
    }
    newest = queue.failures(4)
    assert (newest.counted, newest.complete) == (4, False)
    assert sum(one.messages for one in newest) == 4
    assert {one.error for one in newest} == {"timeout", "bad"}
    assert queue.failures(None) == failures
    assert (queue.failures(7).complete, queue.failures(6).complete) == (True, False)


def with_errors(queue: Queue, errors: list[tuple[str | None, str]]) -> Queue:
    """A letter for each key and error, each a minute after the one before."""
    clock = context_of(queue).clock
    assert isinstance(clock, ManualClock)
    group = queue.group("billing")
    queue.publish([Message(f"{n}", key=key) for n, (key, _) in enumerate(errors)])
    for _, error in errors:
        group.lease("w", max_messages=1).reject(error=error)
        clock.advance("1m")
    queue.sweep()
    return queue


def test_errors_that_differ_in_numbers_and_names_are_one_failure(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    began = clock()
    errors: list[tuple[str | None, str]] = [
        *(("anna", f"ValueError: order {n} of 'x{n}' is bad") for n in range(3)),
        ("bob", "KeyError: 'a'"),
        (None, "ValueError: order 7 of '' is bad"),
    ]
    with_errors(queue, errors)
    first, second = queue.failures()
    assert (first.shape, first.messages) == ("ValueError: order <n> of <text> is bad", 4)
    assert first.error == "ValueError: order 7 of '' is bad"
    assert (first.first_at, first.last_at) == (began, began + timedelta(minutes=4))
    assert [(key.key, key.messages, key.share) for key in first.keys] == [("anna", 3, 0.75)]
    newest = queue.list_dead_letters()["dead_letter_sequence"].to_pylist()[::-1]
    assert first.samples == (newest[0], newest[2], newest[3])
    assert (second.shape, second.first_at, second.last_at) == (
        "KeyError: <text>", *[began + timedelta(minutes=3)] * 2,
    )  # fmt: skip
    assert queue.list_dead_letters(where=second.where)["key"].to_pylist() == ["bob"]
    assert queue.list_dead_letters(where=first.where).num_rows == 4
    assert queue.redrive(where=first.where).messages == 4
    assert [failure.shape for failure in queue.failures()] == ["KeyError: <text>"]


def test_letters_between_redriven_ones_are_read_at_once(
    delta_queue: Callable[..., Queue],
) -> None:
    queue = delta_queue()
    queue.publish([f"{n}" for n in range(100)])
    queue.group("g").lease("w", max_messages=100).reject(error="bad")
    queue.sweep()
    queue.redrive(where="dead_letter_sequence % 2 = 1")
    reads: list[int] = []
    counted = lambda read: lambda *given: reads.append(len(given)) or read(*given)  # noqa: E731
    with rule_variant("MessageReader.read", counted):
        (failure,) = queue.failures()
        assert (failure.messages, len(reads)) == (50, 1), reads
        assert queue.newest_dead_letters(20).num_rows == 20
    assert len(reads) == 2
    assert [len(failure.samples) for failure in queue.failures(2)] == [2]


def test_a_flood_of_failures_is_counted_as_one(queue: Queue, limits: Limits) -> None:
    limits(failures=2, failure_keys=2)
    names = ["apple", "pear", "plum", "fig", "pear"]
    queue.publish([Message(name, key=f"{name}-{n}") for n, name in enumerate(names)])
    group = queue.group("g")
    for name in names:
        group.lease("w", max_messages=1).reject(error=f"no {name}")
    queue.sweep()
    failures = {failure.shape: failure for failure in queue.failures()}
    assert sum(one.messages for one in failures.values()) == 5
    assert len(failures) == 3
    assert "…" in failures
    for shape, one in failures.items():
        found = queue.list_dead_letters(where=one.where).num_rows
        assert found == (0 if shape == "…" else one.messages), "no redrive takes other letters"


def test_dead_letters_are_listed_from_the_newest_on(queue: Queue) -> None:
    assert queue.newest_dead_letters().num_rows == 0
    everything = with_letters(queue).list_dead_letters()["dead_letter_sequence"].to_pylist()
    newest = queue.newest_dead_letters(3)["dead_letter_sequence"].to_pylist()
    assert newest == everything[::-1][:3]
    rest = queue.newest_dead_letters(9, before=newest[-1])["dead_letter_sequence"].to_pylist()
    assert newest + rest == everything[::-1]


def test_letters_of_another_queue_are_left_out(delta_queue: Callable[..., Queue]) -> None:
    queue = delta_queue()
    other = Queue.create(f"{queue.path}-2", dead_letter_path=queue.dead_letters.path, durable=False)
    with_letters(queue)
    other.publish("foreign")
    other.group("g").lease("w").reject(error="foreign")
    other.sweep()
    assert queue.newest_dead_letters().num_rows == 7
    assert [failure.error for failure in other.failures()] == ["foreign"]


def test_a_redrive_is_one_change_with_its_user_and_condition(queue: Queue) -> None:
    with_letters(queue)
    audit, long = "consumer_group = 'audit'", "error <> '" + "x" * 9_000 + "'"
    redriven = as_visitor("bob\x1b", lambda: queue.redrive(where=audit, rate=1_000))
    assert redriven.messages == 2
    assert queue.redrive(where=long, rate=1_000).messages == 5
    queue.group("old").ensure()
    for _ in range(2):
        changes = queue.changes()
        second, first = [change for change in changes if "redrive" in change.operation]
        assert (first.operation, first.user, first.detail) == ("redriven", "bob�", audit)
        assert (second.operation, second.user) == ("redriven", own_user())
        assert first.in_dead_letters == second.in_dead_letters is True
        assert len(second.detail or "") < len(long)
        assert long.startswith(second.detail or "missing")
        assert all("lease" not in change.operation for change in changes)
        created = {one.group: one.user for one in changes if one.operation == "create group"}
        assert created == {"billing": None, "audit": None, "old": own_user()}
        queue.sweep()
        queue.dead_letters.sweep()  # the archive has the same
    assert len(queue.changes(2)) == 2


def test_a_user_is_noted_with_the_own_operation_only(queue: Queue) -> None:
    """Other threads do not get the name, also if they share the commits."""
    queue.publish([f"{n}" for n in range(20)])
    group = queue.group("g").ensure()
    ready, wait = threading.Barrier(2), 60

    def pausing() -> None:
        ready.wait(wait)
        for _ in range(5):
            as_visitor("alice", lambda: group.pause("x"))

    thread = threading.Thread(target=pausing)
    thread.start()
    ready.wait(wait)
    for number in range(5):
        group.configure(max_delivery_attempts=number + 1)
    thread.join(wait)
    for change in queue.changes():
        if "pause" in change.operation:
            assert change.user == "alice"
        elif change.operation == "configure":
            assert change.user == own_user()


def test_changes_show_what_was_asked_for_and_by_whom(queue: Queue) -> None:
    sequence = queue.publish(["a", "b"]).sequences[0]
    group = queue.group("g").ensure()
    group.configure(visibility_timeout="90s", max_in_flight=9)
    queue.configure(retention="3d")
    as_visitor("alice", lambda: group.pause("repairs"))
    group.resume()
    group.discard(sequence, reason="spam")
    group.dead_letter(sequence + 1, reason="no customer")
    as_visitor("alice", lambda: group.seek("latest"))
    queue.drop_group("g")
    queue.purge(queue.name)
    own = own_user()
    for _ in range(2):
        made = {change.operation: (change.user, change.detail) for change in queue.changes()}
        assert made == {
            "create group": (own, None),
            "configure": (own, "visibility_timeout=1m 30s, max_in_flight=9"),
            "configure queue": (own, "retention=3d"),
            "pause": ("alice", "repairs"), "resume": (own, None),
            "discard": (own, "spam"), "dead letter": (own, "no customer"),
            "seek": ("alice", "to latest"), "drop group": (own, None), "trim": (own, None),
        }  # fmt: skip
        assert {change.group for change in queue.changes()} == {"g", None}
        queue.sweep()  # the archive has the same
