"""Slices are read in parts by the bytes that were read."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.bounded import PartSizer, cut_by_size, cut_slices

rows = st.lists(st.integers(1, 3_000), max_size=6)


def slices_of(counts: list[int]) -> list[tuple[FileSlice, int]]:
    return [
        (FileSlice(f"f{at}", 7, count, at << 32, 1, 10 * count), at)
        for at, count in enumerate(counts)
    ]


def sequences(parts: list[tuple[FileSlice, int]]) -> list[tuple[int, int, str, int]]:
    return [
        (piece.first + n, piece.offset + n, piece.path, note)
        for piece, note in parts
        for n in range(piece.rows)
    ]


@given(rows, st.integers(1, 5_000), st.integers(0, 100_000))
def test_each_message_is_in_one_part_and_parts_fit(
    counts: list[int], most: int, width: int
) -> None:
    slices, sizer = slices_of(counts), PartSizer(max_bytes=1_000_000, max_rows=most)
    found: list[tuple[FileSlice, int]] = []
    for number, part in enumerate(cut_slices(slices, sizer)):
        count = sum(piece.rows for piece, _ in part)
        assert count <= min(most, sizer.rows)
        if number:
            assert count == 1 or count * width <= 1_000_000
        sizer.saw(pa.table({"value": [b"x" * width] * min(count, 20)}))
        found += part
    assert sequences(found) == sequences(slices)


def test_parts_grow_step_by_step() -> None:
    """The first part says how large messages are. A few may be small."""
    sizer = PartSizer(max_bytes=10**6)
    seen = []
    for _ in range(6):
        seen.append(sizer.rows)
        sizer.saw(pa.table({"value": [b"x" * 92] * 100}))
    assert seen == [100, 400, 1600, 5000, 5000, 5000]
    sizer.saw(pa.table({"value": [b"x" * 10**6]}))
    assert sizer.rows == 1


@given(st.integers(1, 5_000), st.integers(1, 10**6))
def test_a_slice_is_cut_by_its_size(count: int, most: int) -> None:
    ((piece, _),) = slices_of([count])
    parts = list(cut_by_size(piece, most))
    assert sequences([(part, 0) for part in parts]) == sequences([(piece, 0)])
    assert all(part.rows == 1 or part.size <= most for part in parts)
