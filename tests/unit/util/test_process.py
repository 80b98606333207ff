"""Work during which the cyclic garbage collector rests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from spark_mq.util.process import without_collections


@pytest.fixture(autouse=True)
def _enabled_again() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_during_the_work_and_is_then_as_it_was(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    assert without_collections(gc.isenabled) is False
    assert gc.isenabled() == enabled
    with pytest.raises(ZeroDivisionError):
        without_collections(lambda: 1 // 0)
    assert gc.isenabled() == enabled
