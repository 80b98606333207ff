"""The row groups that a process keeps while leases read them in parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.files import MAX_GROUP_BYTES, RowGroupCache, row_groups
from spark_mq.parquet.reader import MessageReader

ROWS = 1_000


class Decoder:
    """Counts how often a row group is decoded."""

    def __init__(self, rows: int = ROWS, size: int = 8) -> None:
        self.times = 0
        self.found = pa.table({"value": pa.array([b"x" * size] * rows, pa.binary())})

    def __call__(self) -> pa.Table:
        self.times += 1
        return self.found


def read(cache: RowGroupCache, key: str, wanted: int, decode: Callable[[], pa.Table]) -> pa.Table:
    return cache.table(key, wanted, ROWS, 1_000, decode)


def test_a_row_group_is_decoded_once_and_dropped_after_the_last_row() -> None:
    cache, decode = RowGroupCache(), Decoder()
    assert read(cache, "a", 400, decode) is decode.found
    assert (decode.times, len(cache), cache.nbytes) == (1, 1, decode.found.nbytes)
    read(cache, "a", 300, decode)
    assert (decode.times, len(cache)) == (1, 1)
    read(cache, "a", 300, decode)  # the last rows
    assert (decode.times, len(cache), cache.nbytes) == (1, 0, 0)
    read(cache, "a", 100, decode)
    assert decode.times == 2, "it begins again"


def test_a_full_cache_keeps_its_row_groups_until_they_are_idle() -> None:
    now = [1.0]
    cache, decode = RowGroupCache(max_bytes=24_500, clock=lambda: now[0]), Decoder()
    read(cache, "a", 1, decode)
    read(cache, "b", 1, decode)
    now[0] = 20.0
    read(cache, "b", 1, decode)
    for _ in range(2):
        read(cache, "c", 1, decode)
    assert (decode.times, len(cache)) == (4, 2), "two fill it"
    now[0] = 31.0
    for _ in range(2):
        read(cache, "c", 1, decode)
    assert decode.times == 5, "the first is idle"
    read(cache, "b", 1, decode)
    assert decode.times == 5
    assert cache.nbytes == 2 * decode.found.nbytes <= 24_500


def test_a_row_group_that_decodes_to_more_than_its_footer_says_is_weighed_as_it_is() -> None:
    cache, large = RowGroupCache(), Decoder(10, MAX_GROUP_BYTES // 10 + 1)
    read(cache, "a", 1, large)
    assert (len(cache), cache.nbytes) == (0, 0), "it is used once and not kept"


def test_an_error_of_the_decoder_is_raised_and_nothing_is_kept() -> None:
    cache, decode = RowGroupCache(), Decoder()

    def broken() -> pa.Table:
        raise OSError("a page is damaged")

    with pytest.raises(OSError, match="a page is damaged"):
        read(cache, "a", 1, broken)
    assert (len(cache), cache.nbytes) == (0, 0)
    read(cache, "a", 1, decode)
    assert (decode.times, len(cache)) == (1, 1)


def test_threads_that_want_one_row_group_decode_it_once() -> None:
    cache, decode, begun, go = RowGroupCache(), Decoder(), threading.Event(), threading.Event()

    def slow() -> pa.Table:
        begun.set()
        assert go.wait(30)
        return decode()

    found: list[pa.Table] = []
    threads = [
        threading.Thread(target=lambda: found.append(read(cache, "a", 1, slow))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    read(cache, "b", 1, decode)  # another row group does not wait
    go.set()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(table is decode.found for table in found)
    assert decode.times == 2


def write(folder: Path, first: int = 0) -> None:
    values = [b"%06d" % number for number in range(first, first + ROWS)]
    table = pa.table({"value": pa.array(values, pa.binary()), "key": ["k"] * ROWS})
    pq.write_table(table, folder / "f", compression="none")


def part(folder: Path, first: int, rows: int = 100, *, share: bool = True) -> pa.Table:
    reader = MessageReader(ObjectStore(str(folder)), ["value"], share=share)
    return reader.read(FileSlice("f", first, rows, first, 0, 0))


def test_readers_of_parts_share_a_row_group(tmp_path: Path) -> None:
    write(tmp_path)
    kept = []
    for first in range(0, ROWS, 100):
        found = part(tmp_path, first)
        assert found.equals(part(tmp_path, first, share=False))
        assert found["value"][0].as_py() == b"%06d" % first
        kept.append(len(row_groups))
        held = found.get_total_buffer_size()
        assert held < 2_500, "a part holds its own rows, not the whole row group"
    assert kept == [*[1] * 9, 0]


def test_readers_of_other_columns_share_no_row_group(tmp_path: Path) -> None:
    write(tmp_path)
    part(tmp_path, 0)
    reader = MessageReader(ObjectStore(str(tmp_path)), ["key"], share=True)
    assert reader.read(FileSlice("f", 0, 100, 0, 0, 0))["key"].to_pylist() == ["k"] * 100


def test_a_whole_row_group_is_not_kept(tmp_path: Path) -> None:
    write(tmp_path)
    for _ in range(3):
        assert part(tmp_path, 0, ROWS).num_rows == ROWS
    assert len(row_groups) == 0


def test_another_file_under_a_known_name_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path)
    for _ in range(3):
        part(tmp_path, 0)
    assert len(row_groups) == 1
    size = (tmp_path / "f").stat().st_size
    other = tmp_path / "other"
    other.mkdir()
    write(other, first=ROWS)
    os.replace(other / "f", tmp_path / "f")
    assert (tmp_path / "f").stat().st_size == size
    for _ in range(3):
        assert part(tmp_path, 0)["value"][0].as_py() == b"%06d" % ROWS
