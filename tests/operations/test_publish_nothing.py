"""Publish an empty list: nothing changes, and the receipt shows it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_mq import Message, Queue
from spark_mq.errors import DuplicatePublish

EMPTY = pa.table({"value": pa.array([], pa.string())})


@pytest.mark.parametrize("nothing", [[], (), iter(()), EMPTY])
def test_an_empty_list_publishes_nothing(queue: Queue, nothing: Any) -> None:
    queue.publish("a")
    before = queue.stats()
    receipt = queue.publish(nothing, deliver_at="5s")
    assert (receipt.published, receipt.version, receipt.duplicate) == (0, None, False)
    assert list(receipt.sequences) == []
    assert queue.stats() == before, "no commit"
    assert queue.publish(["b", "c"]).published == 2


def test_an_empty_list_uses_up_no_number(queue: Queue) -> None:
    def publish(messages: list[str], number: int, on_duplicate: str = "raise") -> Any:
        return queue.publish(
            messages, producer_id="p", producer_sequence=number, on_duplicate=on_duplicate
        )

    assert publish([], 1).published == 0
    assert queue.last_producer_sequence("p") is None
    first = publish(["a"], 1)
    assert first.published == 1
    with pytest.raises(DuplicatePublish) as caught:
        publish([], 1)
    assert caught.value.data["receipt"] == first
    repeated = publish([], 1, "skip")
    assert (repeated.duplicate, repeated.sequences) == (True, first.sequences)
    assert repeated.published == 0
    assert not publish([], 2).duplicate
    assert queue.last_producer_sequence("p") == 1


def test_duplicates_are_not_counted_as_published(make: Any) -> None:
    queue = make(dedup_window="1h")
    one, two = Message("a", dedup_id="1"), Message("b", dedup_id="2")
    assert queue.publish([one]).published == 1
    assert queue.publish([one, two]).published == 1
    assert queue.publish([one, two]).published == 0
