"""Work during which the cyclic garbage collector rests."""

from __future__ import annotations

import gc

import pytest

from spark_mq.util.process import without_collections


def test_the_collector_rests_during_the_work_and_goes_on_after_it():
    assert gc.isenabled()
    assert without_collections(gc.isenabled) is False
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error():
    with pytest.raises(ZeroDivisionError):
        without_collections(lambda: 1 // 0)
    assert gc.isenabled()


def test_a_collector_that_its_owner_has_switched_off_stays_off():
    gc.disable()
    try:
        without_collections(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()
