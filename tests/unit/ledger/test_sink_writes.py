"""The names of a group's writes into its sink."""

from __future__ import annotations

from spark_mq.ledger.ranges import AVAILABLE, DEAD, LEASED, Ledger, LedgerHeader, Range
from spark_mq.ledger.sink_writes import (
    SinkWrite,
    next_write,
    parse_writes,
    with_write,
    without_last_write,
)


def range_of(state: str, first: int, writes: str | None) -> Range:
    return Range(first, first, state, 1, lease_id="x", sink_writes=writes)


def test_writes_are_kept_oldest_first() -> None:
    r = range_of(LEASED, 0, None)
    assert parse_writes(None) == ()
    for write in (SinkWrite(0, 5), SinkWrite(2, 9)):
        r = r._replace(sink_writes=with_write(r, write))
    assert r.sink_writes == "0:5 2:9"
    assert parse_writes(r.sink_writes) == (SinkWrite(0, 5), SinkWrite(2, 9))
    assert without_last_write(r) == "0:5"
    assert without_last_write(r._replace(sink_writes="0:5")) is None
    assert without_last_write(r._replace(sink_writes=None)) is None


def test_a_writer_is_free_once_no_unsettled_message_names_it() -> None:
    assert next_write(Ledger(LedgerHeader()), 7) == SinkWrite(0, 7)
    used = [range_of(LEASED, 0, "0:5 2:9"), range_of(AVAILABLE, 1, "1:8"), range_of(DEAD, 2, "3:4")]
    ledger = Ledger.from_ranges(LedgerHeader(last_sink_write=9), used)
    assert next_write(ledger, 100).writer == 4
    ledger = Ledger.from_ranges(LedgerHeader(last_sink_write=9), used[:1])
    assert next_write(ledger, 100) == SinkWrite(1, 100)


def test_numbers_grow_though_the_clock_steps_back() -> None:
    assert next_write(Ledger(LedgerHeader(last_sink_write=50)), 7) == SinkWrite(0, 51)
