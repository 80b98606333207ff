"""SQL over a queue without Spark: the views agree with what Python shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.rule_variants import first, rule_variant

from spark_mq import Message, Queue, StorageError
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def queue() -> Queue:
    queue = memory_queue(ManualClock())
    queue.publish(
        [Message(f'{{"n": {n}}}', key=f"k{n % 2}", message_id=f"id-{n}") for n in range(9)]
    )
    for name in ("audit", "billing"):
        queue.group(name).ensure()
    lease = queue.group("billing").lease("w", max_messages=4)
    lease.ack([lease.messages[0].sequence])
    lease.reject([lease.messages[1].sequence], error="bad")
    lease.nack([lease.messages[2].sequence], error="later", delay="1h")
    queue.sweep()
    return queue


def test_states_agree_with_the_statistics(queue: Queue) -> None:
    rows = queue.sql("SELECT consumer_group, state, count(*) AS n FROM messages GROUP BY ALL")
    counts = Counter({(r["consumer_group"], r["state"]): r["n"] for r in rows.to_pylist()})
    for name in ("audit", "billing"):
        stats = queue.group(name).stats()
        for state in ("ready", "delayed", "leased", "dead", "blocked"):
            assert counts[name, state] == getattr(stats, state), (name, state)
    assert counts["billing", "settled"] == 2
    assert counts.total() == 18
    ranges = queue.sql("SELECT consumer_group, state, sum(messages) AS n FROM ranges GROUP BY ALL")
    assert (
        Counter({(r["consumer_group"], r["state"]): r["n"] for r in ranges.to_pylist()}) == counts
    )


def test_views_have_payloads_letters_and_history(queue: Queue) -> None:
    (row,) = queue.sql(
        "SELECT message_id, value->>'$.n' AS n, worker_id FROM messages WHERE state = 'leased'"
    ).to_pylist()
    assert row == {"message_id": "id-3", "n": "3", "worker_id": "w"}
    assert queue.sql("SELECT error, bytes FROM letters").to_pylist() == [
        {"error": "bad", "bytes": b'{"n": 1}'}
    ]
    outcomes = queue.sql("SELECT DISTINCT outcome FROM history WHERE outcome IS NOT NULL")
    assert "acked" in outcomes["outcome"].to_pylist()
    twice = "SELECT count(*) AS n FROM messages a JOIN messages b USING (sequence, consumer_group)"
    assert queue.sql(twice).to_pylist() == [{"n": 18}]
    assert len(queue.sql("SELECT * FROM messages")) == 18
    assert len(queue.sql("WITH m AS (SELECT key FROM messages) SELECT DISTINCT key FROM m")) == 2


def test_a_query_reads_only_the_columns_that_it_names(queue: Queue) -> None:
    read: list[Any] = []
    with rule_variant("MessageReader.__init__", first(lambda a: read.append(a.columns))):
        assert queue.sql("SELECT count(*) AS n FROM messages").to_pylist() == [{"n": 18}]
        assert read == []
        queue.sql("SELECT key, count(*) FROM messages WHERE state <> 'dead' GROUP BY key")
        queue.sql("SELECT octet_length(bytes) FROM messages")
    assert read == [["key"], ["value"]]


def test_a_store_that_fails_is_named(queue: Queue) -> None:
    def fail(*_: Any) -> Any:
        raise StorageError("the disk is gone")

    fails = rule_variant("MessageReader.read", lambda _: fail)
    with fails, pytest.raises(StorageError, match="the disk is gone"):
        queue.sql("SELECT key FROM messages")
