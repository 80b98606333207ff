"""The triggers, in this process."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import VERBS, ByteStore, Call

from spark_mq import Queue
from spark_mq.errors import InvalidOption, StorageError


def test_the_trigger_of_the_sensor_fires_once_messages_are_due_and_leases_none(
    queue: Queue,
) -> None:
    from spark_mq.integrations.airflow.triggers import MessagesDueTrigger

    async def fire() -> object:
        _, stored = MessagesDueTrigger(path=queue.path, group="g", poll_interval=0.05).serialize()
        events = MessagesDueTrigger(**stored).run()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        queue.publish(["a", "b"])
        return (await asyncio.wait_for(waiting, 30)).payload

    assert asyncio.run(fire()) == {"ready": 2}
    assert queue.group("g").stats().leased == 0


def test_the_trigger_of_the_sensor_fails_at_once_if_the_store_refuses_it(
    queue: Queue, byte_store: ByteStore
) -> None:
    from spark_mq.integrations.airflow.triggers import MessagesDueTrigger

    def refuse(call: Call) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", call.path)

    byte_store.on(*VERBS, act=refuse)
    events = MessagesDueTrigger(path=queue.path, group="new").run()
    with pytest.raises(StorageError, match="refuses access"):
        asyncio.run(asyncio.wait_for(anext(events), 30))


def test_a_watcher_blocks_no_loop_and_acks_only_what_airflow_has_stored(
    queue: Queue, byte_store: ByteStore
) -> None:
    from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

    from spark_mq.integrations.airflow.triggers import MessageTrigger

    group = queue.group("g").ensure()
    queue.publish(["Zoë", b"\xff", b"a\0"])
    _, stored = MessageTrigger(path=queue.path, group="g", poll_interval=0.05).serialize()

    async def drive() -> None:
        loop = asyncio.get_running_loop()

        def wait_for_loop(call: Call) -> Any:
            turned = threading.Event()
            if loop.is_running():
                loop.call_soon_threadsafe(turned.set)
                assert turned.wait(30), f"the loop waits for {call.verb} {call.path}"
            return call.run()

        byte_store.on(*VERBS, act=wait_for_loop)
        producer = MessageTrigger.create_shared_stream_producer(stored)
        stream = producer.open_stream()
        items = [await anext(stream) for _ in range(3)]
        assert [one.get("value") for one, _ in items] == ["Zoë", None, None]
        assert [one.get("value_base64") for one, _ in items] == [None, "/w==", "YQA="]
        stats = await asyncio.to_thread(group.stats)
        assert (stats.leased, stats.acked) == (3, 0)
        outcomes = [AdvanceOutcome(acked=1, failed=0, rejected=0),
                    AdvanceOutcome(acked=0, failed=1, rejected=0)]  # fmt: skip
        done = [AdvanceItem(payload, outcome)
                for (_, payload), outcome in zip(items[:2], outcomes, strict=True)]  # fmt: skip
        await producer.advance(done)
        await producer.aclose()  # with an event that nobody has stored
        stats = await asyncio.to_thread(group.stats)
        assert (stats.leased, stats.acked, stats.ready) == (0, 1, 2)

    asyncio.run(drive())
    lease = group.lease("w", max_messages=3)
    assert [(m.value, m.delivery_count) for m in lease.messages] == [(b"\xff", 1), (b"a\0", 1)]


def test_what_names_no_queue_is_refused_and_a_path_becomes_text(queue: Queue) -> None:
    from spark_mq.integrations.airflow.operators import SweepOperator
    from spark_mq.integrations.airflow.sensors import MessageSensor
    from spark_mq.integrations.airflow.triggers import MessagesDueTrigger, MessageTrigger

    for make in (
        lambda **place: MessageTrigger(group="g", **place),
        lambda **place: MessagesDueTrigger(group="g", **place),
        lambda **place: MessageSensor(task_id="t", group="g", **place),
        lambda **place: SweepOperator(task_id="t", **place),
    ):
        with pytest.raises(InvalidOption, match="path=None names no queue"):
            make()
        made = make(path=Path(queue.path))
        place = made.serialize()[1] if hasattr(made, "serialize") else vars(made)
        assert place["path"] == queue.path
