"""Count messages by priority and by lane, and find what holds a lane back."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledger_group import SECOND, Group
from support.slot_files import LANES, LAYOUT, file_of, ordered

from spark_mq.inspect.lanes import Holder, LaneBacklog, LaneStats, count_lanes
from spark_mq.ledger.message_index import DeliveryTimes, sequence
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.ledger.stats import compute_stats


def census(group: Group, **more: Any) -> LaneBacklog:
    group.expire_leases()
    return count_lanes(group.ledger, group.index, group.rules, group.now, **more)


def lane(group: Group, number: int | None) -> LaneStats:
    return next(lane for lane in census(group).lanes() if lane.lane == number)


def test_priorities_count_their_messages() -> None:
    group = ordered(file_of(1, (9, 0, 2), (3, None, 1), (0, 1, 3)), order="none")
    group.lease("a", 2)
    group.settle("ack", "a", [sequence(1, 0)])
    nine, three, zero = census(group).priorities()
    assert (nine.priority, nine.counts["leased"], nine.firsts) == (9, 1, (sequence(1, 1),))
    assert (three.priority, three.counts["ready"], three.firsts) == (3, 1, (sequence(1, 2),))
    assert (zero.priority, zero.counts["ready"], zero.firsts) == (0, 3, (sequence(1, 3),))


def test_a_queue_without_slots_has_one_priority() -> None:
    group = Group()
    group.lease("a", 3)
    (zero,) = census(group).priorities()
    assert (zero.priority, zero.counts["ready"], zero.counts["leased"]) == (0, 7, 3)
    assert zero.firsts == (0,)


def test_a_delayed_message_that_the_ledger_has_skipped_is_a_delay_still() -> None:
    late = DeliveryTimes.of([(2, 2_000 * SECOND, None)])
    group = ordered(file_of(1, (0, 0, 2), times=late), file_of(2, (0, 1, 2)))
    group.lease("a", 1)
    assert len(group.ledger) == 2  # the first file waits in the ledger
    assert lane(group, 0).holder == Holder.DELAY


def test_an_unordered_group_holds_no_lane_back() -> None:
    group = ordered(file_of(1, (0, 0, 2)), order="none")
    group.lease("a", 1)
    found = lane(group, 0)
    assert (found.holder, found.held_back, found.counts["leased"]) == (Holder.NOTHING, 0, 1)


def test_a_census_ends_after_a_number_of_runs() -> None:
    group = ordered(*(file_of(v, (0, 0, 1), (0, 1, 1)) for v in range(1, 11)))
    found = census(group, max_runs=6)
    assert found.counted_to == sequence(3, 1)
    assert [lane.messages for lane in found.lanes()] == [3, 3]
    assert census(group).counted_to is None


RUN = st.tuples(
    st.sampled_from([0, 0, 9]), st.sampled_from([0, 1, 2, 3, None]), st.integers(1, 3)
)  # fmt: skip
STEP = st.tuples(
    st.sampled_from(["lease", "ack", "nack", "reject", "release", "expire"]),
    st.integers(1, 9),
    st.integers(0, 40),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(RUN, min_size=1, max_size=5), min_size=1, max_size=4), st.lists(STEP))
def test_a_census_agrees_with_a_look_at_each_message(runs: Any, steps: Any) -> None:
    """Foreign files too: the runs are in any order."""
    group = ordered(*(file_of(v, *some) for v, some in enumerate(runs, 1)), retry_jitter=0)
    for number, (what, n, delay) in enumerate(steps):
        held = sorted({r.lease_id for r in group.ledger if r.state == "leased" and r.lease_id})
        if what == "lease":
            group.lease(f"l{number}", n)
        elif what == "expire":
            group.expire()
        elif held:
            seqs = [
                seq
                for r in group.ledger.held(held[0])
                for _, first, last in group.index.slot_runs(r.first, r.last)
                for seq in range(first, last + 1)
            ][:n]
            more = {"delay": delay * SECOND} if what in ("nack", "release") else {}
            group.settle(what, held[0], seqs, **more)
    found = census(group)
    _agrees(group, found)


def _agrees(group: Group, found: LaneBacklog) -> None:
    by_lane, by_priority = Counter[tuple[int | None, str]](), Counter[tuple[int, str]]()
    heads: dict[int, tuple[int, str]] = {}
    ready: Counter[int] = Counter()
    for number, first, last in group.index.slot_runs(0, group.index.last_sequence):
        for seq in range(first, last + 1):
            kind = _kind(group, seq)
            by_lane[LAYOUT.lane_of(number), kind] += 1
            by_priority[LAYOUT.priority(number), kind] += 1
            if kind not in ("settled", "dead"):
                heads.setdefault(number, (seq, kind))
            ready[number] += kind == "ready"
    for one in found.lanes():
        assert one.counts == {kind: by_lane[one.lane, kind] for kind in one.counts}
        own = [n for n in heads if LAYOUT.lane_of(n) == one.lane]
        assert one.head == min((heads[n][0] for n in own), default=-1)
        if one.lane is None:
            assert one.holder == Holder.NOTHING
        elif by_lane[one.lane, "leased"]:
            assert one.holder == Holder.LEASE
            assert one.held_back == one.counts["ready"]
        else:
            closed = [n for n in own if heads[n][1] != "ready"]
            assert bool(closed) == (one.holder != Holder.NOTHING)
            assert one.held_back == sum(ready[n] for n in closed)
    assert {lane.lane for lane in found.lanes()} == {
        lane for (lane, kind), n in by_lane.items() if n and kind != "settled"
    }
    for level in found.priorities():
        assert level.counts == {kind: by_priority[level.priority, kind] for kind in level.counts}
    stats = compute_stats(group.ledger, group.index, group.rules, group.now)
    assert stats.ready == sum(level.counts["ready"] for level in found.priorities())


def _kind(group: Group, seq: int) -> str:
    r = group.at(seq)
    if r is None:
        return "settled" if seq <= group.ledger.head.start_sequence else "ready"
    if r.state == "available":
        return "ready" if (r.available_at or 0) <= group.now else "delayed"
    return r.state


def test_a_census_of_a_large_backlog_looks_at_each_run_once() -> None:
    """The bound is on runs, so a census that ends without it has seen no more of them."""
    files = [file_of(v, *((0, n, 10) for n in range(LANES))) for v in range(1, 1_001)]
    group = ordered(*files)
    ranges = [
        Range(
            file.first + at, file.first + at + 3, "leased" if at % 8 else "available", 4,
            lease_id="a" if at % 8 else None, expires_at=10**16 if at % 8 else None,
            available_at=None if at % 8 else 0, delivery_count=1,
        )
        for file in files
        for at in range(0, 40, 4)
    ]  # fmt: skip
    group.ledger = Ledger.from_ranges(LedgerHeader(), ranges)
    found = count_lanes(group.ledger, group.index, group.rules, group.now, max_runs=20_000)
    assert found.counted_to is None
    assert sum(lane.messages for lane in found.lanes()) == 40_000
