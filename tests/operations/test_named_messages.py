"""Messages are named by themselves, and by the integers of NumPy and Arrow, at every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from support.handles import leased

from spark_mq import Message, Queue, errors
from spark_mq.errors import InvalidOption

np = pytest.importorskip("numpy")

SETTLES = ("ack", "nack", "reject", "release")
SECRET = "payload of " + "x" * 2_000_000


@pytest.mark.parametrize("verb", SETTLES)
def test_leases_and_groups_settle_messages_themselves(queue: Queue, verb: str) -> None:
    held, group = leased(queue, *"abcdefgh", count=8), getattr(queue.group(), verb)
    first, second, third, fourth, fifth, *rest, last = held.messages
    own = getattr(held, verb)
    assert own(first).settled == 1
    assert own([second, third]).settled == 2
    assert own([fourth.sequence]).settled == 1
    assert group(held, fifth).settled == 1
    assert group(held.lease_id, iter(rest)).settled == 2
    assert group({held: last}).settled == 1


def test_messages_are_named_at_all_other_doors(queue: Queue) -> None:
    held, group = leased(queue, *(str(n) for n in range(6)), count=2), queue.group()
    message = held.messages[0]
    assert held.extend("60s", message).settled == 1
    assert group.extend(held, "60s", [message]).settled == 1
    [peeked, *_] = queue.peek(5)[3:]
    assert group.discard(peeked) == 1
    assert group.dead_letter([message], force=True) == 1


ARRAYS: dict[str, Callable[[list[int]], Any]] = {
    "numpy": lambda given: np.array(given, np.int64),
    "unsigned": lambda given: np.array(given, np.uint64),
    "scalars": lambda given: [np.int64(one) for one in given],
    "arrow": pa.array,
    "chunks": lambda given: pa.chunked_array([given[:1], given[1:]]),
    "arrow scalars": lambda given: list(pa.array(given)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_of_integers_name_messages(queue: Queue, array: Callable[[list[int]], Any]) -> None:
    sequences = queue.publish(["a", "b", "c", "d"]).sequences
    held = queue.group().lease("w", sequences=array(list(sequences[:3])))
    assert held.ack(array([sequences[0]])).settled == 1
    assert queue.group().ack(held.lease_id, array(list(sequences[1:3]))).settled == 2
    assert queue.group().discard(array([sequences[3]])) == 1
    assert queue.group().stats().unsettled == 0


@pytest.mark.parametrize(
    "given",
    [
        np.array([True, False]), [np.bool_(True)], pa.array([True]), np.array([1.0]), np.array(5),
        np.array([[0, 1]]), np.array([2**63], np.uint64), pa.array([None], pa.int64()), np.int64(0),
    ],
)  # fmt: skip
def test_other_values_are_no_sequences(queue: Queue, given: Any) -> None:
    held = leased(queue, "a", "b")
    with pytest.raises(InvalidOption, match="sequence"):
        held.ack(given)
    assert queue.group().stats().leased == 2


def test_a_handler_returns_rows_with_integers_of_numpy(queue: Queue) -> None:
    queue.publish(["a", "b"])

    def handler(held: Any) -> list[dict[str, Any]]:
        rows = np.array([message.sequence for message in held.messages])
        return [{"sequence": rows[0], "outcome": "reject", "delay": None, "error": "no"}]

    queue.group().work(handler, mode="batch", max_messages=np.int64(2), until="empty")
    stats = queue.group().stats()
    assert (stats.dead, stats.acked) == (1, 1)


@pytest.mark.parametrize("three", [np.int64(3), np.uint8(3), pa.scalar(3), np.array(3)])
def test_numbers_of_numpy_and_arrow_are_numbers(queue: Queue, three: Any) -> None:
    receipt = queue.publish([Message("a", priority=three), "b", "c", Message("d", priority=three)])
    assert receipt.sequence_of(three) == receipt.sequences[3]
    held = queue.group().lease("w", max_messages=three, visibility_timeout=three)
    priorities = {message.sequence: message.priority for message in held.messages}
    assert [priorities[receipt.sequences[at]] for at in (0, 3)] == [3, 3]
    other = queue.group("other")
    assert len(other.lease("w", max_messages=9, max_bytes=three)) == 1
    assert type(other.configure(max_in_flight=three).max_in_flight) is int
    assert other.configure(retry_jitter=np.float32(0.5)).retry_jitter == 0.5
    assert queue.redrive(rate=three).messages == 0


def test_a_text_without_a_utf8_form_names_no_message(queue: Queue) -> None:
    """Such as a wrong byte of a command line. No message can have it."""
    queue.publish([Message("a", key="k", message_id="id")])
    group, name = queue.group().ensure(), "\udcff"
    for change in (group.retry_now, group.discard, group.dead_letter):
        for given in ({"key": name}, {"message_id": [name]}):
            with pytest.raises(InvalidOption, match="no message with it"):
                change(**given)


def test_errors_show_no_payload_and_stay_short(queue: Queue) -> None:
    held, group = leased(queue, Message(SECRET, headers={"h": SECRET})), queue.group()
    message = held.messages[0]
    calls: list[Callable[[], Any]] = [
        lambda: held.ack(message.value),
        lambda: held.ack([SECRET]),
        lambda: held.ack(held.table()),
        lambda: group.ack(message),
        lambda: group.discard(key=message),
        lambda: group.lease("w", max_messages=message),
        lambda: queue.publish(Message("a", priority=message)),
    ]
    for call in calls:
        with pytest.raises(InvalidOption) as caught:
            call()
        assert len(str(caught.value)) < 1_000
        assert "payload of" not in str(caught.value)


def test_every_error_is_short() -> None:
    error = errors.QueueNotFound(f"there is no queue {SECRET}", path="q")
    assert len(str(error)) <= 10_000
    assert str(error).endswith("(2000029 characters)")
