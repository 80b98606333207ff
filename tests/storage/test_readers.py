"""Readers that know nothing of spark_mq read each table of a queue, and find what happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.delta_readers import LARGE_LEDGER, ODD_GROUP, TABLES, by_protocol, make_tables, normal

from spark_mq import Queue


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return make_tables(tmp_path_factory.mktemp("tables") / "queue")


def read(queue: Queue, name: str) -> pa.Table:
    return DeltaTable(Path(queue.path, name)).to_pyarrow_table()


@pytest.mark.parametrize("name", TABLES)
def test_delta_rs_and_plain_pyarrow_read_the_same_rows(queue: Queue, name: str) -> None:
    rows = normal(read(queue, name))
    assert rows
    assert rows == normal(by_protocol(Path(queue.path, name)))


def test_the_rows_that_a_reader_finds_are_what_happened(queue: Queue) -> None:
    values = read(queue, "messages")["value"].to_pylist()
    assert len(values) == 2 * LARGE_LEDGER + 3
    assert {b"0", b"\x00\xff", b"late", b"after the sweep"} <= set(values)

    held = Counter[tuple[str, str]]()
    for row in read(queue, "leases").to_pylist():
        held[row["consumer_group"], row["state"]] += row["message_count"]
    assert held["large", "available"] == LARGE_LEDGER
    assert held["large", "leased"] == queue.group("large").stats().leased == LARGE_LEDGER
    assert held[ODD_GROUP, "leased"] == queue.group(ODD_GROUP).stats().leased == 2

    history = read(queue, "history").to_pylist()
    events = Counter((row["event"], row["error"]) for row in history if row["event"])
    assert events["rejected", "bad"] == 1
    assert events["nacked", "no luck"] == LARGE_LEDGER

    files = [row for row in read(queue, "commits").to_pylist() if row["kind"] == "publish"]
    assert sum(row["rows"] for row in files) == 2 * LARGE_LEDGER + 2, "one came after the sweep"

    (letter,) = read(queue, "dead_letters/messages").to_pylist()
    assert letter["value"] == b"0"
    assert dict(letter["headers"])["spark_mq.error"] == "bad"
