"""Later messages that replace earlier ones with their id, as long as nobody has leased these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from support.drivers import Runner, sequences
from support.handles import again, lease, notes, on_commit, take
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import as_in_a_store, context_of, messages_of

from spark_mq import Message, PublishReceipt, Queue
from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def queue(make: Make) -> Queue:
    queue = make(dedup_until="settled", dedup_replaces=True, retry_delay="10s")
    queue.group().ensure()
    return queue


def messages(texts: Iterable[str], **options: Any) -> list[Message]:
    """Messages whose id is the first letter of their text."""
    return [Message(text, dedup_id=text[0], **options) for text in texts]


def publish(queue: Queue, *texts: str, **options: Any) -> PublishReceipt:
    return queue.publish(messages(texts, **options))


def test_an_unread_message_is_replaced_and_history_says_so(queue: Queue) -> None:
    old, _ = publish(queue, "a1", "b1").sequences
    second = publish(again(queue), "a2")
    assert (second.published, second.duplicates, second.duplicate_of) == (1, (), {})
    assert second.replaces == {0: old}
    assert queue.group().stats().ready == 3, "no lease has looked yet"
    assert take(queue.group()) == ["b1", "a2"]
    assert queue.group().stats() == having(acked=2, skipped=1, ready=0, ledger_ranges=0)
    (event,) = (event for event in queue.trace(old).events if event.group == "default")
    assert (event.event, event.outcome) == ("replaced", "skipped")
    ends = queue.finished("default", outcome="skipped")
    assert [row["sequence"] for row in ends.to_pylist()] == [old]
    (note,) = (one for one in notes(queue) if "replace" in one["operation"])
    assert (note["operation"], note["messages"]) == ("replace+lease", 3)


def test_a_lease_that_names_a_replaced_message_skips_it(queue: Queue) -> None:
    sequences = [*publish(queue, "a1", "b1").sequences, *publish(queue, "a2").sequences]
    group = queue.group()
    assert group.lease("w", sequences=sequences[:1]) is None
    assert group.stats().skipped == 1
    assert take(queue.group()) == ["b1", "a2"]


def test_an_id_whose_window_has_passed_replaces_nobody(make: Make, clock: ManualClock) -> None:
    queue = make(dedup_window="10s", dedup_replaces=True)
    queue.group().ensure()
    publish(queue, "a1")
    clock.advance("20s")
    assert publish(queue, "a2").replaces == {}
    assert publish(queue, "a3").replaces
    assert take(queue.group()) == ["a1", "a3"]


def test_with_until_leased_it_counts_until_the_first_lease(make: Make) -> None:
    queue = make(dedup_until="leased", dedup_replaces=True)
    group, other = queue.group().ensure(), queue.group("other").ensure()
    publish(queue, "a1")
    assert publish(queue, "a2").replaces
    assert take(group) == ["a2"]
    assert not publish(queue, "a3").replaces
    assert take(other) == ["a2", "a3"]


def test_tables_and_publishers_replace_too(queue: Queue) -> None:
    old = publish(queue, "a1", "b1").sequences
    receipt = queue.publish(pa.table({"value": ["a2"], "dedup_id": ["a"]}))
    assert receipt.replaces == {0: old[0]}
    with queue.publisher(linger="1h") as publisher:
        pending = [publisher.publish(message) for message in messages(["b2", "b3", "c1"])]
        publisher.flush()
        assert [message.replaces() for message in pending] == [None, old[1], None]
        assert pending[0].duplicate_of() == pending[1].result()
    assert take(queue.group()) == ["a2", "b3", "c1"]


def test_a_repeated_call_gets_the_receipt_of_the_first(queue: Queue) -> None:
    given = messages(["a1", "b1", "a2"])
    number = {"producer_id": "p", "producer_sequence": 1, "on_duplicate": "skip"}
    first = queue.publish(given, **number)
    for handle in (queue, again(queue)):
        repeated = handle.publish(given, **number)
        assert repeated.duplicate
        assert repeated.sequences == first.sequences
        assert repeated.duplicate_of == first.duplicate_of


def test_a_rival_that_comes_between_check_and_commit_is_replaced(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = delta_queue(dedup_window="1h", dedup_replaces=True)
    queue.group().ensure()
    rival, receipts = again(queue), list[PublishReceipt]()
    on_commit(monkeypatch, "messages", before=lambda: receipts.append(publish(rival, "a1")))
    receipt = publish(queue, "a2")
    assert receipt.replaces == {0: receipts[0].sequences[0]}
    assert take(again(queue).group()) == ["a2"]


def test_over_a_store_leases_see_the_newest_publishes(delta_queue: Make, limits: Limits) -> None:
    limits(recent_seconds=1_000.0)
    queue = delta_queue(dedup_window="1h", dedup_replaces=True)
    worker = as_in_a_store(again(queue))
    publish(queue, "a1", "b1", "c1")
    assert take(worker.group(), 1) == ["a1"]
    publish(queue, "b2")
    assert take(worker.group(), 1) == ["c1"]
    stream = Runner(worker)
    assert stream.offer()
    (newest,) = publish(queue, "b3").sequences
    assert sequences(stream.plan())[-1] == newest


def test_more_replaced_files_than_one_lease_may_skip(queue: Queue, limits: Limits) -> None:
    limits(filtered_files=3, filtered_pieces=20)
    for n in range(20):
        publish(queue, f"a{n}", f"b{n}")
    assert take(queue.group()) == ["a19", "b19"]
    assert queue.group().stats().skipped == 38


def test_a_message_that_was_leased_is_not_replaced(queue: Queue) -> None:
    publish(queue, "a1")
    lease(queue).nack(delay=0)
    publish(queue, "a2")
    assert take(queue.group()) == ["a1", "a2"]


def test_a_seek_back_and_a_new_group_deliver_the_last_only(queue: Queue) -> None:
    publish(queue, "a1")
    held = lease(queue)
    publish(queue, "a2")
    held.ack()
    assert take(queue.group()) == ["a2"]
    queue.group().seek("earliest")
    for group in (queue.group(), queue.group("new")):
        assert take(group) == ["a2"]


def test_a_queue_that_replaces_keeps_ids_that_count() -> None:
    queue = memory_queue(dedup_window="1h", dedup_replaces=True)
    with pytest.raises(InvalidOption, match="dedup_replaces"):
        queue.configure(dedup_window=None)
    queue.configure(dedup_window=None, dedup_until="leased")
    assert context_of(again(queue)).settings.dedup_replaces


def test_a_publish_that_replaces_too_many_scattered_messages_is_refused(
    queue: Queue, limits: Limits
) -> None:
    """Its commit would have a tag without a bound."""
    for letter in "abcdefghijkl":
        publish(queue, f"{letter}1")
        queue.publish("between")
    limits(replaced_bytes=100)
    before = messages_of(queue).log.refresh().version, messages_of(queue).files.list("")
    later = [f"{letter}2" for letter in "abcdefghijkl"]
    with pytest.raises(SparkMQError, match=r"replaces 12 messages .* in 3 parts, of about 4 "):
        publish(queue, *later)
    after = messages_of(queue).log.refresh().version, messages_of(queue).files.list("")
    assert after == before, "nothing is left behind"
    for first in range(0, len(later), 4):
        publish(queue, *later[first : first + 4])
    assert [text for text in take(queue.group()) if text != "between"] == later
