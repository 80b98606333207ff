"""What for_each_batch does besides settling, without Spark: the batch is a list of columns, its lease is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq import Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark.batch_lease import Found
from spark_mq.testing import memory_queue

BATCH: Any = SimpleNamespace(columns=["lease_id", "sequence"])


@pytest.fixture
def queue() -> Queue:
    return memory_queue(clock_skew=0, retry_delay="10s")


def test_a_function_of_the_wrong_signature_is_refused_before_any_batch_comes(queue: Queue) -> None:
    wrong: Any = lambda batch: None  # noqa: E731
    with pytest.raises(InvalidOption, match=r"^process=.*process\(batch, lease\)"):
        queue.group().for_each_batch(wrong)


def test_the_log_tells_what_failed_and_what_has_become_of_it(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.publish(["a", "b"])
    taken = queue.group().lease("w", max_messages=2)
    assert taken is not None

    def fail(batch: Any, lease: Any) -> None:
        raise ValueError("boom")

    each: Any = queue.group().for_each_batch(fail)
    each._finder = SimpleNamespace(find=lambda batch: Found([taken.lease_id], True))
    each(BATCH, 0)
    first, second = (r.getMessage() for r in caplog.records if r.levelname in ("ERROR", "WARNING"))
    lease_id = taken.lease_id
    assert first == f"group default: a batch failed with 2 messages in hand (delivery 1 of 5); its lease {lease_id} is nacked"
    assert second.startswith("group default: 2 messages nacked: 2 due again from ")
    assert caplog.records[0].exc_info is not None
