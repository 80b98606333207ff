"""The commit index against a plain list of all sequences."""

from __future__ import annotations

import gc
import tracemalloc
from bisect import bisect_left
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.having import having

from spark_mq.ledger.intervals import encode_replaced
from spark_mq.ledger.message_index import DataFile, DeliveryTimes, MessageIndex, sequence
from spark_mq.ledger.slots import SlotLayout, decode_slots, encode_slots
from spark_mq.util.clock import SECOND


@st.composite
def logs(draw):
    """An index that grew in two steps, and its files: some commits with gaps between them, each of
    some files, some of which are empty.
    """
    files, version = [], 0
    for _ in range(draw(st.integers(0, 4))):
        version += draw(st.integers(1, 3))
        ordinal = 0
        for number in range(draw(st.integers(1, 3))):
            rows = draw(st.integers(0, 5))
            first, size = sequence(version, ordinal), draw(st.integers(0, 50))
            files.append(DataFile(first, rows, f"{version}-{number}", size, version * 10))
            ordinal += rows
    at = draw(st.integers(0, len(files)))
    return MessageIndex(files[:at], 0).extended(files[at:], version), files


def places(files):
    """Around every edge, and far out."""
    edges = [0, 1 << 40, *(f.first for f in files), *(f.last for f in files)]
    return sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})


def everything(files):
    return [f.first + row for f in files for row in range(f.rows)]


@given(logs(), st.data())
def test_totals_counts_and_neighbours(log, data):
    index, files = log
    seqs = everything(files)
    assert list(index.files) == [f for f in files if f.rows], "an empty file holds no sequence"
    assert index.total == len(seqs)
    assert index.last_sequence == (seqs[-1] if seqs else -1)
    first, last = (data.draw(st.sampled_from(places(files))) for _ in range(2))
    assert index.count(first, last) == len([seq for seq in seqs if first <= seq <= last])
    assert index.first_at_or_after(first) == next((seq for seq in seqs if seq >= first), None)
    assert index.last_at_or_before(last) == next(
        (seq for seq in reversed(seqs) if seq <= last), None
    )


@given(logs(), st.data())
def test_cut(log, data):
    index, files = log
    seqs = everything(files)
    first = data.draw(st.sampled_from(places(files)))
    count = data.draw(st.integers(-1, len(seqs) + 1))
    at = bisect_left(seqs, first) + count - 1
    if count >= 1 and at < len(seqs):
        assert index.nth_from(first, count) == seqs[at]
    else:
        with pytest.raises(IndexError, match="no "):
            index.nth_from(first, count)


@given(logs(), st.data())
def test_slices_hold_exactly_what_was_asked(log, data):
    index, files = log
    first, last = (data.draw(st.sampled_from(places(files))) for _ in range(2))
    slices = list(index.slices(first, last))
    assert [piece.first + row for piece in slices for row in range(piece.rows)] == [
        s for s in everything(files) if first <= s <= last
    ]
    by_path = {f.path: f for f in files}
    for piece in slices:
        file = by_path[piece.path]
        assert piece.rows >= 1
        assert piece.first == file.first + piece.offset
        assert piece.offset + piece.rows <= file.rows
        assert piece.size == file.size * piece.rows // file.rows
        assert piece.committed_at == file.committed_at
    assert index.size(first, last) == sum(piece.size for piece in slices)


def test_no_file_is_taken_for_one_before_the_first():
    index = MessageIndex([DataFile(5, 3, "a", 30, 1), DataFile(9, 2, "b", 8, 1)], 1)
    assert [index.file_at(place).path for place in (5, 8, 9)] == ["a", "a", "b"]
    with pytest.raises(IndexError, match="no file"):
        index.file_at(4)


@pytest.mark.parametrize("firsts", [[0], [2], [5, 4]])
def test_files_out_of_order_are_refused(firsts):
    index = MessageIndex([DataFile(0, 3, "a", 1, 1)], 0)
    more = [DataFile(first, 1, "b", 1, 1) for first in firsts]
    for make, files in ((index.extended, more), (MessageIndex, [*index.files, *more])):
        with pytest.raises(ValueError, match="out of order"):
            make(files, 1)


def test_commits_without_messages_move_the_version_and_it_never_steps_back():
    index = MessageIndex([DataFile(0, 3, "a", 1, 1)], 0)
    assert index.extended([], 7).extended([], 4).version == 7


@pytest.mark.parametrize(
    ("instant", "since", "older"),
    [
        (0, 0, -1), (9, 0, -1), (10, 0, 2), (11, sequence(1, 0), 2),
        (20, sequence(1, 0), sequence(1, 1)), (21, sequence(1, 1) + 1, sequence(1, 1)),
    ],
)  # fmt: skip
def test_sequences_by_their_time(instant, since, older):
    index = MessageIndex([DataFile(0, 3, "a", 1, 10), DataFile(sequence(1, 0), 2, "b", 1, 20)], 1)
    assert index.first_published_since(instant) == since
    assert index.last_of_older(instant) == older


def test_a_clock_that_stepped_back_skips_no_message():
    """The commit that is late enough comes first, though a later one bears an earlier time."""
    times = {"a": 50, "b": 40, "c": 60}
    files = [DataFile(sequence(n, 0), 1, path, 1, times[path]) for n, path in enumerate(times)]
    index = MessageIndex(files, 2)
    assert index.first_published_since(45) == 0
    assert index.first_published_since(55) == sequence(2, 0)


@given(logs(), st.data())
def test_forgetting_changes_nothing_above(log, data):
    """Everything that is asked above the forgotten files has the same answer."""
    whole, files = log
    up_to = data.draw(st.sampled_from([-1, *places(files)]))
    kept = whole.without_settled(up_to)
    assert kept.forgotten_to <= up_to
    assert kept == having(
        total=whole.total, last_sequence=whole.last_sequence, version=whole.version
    )
    assert [f for f in whole.files if f.first > kept.forgotten_to] == list(kept.files)
    assert kept.forgotten == whole.count(0, kept.forgotten_to)
    low = kept.forgotten_to + 1
    first = max(low, data.draw(st.sampled_from(places(files))))
    last = data.draw(st.sampled_from(places(files)))
    assert kept.count(first, last) == whole.count(first, last)
    assert kept.count(0, max(last, low)) == whole.count(0, max(last, low))
    assert kept.first_at_or_after(first) == whole.first_at_or_after(first)
    assert list(kept.slices(first, last)) == list(whole.slices(first, last))
    for count in range(1, kept.count(first, 1 << 62) + 1):
        assert kept.nth_from(first, count) == whole.nth_from(first, count)
    assert kept.without_settled(up_to) is kept, "there is nothing more to forget"


@given(logs())
def test_whole_commits_are_forgotten_and_never_the_last(log):
    whole, files = log
    versions = {f.first >> 32 for f in whole.files}
    for up_to in places(files):
        left = {f.first >> 32 for f in whole.without_settled(up_to).files}
        needed = {f.first >> 32 for f in whole.files if f.last > up_to}
        assert left == versions & (needed | set(sorted(versions)[-1:]))


def test_an_index_costs_about_a_hundred_bytes_a_file():
    """Objects for each file took 1.2 KB."""
    gc.collect()
    tracemalloc.start()
    arrow = pa.total_allocated_bytes()
    index = MessageIndex()
    for number in range(5_000):
        path = f"part-{number:032x}-0000.parquet"
        times = DeliveryTimes.of([(1, number * SECOND, None)])
        index = index.extended(
            [DataFile(sequence(number, 0), 1, path, 1000, 10**15, times)], number
        )
    python = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    used = python + pa.total_allocated_bytes() - arrow
    assert used / len(index.files) < 250
    assert [len(part) for part in index.files.parts] == [4_096, 512, 256, 128, 8]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.data())
def test_an_index_never_changes_and_a_longer_one_shares_most_of_it(
    counts: list[int], data: st.DataObject
) -> None:
    """Commits of up to 90 files, so that parts are copied, begun and joined."""
    layout, total = SlotLayout(4), sum(counts)
    texts = [encode_slots(4, [(layout.number(at % 3, at % 4), 2)]) for at in range(total)]
    times = DeliveryTimes.of([(1, 7, None), (1, None, 9)])
    files = [
        DataFile(sequence(at, 0), 2, f"f{at}", at, at, times if at % 5 == 0 else None, texts[at],
                 replaces=encode_replaced([sequence(at - 1, 1)]) if at else "")
        for at in range(total)
    ]  # fmt: skip
    indexes, end = [MessageIndex(lanes=4)], 0
    for count in counts:
        indexes.append(indexes[-1].extended(files[end : end + count], end + count))
        indexes[-1].replaced_after(-1)  # the next index joins what it replaces with this
        end += count
    ends = [0, *accumulate(counts)]
    for at in data.draw(st.permutations(range(len(indexes)))):
        index, known = indexes[at], files[: ends[at]]
        assert list(index.files) == known
        assert (index.total, index.version) == (2 * len(known), ends[at] or -1)
        start = sum(map(len, index.files.parts[:1]))
        rest = index.files.columns(start, len(known) - 1)
        assert [rest.file(place) for place in range(len(rest))] == known[start:-1]
        timed = [f for f in known if index.has_times(f.first, f.last)]
        assert timed == index.timed_files(0) == known[::5]
        assert index.replaced_after(-1) == {f.first: [(f.last, f.last)] for f in known[:-1]}
        runs = list(index.slot_runs(0, 1 << 62))
        assert [run[0] for run in runs] == [decode_slots(f.slots).numbers[0] for f in known]
        whole = sum({1 << run[0] for run in runs})
        assert index.slots_in(0, index.last_sequence) == whole or not known


@pytest.mark.parametrize("asked_at", [{0, 1, 900, 1_500, 2_999}, {2_999}])
def test_a_file_is_found_by_its_path_while_the_index_grows_and_forgets(asked_at: set[int]) -> None:
    index, paths = MessageIndex(), [f"part-{number}" for number in range(3_000)]
    for number, path in enumerate(paths):
        index = index.extended([DataFile(sequence(number, 0), 1, path, 1, 1)], number)
        if number in asked_at:
            assert [index.files.find(one) for one in paths[: number + 1]] == [*range(number + 1)]
            assert index.files.find(f"part-{number + 1}") is None
    kept = index.without_settled(sequence(999, 0))
    assert [kept.files.find(paths[at]) for at in (999, 1_000, 2_999)] == [None, 0, 1_999]
    assert index.files.find(paths[999]) == 999


def test_a_part_of_a_slice_has_its_share_of_the_bytes():
    index = MessageIndex([DataFile(0, 10, "a", 1_000, 0)], 0)
    (piece,) = index.slices(1, 9)
    part = piece.part(2, 3)
    assert (part.first, part.offset, part.rows, part.size) == (3, 3, 3, 300)
    assert piece.part(0, 9) == piece


def test_the_messages_of_a_batch_are_found_without_those_between() -> None:
    files = [
        DataFile(0, 1, "a", 1, 0, batch="x"),
        DataFile(sequence(2, 0), 3, "b", 2, 0, batch="x"),
        DataFile(sequence(2, 3), 1, "c", 2, 0),
        DataFile(sequence(2, 4), 1, "d", 2, 0, batch="x"),
        DataFile(sequence(4, 0), 1, "e", 2, 0, batch="y"),
        DataFile(sequence(5, 0), 2, "f", 2, 0, batch="x"),
    ]
    index = MessageIndex(files, 5)
    x = [(0, sequence(2, 2)), (sequence(2, 4), sequence(2, 4))]
    y, last = (sequence(4, 0), sequence(4, 0)), (sequence(5, 0), sequence(5, 1))
    assert index.batches() == {"x": [*x, last], "y": [y]}
    assert list(index.files) == files
    assert index.without_settled(sequence(3, 0)).batches() == {"x": [last], "y": [y]}
    longer = index.extended([DataFile(sequence(7, 0), 1, "g", 1, 0, batch="y")], 7)
    assert longer.batches() == {"x": [*x, last], "y": [y, (sequence(7, 0), sequence(7, 0))]}
    assert index.batches() == {"x": [*x, last], "y": [y]}


def test_what_later_files_replace_is_found_by_file() -> None:
    first, second, third = (sequence(n, 0) for n in (1, 2, 3))
    index = MessageIndex(
        [
            DataFile(first, 5, "a", 5, 0),
            DataFile(second, 2, "b", 2, 0, replaces=encode_replaced([first + 1, first + 3])),
        ],
        2,
    )
    found = {first: [(first + 1, first + 1), (first + 3, first + 3)]}
    assert index.replaced_after(-1) == index.replaced_after(first + 2) == found
    assert not index.replaced_after(first + 3)
    more = DataFile(third, 1, "c", 1, 0, replaces=encode_replaced([first + 2, second]))
    index = index.extended([more], 3)
    assert index.replaced_after(-1) == {
        first: [(first + 1, first + 3)],
        second: [(second, second)],
    }
    assert index.without_settled(sequence(1, 9)).replaced_after(-1) == {second: [(second, second)]}


def test_files_for_one_group_are_known_to_the_others() -> None:
    one, two, three, four = (sequence(n, 0) for n in (1, 2, 3, 4))
    files = [
        DataFile(one, 5, "a", 5, 0),
        DataFile(two, 2, "b", 2, 0, group="mail"),
        DataFile(three, 3, "c", 3, 0, group="lake"),
        DataFile(four, 1, "d", 1, 0),
    ]
    index = MessageIndex(files, 4)
    assert list(index.files) == files
    assert index.for_others(0, four, "mail") == [(three, three + 2)]
    assert index.for_others(two + 1, three, "audit") == [(two + 1, two + 1), (three, three)]
    assert index.for_others(three + 2, four, "audit") == [(three + 2, three + 2)]
    assert not index.is_addressed_after(three + 2)
    rest = index.without_settled(two + 1)
    assert rest.for_others(0, four, "audit") == [(three, three + 2)]
    index = index.extended([DataFile(sequence(6, 0), 1, "f", 1, 0)], 6)
    assert index.for_others(0, sequence(9, 0), "lake") == [(two, two + 1)]
