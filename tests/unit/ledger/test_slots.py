"""Slots of data files: numbers, text, and what the index knows of them."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.slots import (
    SlotLayout,
    decode_slots,
    encode_slots,
    lowest_of,
    priorities_of,
    valid_slots,
)

from .slot_files import LANES, LAYOUT, file_of

slots = st.lists(st.tuples(st.integers(0, 49), st.integers(1, 5)), min_size=1, max_size=30)


def test_a_lane_is_the_crc_of_the_key() -> None:
    layout = SlotLayout(64)
    assert layout.lane("schlüssel") == crc32("schlüssel".encode()) % 64
    assert layout.lane(None) is None
    assert layout.lanes_in(layout.everything) == layout.every_lane, "but not that without a key"
    assert SlotLayout(0).lane("key") is None


@given(st.integers(1, 70), st.integers(1, 80))
def test_blocks_divide_the_lanes(lanes: int, blocks: int) -> None:
    layout, found = SlotLayout(lanes), list[int]()
    for lane in range(lanes):
        block = layout.block_of(layout.every_lane >> lane << lane, blocks)
        assert block >> lane & 1
        assert "0" not in bin(block >> ((block & -block).bit_length() - 1))[2:]
        if block not in found:
            found.append(block)
    assert sum(found) == layout.every_lane
    sizes = [block.bit_count() for block in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= -(-lanes // blocks)


@given(st.integers(0, 2**70), st.integers(0, 80))
def test_the_lowest_numbers_of_a_set(numbers: int, most: int) -> None:
    expected = [at for at in range(71) if numbers >> at & 1][:most]
    assert lowest_of(numbers, most) == sum(1 << at for at in expected)


@given(slots)
def test_a_text_has_all_runs(runs: list[tuple[int, int]]) -> None:
    text = encode_slots(4, runs)
    found = decode_slots(text)
    assert list(found.numbers) == [n for n, _ in runs]
    assert valid_slots(text, SlotLayout(4), found.rows)
    in_order = [(n, last - first + 1) for n, first, last in found.between(0, found.rows - 1)]
    assert in_order == runs
    assert found.mask == sum(1 << n for n in {n for n, _ in runs})


@given(slots, st.data())
def test_rows_in_the_middle_have_their_slots(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    found = decode_slots(encode_slots(4, runs))
    each = [number for number, rows in runs for _ in range(rows)]
    first = data.draw(st.integers(0, len(each) - 1))
    last = data.draw(st.integers(first, len(each) - 1))
    middle = [n for n, low, high in found.between(first, last) for _ in range(low, high + 1)]
    assert middle == each[first : last + 1]
    assert found.mask_of(first, last) == sum(1 << n for n in set(middle))
    odd = [run for run in found.between(first, last) if run[0] % 2]
    assert list(found.runs_of(sum(1 << n for n in range(1, 50, 2)), first, last)) == odd


def test_the_slots_of_a_sorted_file_with_over_twice_the_mean_are_skewed() -> None:
    runs = [(0, 1), (1, 8), (2, 13), *((slot, 1) for slot in range(3, 7)), (7, 6)]
    assert decode_slots(encode_slots(4, runs)).skewed == 1 << 2
    assert decode_slots(encode_slots(4, runs[::-1])).skewed == 0


@pytest.mark.parametrize(
    "text",
    ["", "64|1|2", "4|1 1|2", "4|1|0", "4|1|x", "4|60|3", "4|-1|3", "4|1|4", "4||", None, 7],
)
def test_a_text_that_does_not_fit_is_no_slots(text: object) -> None:
    assert not valid_slots(text, SlotLayout(4), 3)


def test_priorities_of_a_text() -> None:
    layout = SlotLayout(4)
    plain = [(layout.number(0, 1), 2), (layout.number(0, None), 1)]
    assert priorities_of(encode_slots(4, plain)) == 0
    assert priorities_of(encode_slots(4, [(layout.number(7, 1), 2), *plain])) == 1 << 7 | 1
    assert priorities_of(encode_slots(4, [*plain, (layout.number(7, 1), 2)])) == 1 << 7 | 1
    assert priorities_of(encode_slots(4, plain[::-1])) == 0, "not in order"


@given(
    st.lists(st.sets(st.integers(0, LANES - 1), min_size=1), min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2_000)), min_size=1, max_size=5),
)
def test_blocks_of_files_have_the_slots_of_their_files(
    files: list[set[int]], ranges: list[tuple[int, int]]
) -> None:
    made = [file_of(at + at // 7, *((0, lane, 1) for lane in sorted(lanes)))
            for at, lanes in enumerate(files, 1)]  # fmt: skip
    index = MessageIndex(lanes=LANES)
    for half in (made[: len(made) // 2], made):  # what is known of the first half is still true
        index = index.extended(half[len(index.files) :], len(files))
        places = [seq for file in half for seq in range(file.first, file.last + 1)] or [0]
        for one, other in ranges:
            first, last = sorted((places[one % len(places)], places[other % len(places)]))
            blocks = list(index.blocks(first, last + 1))
            for begin, end, slots in blocks:
                assert slots == sum({1 << run[0] for run in index.slot_runs(begin, end)})
            runs = [run for begin, end, _ in blocks for run in index.slot_runs(begin, end)]
            assert runs == list(index.slot_runs(first, last + 1))
            for _, found, low, high in index.pieces_with_slots(first, last):
                every = list(found.between(low, high))
                assert list(found.runs_of(found.mask, low, high)) == every
                odd = [run for run in every if run[0] % 2]
                assert list(found.runs_of(sum(1 << run[0] for run in odd), low, high)) == odd


def test_a_file_that_begins_after_a_range_is_not_in_it() -> None:
    """Neighbours whose sequences touch, as those of one commit do."""
    text = encode_slots(4, [(SlotLayout(4).number(5, 2), 3)])
    files = [DataFile(first, 3, f"f{first}", 30, 0, slots=text) for first in (0, 3, 6)]
    index = MessageIndex(files, 1, lanes=4)
    assert list(index.files_with(5, 0, 2)) == [(0, 2)]
    assert list(index.files_with(5, 2, 5)) == [(2, 2), (3, 5)]
    assert [begins for begins, *_ in index.pieces_with_slots(0, 2)] == [0]


def test_a_smaller_index_keeps_the_slots_of_its_files() -> None:
    first, second = file_of(1, (5, 0, 1), (0, 2, 2)), file_of(2, (0, 1, 2), (0, 3, 2))
    plain = DataFile(second.last + 1, 2, "a", 20, 0)
    index = MessageIndex([first, second, plain], 2, lanes=LANES)
    assert [index.priorities_after(first.last - n) for n in (1, 0)] == [1 << 5 | 1, 1]
    kept = index.without_settled(first.last)
    assert kept.layout == SlotLayout(LANES)
    assert [number for number, *_ in kept.slot_runs(0, plain.last)] == [
        LAYOUT.number(0, 1), LAYOUT.number(0, 3), LAYOUT.number(0, None),
    ]  # fmt: skip
