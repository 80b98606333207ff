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


def test_an_empty_list_repeats_a_number_as_others_do(queue: Queue) -> None:
    number: dict[str, Any] = {"producer_id": "p", "producer_sequence": 1}
    first = queue.publish(["a"], **number)
    with pytest.raises(DuplicatePublish) as caught:
        queue.publish([], **number)
    assert caught.value.data["receipt"] == first
    repeated = queue.publish([], on_duplicate="skip", **number)
    assert (repeated.duplicate, repeated.sequences) == (True, first.sequences)
    assert repeated.published == 0


def test_duplicates_are_not_counted_as_published(make: Any) -> None:
    queue = make(dedup_window="1h")
    one, two = Message("a", dedup_id="1"), Message("b", dedup_id="2")
    assert queue.publish([one]).published == 1
    assert queue.publish([one, two]).published == 1
    assert queue.publish([one, two]).published == 0
