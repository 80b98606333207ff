"""Settles during which the cyclic garbage collector rests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from support.handles import leased
from support.rule_variants import first, rule_variant

from spark_mq.testing import memory_queue


@pytest.fixture(autouse=True)
def _enabled_again() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_during_the_work_and_is_then_as_it_was(enabled: bool) -> None:
    lease = leased(memory_queue(), "a")
    if not enabled:
        gc.disable()
    rests = rule_variant("settle_all", first(lambda _: 1 // gc.isenabled()))
    with rests, pytest.raises(ZeroDivisionError):
        lease.ack()
    assert gc.isenabled() == enabled
    lease.ack()
    assert gc.isenabled() == enabled
