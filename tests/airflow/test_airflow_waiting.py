"""The trigger of the sensor, in this process."""

from __future__ import annotations

import asyncio

from spark_mq import Queue


def test_the_trigger_of_the_sensor_fires_once_messages_are_due_and_leases_none(
    queue: Queue,
) -> None:
    from spark_mq.airflow.triggers import MessagesDueTrigger

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
