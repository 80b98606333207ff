"""The footers that a process keeps: bounded, and never those of another file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.handles import memory_store
from support.tables import parquet_bytes

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.files import Footer, footers, read_footer
from spark_mq.parquet.reader import MessageReader

PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}


@pytest.fixture(autouse=True)
def _no_footers() -> Iterator[None]:
    """Begin and end with none kept."""
    footers.reset()
    yield
    footers.reset()


def footer(columns: int = 1, note: str = "") -> Footer:
    rows = pa.table({f"value{number}": [b"x"] for number in range(columns)})
    data = parquet_bytes(rows.replace_schema_metadata({"note": note}))
    return Footer(pq.ParquetFile(pa.BufferReader(data)))


def write(folder: Path, *values: bytes) -> None:
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), folder / "f", **PLAIN)


def read(folder: Path, rows: int) -> list[bytes]:
    reader = MessageReader(ObjectStore(str(folder)), ["value"])
    return reader.read(FileSlice("f", 0, rows, 0, 0, 0))["value"].to_pylist()


def test_the_footers_that_are_kept_are_bounded_in_bytes() -> None:
    wide = footer(columns=500)
    for key in range(100):
        footers[key] = wide
    size = wide.metadata.serialized_size
    assert 2**20 - size < len(footers) * size <= 2**20


def test_a_footer_that_was_used_stays_longer() -> None:
    one = footer()
    for key in range(512):
        footers[key] = one
    assert footers.use("never there") is None
    assert footers.use(0) is footers.use(1) is one
    footers[1] = footers["new"] = one
    assert len(footers) == 512
    assert list(footers)[-3:] == [0, 1, "new"]


def test_a_footer_larger_than_all_may_be_is_kept_alone() -> None:
    footers["small"] = footer()
    footers["large"] = footer(note="x" * 2**20)
    assert list(footers) == ["large"]
    footers.forget("large")
    footers.forget("never there")
    for key in "ab":
        footers[key] = footer()
    assert list(footers) == ["a", "b"]


def test_a_second_reader_does_not_parse_the_footer_again(tmp_path: Path) -> None:
    write(tmp_path, b"a")
    assert read(tmp_path, 1) == [b"a"]
    raw = pa.OSFile(str(tmp_path / "f"))
    known, key = read_footer(str(tmp_path), "f", raw)
    assert footers.use(key) is known
    assert read_footer(str(tmp_path), "f", raw)[0] is known
    assert len(footers) == 1


def test_another_file_under_a_known_name_is_read_as_it_is(tmp_path: Path) -> None:
    """Of the same size: a backup was put in its place."""
    write(tmp_path, b"c" * 9)
    size = (tmp_path / "f").stat().st_size
    assert read(tmp_path, 1) == [b"c" * 9]
    write(tmp_path, b"aaaa", b"b")
    assert (tmp_path / "f").stat().st_size == size
    os.utime(tmp_path / "f", ns=(1, 1))
    assert read(tmp_path, 2) == [b"aaaa", b"b"]


def test_a_failed_read_forgets_the_footer(tmp_path: Path) -> None:
    values = [b"a" * 100, b"b" * 100]
    table = pa.table({"value": pa.array(values, pa.binary())})
    pq.write_table(table, tmp_path / "f", write_page_checksum=True, **PLAIN)
    good = (tmp_path / "f").read_bytes()
    times = (tmp_path / "f").stat().st_mtime_ns
    assert read(tmp_path, 2) == values
    assert len(footers) == 1
    (tmp_path / "f").write_bytes(good.replace(b"bbbb", b"bbBb", 1))
    os.utime(tmp_path / "f", ns=(times, times))  # The cache takes it for the good file.
    with pytest.raises(Exception, match="cannot be read"):
        read(tmp_path, 2)
    assert len(footers) == 0
    (tmp_path / "f").write_bytes(good)
    assert read(tmp_path, 2) == values


def test_two_stores_in_memory_share_no_footers() -> None:
    """Their files may have the same name and size."""
    for values in ([b"aaaa", b"b"], [b"c", b"dddd"]):
        rows = pa.table({"value": pa.array(values, pa.binary())})
        files = memory_store()
        files.write("f", parquet_bytes(rows, compression="none"))
        found = MessageReader(files, ["value"]).read(FileSlice("f", 0, 2, 0, 0, 0))
        assert found["value"].to_pylist() == values
    assert len(footers) == 2
