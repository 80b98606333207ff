"""Data files have small row groups, so that a lease reads little more than its messages."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_mq.delta.object_store import ObjectStore
from spark_mq.parquet.writer import ROW_GROUP_BYTES, ROW_GROUP_ROWS, write_file


@pytest.mark.parametrize("size", [0, 20, 1_000, 10_000, 300_000])
def test_row_groups_are_small(tmp_path: Path, size: int) -> None:
    rows = min(30_000, 6_000_000 // (size or 1))
    values = [n.to_bytes(4, "little") * (size // 4) for n in range(rows)]
    ids = [f"{n:036}" for n in range(rows)]
    written = write_file(
        ObjectStore(str(tmp_path)),
        pa.table({"value": pa.array(values, pa.binary()), "message_id": ids}),
    )
    file = pq.ParquetFile(tmp_path / written.path)
    counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert sum(counts) == rows
    assert max(counts) <= ROW_GROUP_ROWS
    most = ROW_GROUP_BYTES // (3 if size > 64 * 1_024 else 1)
    assert max(counts) * size <= most + size
    assert len(counts) <= 2 * max(-(-rows // ROW_GROUP_ROWS), -(-rows * size // most))
    assert file.read(columns=["value"])["value"].to_pylist() == values


def test_a_file_of_no_messages_can_be_written(tmp_path: Path) -> None:
    written = write_file(ObjectStore(str(tmp_path)), pa.table({"value": pa.array([], pa.binary())}))
    assert (written.rows, written.timed) == (0, False)
    assert pq.ParquetFile(tmp_path / written.path).metadata.num_rows == 0


def test_a_large_value_is_not_copied_to_see_whether_it_shrinks(tmp_path: Path) -> None:
    """It was copied six times for that, so a publish of 1 GB took 9 GB."""
    table = pa.table({"value": pa.array([random.Random(7).randbytes(2**25)], pa.binary())})
    tracemalloc.start()
    try:
        written = write_file(ObjectStore(str(tmp_path), durable=False), table)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written.size > 2**25
    assert peak < 2.5 * 2**25, "the bytes of the file, and little more"


def test_statistics_say_which_files_have_times(tmp_path: Path) -> None:
    instants = pa.array([None, 1], pa.timestamp("us", "UTC"))
    plain = write_file(
        ObjectStore(str(tmp_path)),
        pa.table({"value": [b"a", b"b"], "deliver_at": pa.nulls(2, instants.type)}),
    )
    timed = write_file(
        ObjectStore(str(tmp_path)), pa.table({"value": [b"a", b"b"], "expires_at": instants})
    )
    assert (
        plain.stats
        == '{"numRecords": 2, "nullCount": {"deliver_at": 2, "expires_at": 2, "priority": 2}}'
    )
    assert timed.stats == '{"numRecords": 2, "nullCount": {"priority": 2}}'
