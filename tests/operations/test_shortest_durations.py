"""A duration that would end messages without a call, or lose them, is refused at the door."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq.errors import InvalidOption
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.testing import memory_queue
from spark_mq.util.setting_fields import Kind, settings_of
from spark_mq.util.validation import SHORTEST

# What may be as short as one likes, because it ends no message and loses none.
HARMLESS = {"retry_delay", "max_retry_delay", "clock_skew", "rate_burst", "delivery_delay",
            "retention"}  # fmt: skip


def durations() -> dict[str, Kind[Any]]:
    both = {**settings_of(GroupSettings), **settings_of(QueueSettings)}
    return {name: one.kind for name, one in both.items() if one.kind.accepts == "Duration"}


def test_each_duration_has_a_bound_or_is_harmless() -> None:
    assert {name for name in durations() if name not in SHORTEST} == HARMLESS


@pytest.mark.parametrize("name", sorted(durations().keys() - HARMLESS))
def test_a_setting_that_is_too_short_is_refused(name: str) -> None:
    least = SHORTEST[name]
    with pytest.raises(InvalidOption) as caught:
        memory_queue(**{name: "1ms"})
    assert str(caught.value) == f"{name}='1ms' is too short: give {least} or more"
    assert (caught.value.option, caught.value.value) == (name, "1ms")
    memory_queue(**{name: least})


def test_a_queue_with_a_shorter_setting_of_an_older_version_is_read() -> None:
    stored = {"visibility_timeout": 1_000}
    assert GroupSettings.decoded(stored).visibility_timeout.total_seconds() == 0.001
