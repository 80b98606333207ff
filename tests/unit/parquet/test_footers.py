"""The footers that a process keeps: bounded, and never those of another file."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.handles import memory_store

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet import footers as module
from spark_mq.parquet.footers import Footer, FooterCache, read_footer
from spark_mq.parquet.reader import MessageReader


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> FooterCache:
    """The cache that readers use, empty."""
    empty = FooterCache()
    monkeypatch.setattr(module, "footers", empty)
    monkeypatch.setattr("spark_mq.parquet.reader.footers", empty)
    return empty


def footer(rows: int = 1) -> Footer:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [b"x"] * rows}), sink)
    return Footer(pq.ParquetFile(pa.BufferReader(sink.getvalue())))


def write(folder: Path, *values: bytes) -> None:
    pq.write_table(
        pa.table({"value": pa.array(values, pa.binary())}), folder / "f", compression="none"
    )


def read(folder: Path, rows: int) -> list[bytes]:
    return (
        MessageReader(ObjectStore(str(folder)), ["value"])
        .read(FileSlice("f", 0, rows, 0, 0, 0))["value"]
        .to_pylist()
    )


def test_the_cache_keeps_the_footers_that_were_used_last() -> None:
    cache = FooterCache(max_files=2)
    first, second, third = footer(), footer(), footer()
    cache.put("a", first)
    cache.put("b", second)
    assert cache.get("a") is first
    cache.put("c", third)
    assert [cache.get(key) for key in "abc"] == [first, None, third]
    cache.remove("a")
    cache.remove("never there")
    assert (cache.get("a"), len(cache)) == (None, 1)


def test_the_cache_is_bounded_in_bytes_but_keeps_the_newest() -> None:
    size = footer().metadata.serialized_size
    cache = FooterCache(max_bytes=2 * size)
    for key in "abcd":
        cache.put(key, footer())
        cache.put(key, footer())  # Replaces the first.
    assert [key for key in "abcd" if cache.get(key)] == ["c", "d"]
    small = FooterCache(max_bytes=1)
    small.put("large", footer())
    assert small.get("large") is not None


def test_a_second_reader_does_not_parse_the_footer_again(
    tmp_path: Path, cache: FooterCache
) -> None:
    write(tmp_path, b"a")
    assert read(tmp_path, 1) == [b"a"]
    raw = pa.OSFile(str(tmp_path / "f"))
    known, key = read_footer(str(tmp_path), "f", raw)
    assert cache.get(key) is known
    assert read_footer(str(tmp_path), "f", raw)[0] is known
    assert len(cache) == 1


def test_another_file_under_a_known_name_is_read_as_it_is(
    tmp_path: Path, cache: FooterCache
) -> None:
    """Of the same size: a backup was put in its place."""
    write(tmp_path, b"aaaa", b"b")
    size = (tmp_path / "f").stat().st_size
    assert read(tmp_path, 2) == [b"aaaa", b"b"]
    write(tmp_path, b"c", b"dddd")
    assert (tmp_path / "f").stat().st_size == size
    os.utime(tmp_path / "f", ns=(1, 1))
    assert read(tmp_path, 2) == [b"c", b"dddd"]


def test_a_failed_read_forgets_the_footer(tmp_path: Path, cache: FooterCache) -> None:
    values = [b"a" * 100, b"b" * 100]
    table = pa.table({"value": pa.array(values, pa.binary())})
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, tmp_path / "f", write_page_checksum=True, **plain)
    good = (tmp_path / "f").read_bytes()
    times = (tmp_path / "f").stat().st_mtime_ns
    assert read(tmp_path, 2) == values
    assert len(cache) == 1
    (tmp_path / "f").write_bytes(good.replace(b"bbbb", b"bbBb", 1))
    os.utime(tmp_path / "f", ns=(times, times))  # The cache takes it for the good file.
    with pytest.raises(Exception, match="cannot be read"):
        read(tmp_path, 2)
    assert len(cache) == 0
    (tmp_path / "f").write_bytes(good)
    assert read(tmp_path, 2) == values


def test_two_stores_in_memory_share_no_footers(cache: FooterCache) -> None:
    """Their files may have the same name and size."""
    for values in ([b"aaaa", b"b"], [b"c", b"dddd"]):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), sink, compression="none")
        files = memory_store()
        files.write("f", sink.getvalue().to_pybytes())
        assert (
            MessageReader(files, ["value"]).read(FileSlice("f", 0, 2, 0, 0, 0))["value"].to_pylist()
            == values
        )
    assert len(cache) == 2
