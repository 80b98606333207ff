"""How a batch of an ordered group becomes partitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.drivers import Runner, sequences
from support.tables import messages_of

from spark_mq import Message, Queue
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.streaming.lanes import LaneRuns, divide_by_lane
from spark_mq.testing import ManualClock, memory_queue

Runs = Sequence[tuple[int | None, int]]


def pieces_of(files: Sequence[Runs]) -> tuple[list[Any], list[LaneRuns]]:
    """A lease of whole files, each of which has these runs."""
    pieces, total = [], sum(rows for runs in files for _, rows in runs)
    of = Range(first=0, last=len(files) << 32, message_count=total, state=LEASED)
    for at, runs in enumerate(files):
        rows = sum(rows for _, rows in runs)
        pieces.append((FileSlice(f"{at}.parquet", 0, rows, at << 32, 0, rows * 100), of))
    return pieces, [tuple(runs) for runs in files]


def lanes_by_sequence(pieces: Sequence[Any], runs: Sequence[LaneRuns]) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for (piece, _), of_piece in zip(pieces, runs, strict=True):
        lanes = [lane for lane, rows in of_piece for _ in range(rows)]
        found |= {piece.first + row: lane for row, lane in enumerate(lanes)}
    return found


def rows_of(part: Sequence[Any]) -> list[int]:
    return [seq for piece, _ in part for seq in range(piece.first, piece.first + piece.rows)]


LANE = st.none() | st.integers(0, 6)
FILES = st.lists(
    st.lists(st.tuples(LANE, st.integers(1, 12)), min_size=1, max_size=8), min_size=1, max_size=5
)


@given(FILES, st.integers(1, 9))
def test_each_lane_lies_in_one_part_in_order_and_no_row_is_lost(
    files: list[Runs], wanted: int
) -> None:
    pieces, runs = pieces_of(files)
    lanes = lanes_by_sequence(pieces, runs)
    parts = divide_by_lane(pieces, runs, wanted)
    read = [rows_of(part) for part in parts]
    assert all(read), "no part is empty"
    assert sorted(seq for rows in read for seq in rows) == sorted(lanes)
    assert all(rows == sorted(rows) for rows in read)
    homes = {(lanes[seq], at) for at, rows in enumerate(read) for seq in rows}
    assert [
        lane for lane, n in Counter(lane for lane, _ in homes).items() if n > 1 and lane is not None
    ] == []


@example([[(0, 1), (1, 1), (2, 12)]], 3)
@given(FILES, st.integers(1, 9))
def test_there_are_as_many_parts_as_wanted_if_there_are_so_many_lanes_or_free_rows(
    files: list[Runs], wanted: int
) -> None:
    pieces, runs = pieces_of(files)
    lanes = lanes_by_sequence(pieces, runs)
    keyed = {lane for lane in lanes.values() if lane is not None}
    free = sum(lane is None for lane in lanes.values())
    parts = divide_by_lane(pieces, runs, wanted)
    assert min(wanted, len(keyed)) <= len(parts) <= wanted
    if not keyed:
        sizes = [len(rows_of(part)) for part in parts]
        assert max(sizes) <= -(-free // wanted)


def test_the_rows_without_a_key_fill_the_smaller_parts() -> None:
    pieces, runs = pieces_of([[(0, 70), (1, 10), (2, 10), (None, 30)]])
    parts = divide_by_lane(pieces, runs, 4)
    assert sorted(len(rows_of(part)) for part in parts) == [16, 17, 17, 70]


def test_neighbouring_lanes_of_a_sorted_file_are_one_slice_of_each_part() -> None:
    files = [[(lane, 5) for lane in range(64)] for _ in range(10)]
    pieces, runs = pieces_of(files)
    parts = divide_by_lane(pieces, runs, 8)
    assert [len(part) for part in parts] == [10] * 8
    assert {len(rows_of(part)) for part in parts} == {400}
    assert sum(piece.size for part in parts for piece, _ in part) == 10 * 320 * 100


def test_a_hot_lane_gets_a_part_of_its_own() -> None:
    pieces, runs = pieces_of([[(0, 5), (1, 5), (2, 100), (3, 5), (4, 5)]])
    parts = divide_by_lane(pieces, runs, 3)
    assert [len(rows_of(part)) for part in parts] == [10, 100, 10]


# -- from the source


@pytest.fixture
def queue() -> Queue:
    return memory_queue(ManualClock(), lanes=16, clock_skew="0s", retry_delay="10s")


def published(queue: Queue, seed: int, count: int = 40) -> None:
    pick = random.Random(seed)
    queue.publish(
        [
            Message(str(n), key=pick.choice([None, *"abcdefgh"]), priority=pick.choice([0, 0, 5]))
            for n in range(count)
        ]
    )


def test_a_batch_of_an_ordered_group_has_the_lanes_of_its_slices(queue: Queue) -> None:
    queue.group("g").configure(order="key")
    published(queue, 1)
    published(queue, 2)
    plan = Runner(queue).batch()
    assert plan.slices
    assert [sum(rows for _, rows in runs) for runs in plan.lane_runs] == [
        piece.rows for piece, _ in plan.slices
    ]
    index = messages_of(queue).index()
    lane_of = index.layout.lane_of
    ours = [lane for runs in plan.lane_runs for lane, rows in runs for _ in range(rows)]
    theirs = [lane_of(slot) for seq in sequences(plan) for slot, _, _ in index.slot_runs(seq, seq)]
    assert ours == theirs


def test_a_batch_of_an_unordered_group_has_no_lanes(queue: Queue) -> None:
    published(queue, 1)
    assert Runner(queue).batch().lane_runs == ()


def test_a_blocked_message_stops_only_its_key_in_a_stream(queue: Queue) -> None:
    group = queue.group("g")
    group.configure(order="key", on_max_deliveries="block", max_failures=1)
    queue.publish([Message("bad", key="a"), Message("behind", key="a"), Message("b", key="b")])
    runner = Runner(queue)
    plan = runner.batch()
    first = min(sequences(plan))
    group.nack({plan.lease_id: [first]})
    group.ack(plan.lease_id)
    assert group.stats().blocked == 1
    queue.publish([Message("more", key="a"), Message("more", key="b")])
    later = sequences(runner.batch())
    assert len(later) == 1
    assert not runner.offer()
    group.unblock("retry")
    rest = sequences(runner.batch())
    assert rest == sorted(rest)
    assert rest[0] == first
    assert len(rest) == 3
