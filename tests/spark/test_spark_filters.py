"""A stream of a group with a filter."""

from __future__ import annotations

from typing import Any

from support.harness import Stream

from spark_mq import Message, Queue


def test_a_stream_sees_only_the_rows_that_match(stream: Stream, queue: Queue) -> None:
    group = queue.group("g")
    group.configure(filter={"key_prefix": "eu-", "header": {"tier": ["gold", "silver"]}})
    tiers = ("gold", "tin", "silver")
    keys = [f"{'eu' if n % 2 else 'us'}-{n}" for n in range(60)]
    for at in range(0, 60, 20):
        queue.publish(
            [Message(key, key=key, headers={"tier": tiers[at // 20]}) for key in keys[at : at + 20]]
        )
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(row.key for row in batch.select("key").collect())

    stream.settle_with(process)
    wanted = [key for n, key in enumerate(keys) if n % 2 and n // 20 != 1]
    assert sorted(seen) == sorted(wanted)
    stats = group.stats()
    assert (stats.acked, stats.skipped, stats.ready) == (20, 40, 0)


def test_a_stream_skips_what_is_redriven_for_another_group(stream: Stream, queue: Queue) -> None:
    queue.publish([Message(str(n)) for n in range(4)])
    mail = queue.group("mail").lease("w", max_messages=4)
    mail.reject()
    queue.sweep()
    assert queue.redrive().groups == {"mail": 4}
    queue.publish("last")
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(bytes(row.value).decode() for row in batch.select("value").collect())

    stream.settle_with(process)
    assert sorted(seen) == ["0", "1", "2", "3", "last"]
    stats = queue.group("g").stats()
    assert (stats.acked, stats.skipped, stats.ready) == (5, 4, 0)
