"""A queue's own settings, changed while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from support.handles import again, leased, trim
from support.queues import Make
from support.tables import messages_of

from spark_mq import Queue
from spark_mq.testing import ManualClock

DAY = timedelta(days=1)


def test_a_change_is_stored_and_the_rest_stays(make: Make) -> None:
    queue = make(retention="2d", message_ttl="5d", max_in_flight=3)
    before = queue.settings
    after = queue.configure(retention="3d", delivery_delay="1m", message_ttl=None)
    expected = replace(
        before, retention=3 * DAY, delivery_delay=timedelta(minutes=1), message_ttl=None
    )
    assert after == queue.settings == again(queue).settings == expected


LOOKS: dict[str, Callable[[Queue], object]] = {
    "publish": lambda queue: queue.publish("early"),
    "stats": Queue.stats,
    "lease": lambda queue: queue.group().lease("w"),
    "describe": Queue.describe,
}


@pytest.mark.parametrize("look", LOOKS)
def test_each_look_sees_the_change(queue: Queue, look: str) -> None:
    other, group = again(queue), queue.group().ensure()
    other.stats()
    queue.configure(delivery_delay="1h")
    LOOKS[look](other)
    assert other.settings.delivery_delay == timedelta(hours=1)
    other.publish("late")
    assert group.peek()[-1].state == "delayed"


def test_a_longer_retention_keeps_what_another_handle_would_trim(
    make: Make, clock: ManualClock
) -> None:
    queue = make(retention="1h")
    other = again(queue)
    leased(queue, "a").ack()
    clock.advance("2h")
    queue.configure(retention="1d")
    assert trim(other) == 0
    queue.configure(retention=0)
    assert trim(other) == 1


def test_an_unchanged_setting_makes_no_commit(make: Make) -> None:
    queue = make(retention="2d")
    version = messages_of(queue).index().version
    queue.configure(retention="2d")
    queue.configure()
    assert messages_of(queue).index().version == version


def test_changes_at_once_are_all_kept(make: Make) -> None:
    queue = make(delivery_delay="2d")
    first, second = again(queue), again(queue)
    first.stats()
    second.stats()
    first.configure(retention="1d", delivery_delay=None)
    second.configure(message_ttl="2d")  # refused with the delay that it knows
    settings = again(queue).settings
    assert (settings.retention, settings.message_ttl) == (DAY, 2 * DAY)
