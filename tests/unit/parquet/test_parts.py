"""Slices are read in parts that fit in memory, by what the metadata of their files says."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.reader import MessageReader, cut_slices, join_tables
from spark_mq.parquet.writer import write_file

MB = 2**20


def sequences(parts: list[tuple[FileSlice, int]]) -> list[tuple[int, int, str, int]]:
    return [
        (piece.first + n, piece.offset + n, piece.path, note)
        for piece, note in parts
        for n in range(piece.rows)
    ]


def written(folder: Path, widths: list[int], **options: object) -> FileSlice:
    """A data file with random values of some sizes, by our writer or by pyarrow with options."""
    table = pa.table({"value": pa.array([os.urandom(width) for width in widths], pa.binary())})
    if not options:
        file = write_file(ObjectStore(str(folder)), table)
        return FileSlice(file.path, 0, file.rows, 0, 0, file.size)
    pq.write_table(table, folder / "f", compression="none", **options)
    return FileSlice("f", 0, len(widths), 0, 0, (folder / "f").stat().st_size)


widths = st.lists(st.sampled_from([0, 1, 1_000, 100_000, MB]), min_size=1, max_size=40)


@given(st.lists(widths, min_size=1, max_size=3), st.integers(1, 50), st.integers(1, 4 * MB))
def test_each_message_is_in_one_part_and_parts_fit(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], most: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    slices = [(written(folder, sizes), at) for at, sizes in enumerate(files)]
    known = {piece.path: files[at] for piece, at in slices}
    found: list[tuple[FileSlice, int]] = []
    for part in cut_slices(ObjectStore(str(folder)), slices, size, most):
        taken = [
            known[piece.path][piece.offset + n] for piece, _ in part for n in range(piece.rows)
        ]
        assert 0 < len(taken) <= most
        # A small row group fits, however its bytes are spread over its rows.
        assert len(taken) == 1 or sum(taken) <= size + len(files) * 4 * MB
        found += part
    assert sequences(found) == sequences(slices)


def largest_part(folder: Path, piece: FileSlice, most: int) -> int:
    files = ObjectStore(str(folder))
    parts = [[piece for piece, _ in part] for part in cut_slices(files, [(piece, 0)], most)]
    reader = MessageReader(files)
    tables = [reader.read(*part) for part in parts]
    assert sum(table.num_rows for table in tables) == piece.rows
    return max(table.nbytes for table in tables)


def test_small_messages_say_nothing_about_those_that_follow(tmp_path: Path) -> None:
    piece = written(tmp_path, [10] * 10_000 + [MB] * 60)
    assert largest_part(tmp_path, piece, 2 * MB) < 4 * MB


def test_in_a_foreign_row_group_the_mean_decides(tmp_path: Path) -> None:
    piece = written(tmp_path, [MB] * 20, use_dictionary=False)
    assert largest_part(tmp_path, piece, 2 * MB) < 3 * MB


def test_a_value_that_a_dictionary_holds_once_counts_each_time(tmp_path: Path) -> None:
    values = [os.urandom(100_000)] * 1_000
    table = pa.table({"value": pa.array(values, pa.binary())})
    pq.write_table(table, tmp_path / "f", use_dictionary=True)
    piece = FileSlice("f", 0, 1_000, 0, 0, (tmp_path / "f").stat().st_size)
    assert piece.size < MB
    assert largest_part(tmp_path, piece, 2 * MB) < 3 * MB


def test_headers_count_eight_times(tmp_path: Path) -> None:
    headers = pa.array([[("h", "x" * 100_000)]] * 40, pa.map_(pa.string(), pa.string()))
    rows = pa.table({"value": [b""] * 40, "headers": headers})
    pq.write_table(rows, tmp_path / "f", compression="none", use_dictionary=False)
    slices = [(FileSlice("f", 0, 40, 0, 0, 0), None)]
    parts = list(cut_slices(ObjectStore(str(tmp_path)), slices, 8 * MB))
    assert [piece.rows for part in parts for piece, _ in part] == [10] * 4


def test_a_file_that_cannot_be_opened_is_cut_by_rows(tmp_path: Path) -> None:
    """Its reader says what is wrong with it."""
    slices = [(FileSlice("f", 7, 25, 0, 1, 250), None)]
    parts = list(cut_slices(ObjectStore(str(tmp_path)), slices, max_rows=10))
    assert [piece.rows for part in parts for piece, _ in part] == [10, 10, 5]


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(100, 5_000), st.integers(100, 300))
def test_joined_tables_fit(counts: list[int], size: int, most: int) -> None:
    tables = [pa.table({"value": pa.array(range(count), pa.int64())}) for count in counts]
    joined = list(join_tables(tables, size, most))
    rows = [value for table in joined for value in table["value"].to_pylist()]
    assert rows == [value for count in counts for value in range(count)]
    assert all(table.num_rows <= most for table in joined)
    assert all(table.nbytes <= max(size, 8 * max(counts)) for table in joined)
