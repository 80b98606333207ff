"""Publishing: what a producer that repeats itself gets, and the times that a queue gives its
messages.
"""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.handles import again, lease, on_commit, take
from support.queues import Make
from support.rule_variants import gets, rule_variant
from support.tables import context_of, group_ledger_of, messages_of

from spark_mq import Message, Queue, QueueSettings, errors
from spark_mq.errors import DuplicatePublish
from spark_mq.testing import ManualClock


def duplicate(queue: Queue, number: int, producer: str = "p") -> DuplicatePublish:
    """The error that a repeated publish ends with."""
    with pytest.raises(DuplicatePublish) as caught:
        queue.publish("again", producer_id=producer, producer_sequence=number)
    return caught.value


def payloads(queue: Queue) -> list[bytes]:
    return [m.value for m in lease(queue, 1000, group="look").messages]


# -- idempotence


def test_a_repeat_is_reported_the_latest_number_and_the_receipt_of_that(queue: Queue) -> None:
    first = queue.publish(["a", "b"], producer_id="p", producer_sequence=7)
    queue.publish("between", producer_id="q", producer_sequence=7)
    files = messages_of(queue).files.list("")
    for handle in (queue, again(queue)):
        for number, receipt in ((7, first), (6, None), (0, None)):
            reported = duplicate(handle, number)
            assert (reported.producer_id, reported.last_sequence) == ("p", 7)
            assert reported.receipt == receipt
    assert payloads(queue) == [b"a", b"b", b"between"]
    assert messages_of(queue).files.list("") == files, "no file is left behind"


def test_the_last_number_of_a_producer_can_be_asked_for(queue: Queue) -> None:
    assert queue.last_producer_sequence("p") is None
    for number in (0, 2**40):
        queue.publish("a", producer_id="p", producer_sequence=number)
        for handle in (queue, again(queue)):
            assert handle.last_producer_sequence("p") == number
    assert queue.last_producer_sequence("q") is None
    with pytest.raises(errors.InvalidOption, match="producer_id"):
        queue.last_producer_sequence("no such name!")


@pytest.mark.parametrize("nothing", [[], (), iter(()), pa.table({"value": pa.array([], "string")})])
def test_an_empty_list_publishes_nothing(queue: Queue, nothing: Any) -> None:
    queue.publish("a")
    before = queue.stats()
    receipt = queue.publish(nothing, deliver_at="5s")
    assert (receipt.published, receipt.version, receipt.duplicate) == (0, None, False)
    assert queue.stats() == before, "no commit"


def test_an_empty_list_repeats_a_number_as_others_do(queue: Queue) -> None:
    number: dict[str, Any] = {"producer_id": "p", "producer_sequence": 2**63 - 1}
    first = queue.publish(["a"], **number)
    with pytest.raises(DuplicatePublish) as caught:
        queue.publish([], **number)
    assert caught.value.data["receipt"] == first
    repeated = queue.publish([], on_duplicate="skip", **number)
    assert (repeated.duplicate, repeated.sequences) == (True, first.sequences)
    assert repeated.published == 0
    older = queue.publish("b", producer_id="p", producer_sequence=0, on_duplicate="skip")
    assert (older.duplicate, list(older.sequences)) == (True, [])


def test_a_call_that_publishes_nothing_uses_no_number_up(queue: Queue) -> None:
    for bad in ([1], "\ud800"):
        with pytest.raises(errors.InvalidOption):
            queue.publish(bad, producer_id="p", producer_sequence=1)
    assert queue.publish([], producer_id="p", producer_sequence=1).published == 0
    assert queue.last_producer_sequence("p") is None
    queue.publish("good", producer_id="p", producer_sequence=1)
    assert payloads(queue) == [b"good"]


def test_of_two_handles_that_race_with_one_number_one_lands_and_the_other_is_reported(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, landed = delta_queue(), []
    rival = again(queue)

    def win() -> None:
        landed.append(rival.publish(["theirs", "too"], producer_id="p", producer_sequence=1))

    on_commit(monkeypatch, "messages", before=win)
    error = duplicate(queue, 1)
    assert (error.last_sequence, error.receipt) == (1, landed[0])
    assert payloads(queue) == [b"theirs", b"too"]


# -- a queue's defaults for times


def test_a_queue_delays_what_has_no_time_of_its_own(make: Make, clock: ManualClock) -> None:
    queue = again(make(delivery_delay="1m"))
    queue.publish(["default", Message("own", deliver_at=clock() + timedelta(minutes=5))])
    queue.publish(pa.table({"value": ["table"]}))
    queue.publish("call", deliver_at=clock())
    clock.advance("1s")
    assert take(queue.group()) == ["call"]
    clock.advance("61s")
    assert take(queue.group()) == ["default", "table"]
    clock.advance("4m")
    assert take(queue.group()) == ["own"]


@pytest.mark.parametrize("now", [0, "0s", timedelta(0)], ids=repr)
def test_no_delay_is_no_wait(make: Make, clock: ManualClock, now: Any) -> None:
    clock.set(clock().replace(microsecond=700_000))
    queue = make(delivery_delay="1m")
    queue.publish("call", deliver_at=now)
    queue.publish([Message("own", deliver_at=now), Message("instant", deliver_at=clock()), "late"])
    instants = pa.array([clock()], pa.timestamp("us", "UTC"))
    queue.publish(pa.table({"value": ["table"], "deliver_at": instants}))
    with queue.publisher() as publisher:
        publisher.publish(Message("buffered", deliver_at=now))
    assert take(queue.group()) == ["call", "own", "instant", "table", "buffered"]


def test_a_queue_drops_what_was_not_leased_within_its_ttl(make: Make, clock: ManualClock) -> None:
    queue = again(make(message_ttl="1h"))
    queue.publish(["default", Message("own", expires_at=clock() + timedelta(hours=2))])
    clock.advance("61m")
    assert take(queue.group()) == ["own"]
    assert queue.group().stats().expired == 1


def test_a_queue_made_before_there_were_such_defaults_opens_without(delta_queue: Make) -> None:
    reported = json.loads(context_of(delta_queue(durable=True)).settings.to_json())
    for name in ("delivery_delay", "message_ttl", "hard_retention"):
        del reported[name]
    assert QueueSettings.from_json(json.dumps(reported)) == QueueSettings()


def test_what_goes_to_the_dead_letter_queue_and_back_has_no_time_of_its_own(
    make: Make, clock: ManualClock
) -> None:
    queue = make(delivery_delay="1m", message_ttl="1h")
    queue.publish("a")
    clock.advance("61s")
    lease(queue).reject()
    queue.sweep()
    clock.advance("1d")
    assert take(queue.dead_letters.group()) == ["a"]
    assert queue.redrive().messages == 1
    assert take(queue.group()) == ["a"]


# -- ids


@pytest.mark.parametrize("given", ["mine", None], ids=["given", "null"])
def test_a_message_keeps_its_first_id_through_the_dead_letter_queue_and_back(
    delta_queue: Make, given: str | None
) -> None:
    """Without one it has the id that it was first read with: its first sequence, in decimal."""
    queue = delta_queue()
    rows = pa.table({"value": [b"a"], "message_id": pa.array([given], pa.string())})
    write_deltalake(messages_of(queue).path, rows, mode="append", schema_mode="merge")
    (first,) = lease(queue).messages
    assert first.message_id == (given or str(first.sequence))
    for _ in range(2):
        queue.group().reject(group_ledger_of(queue.group()).current().ranges_at([0])[0].lease_id)
        queue.sweep()
        *_, letter = lease(queue.dead_letters, group="look").messages
        assert letter.message_id == first.message_id
        assert queue.redrive().messages == 1
        (back,) = lease(queue).messages
        assert (back.message_id, back.value) == (first.message_id, b"a")
        assert back.sequence > first.sequence


def ids_of(queue: Queue, count: int) -> list[str]:
    """The ids that messages get that are published without one."""
    queue.publish([b""] * count)
    return [message.message_id for message in lease(queue, count).messages]


@pytest.mark.parametrize("count", [1, 7, 16, 1_000])
def test_random_ids_are_uuid4_and_all_different(queue: Queue, count: int) -> None:
    """Also where they are made in several pieces."""
    with rule_variant("random_ids", gets(chunk=7)):
        texts = ids_of(queue, count)
    assert len(set(texts)) == count
    for text in texts:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


def test_all_random_digits_of_an_id_are_used(queue: Queue) -> None:
    """All but the version and two bits of the variant: 122 bits."""
    bits = [0, 0]
    for text in ids_of(queue, 400):
        number = uuid.UUID(text).int
        bits = [bits[0] | number, bits[1] | ~number & (1 << 128) - 1]
    assert (bits[0] & bits[1]).bit_count() == 122
