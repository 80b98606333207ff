"""What of a message batch is unsettled, and how its messages ended: against sets of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_mq.ledger.intervals import Interval, normalise
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import SETTLED, Ledger, LedgerHeader, Range
from spark_mq.ledger.states import UNSETTLED
from spark_mq.operations.batches import count_ends, count_messages, unsettled_members

FILES = [DataFile(sequence(v, 0), rows, f"f{v}", 1, 0) for v, rows in ((0, 4), (1, 3), (3, 5))]
INDEX = MessageIndex(FILES, 3)
MESSAGES = [file.first + row for file in FILES for row in range(file.rows)]

places = st.tuples(st.sampled_from(MESSAGES), st.sampled_from(MESSAGES)).map(
    lambda two: (min(two), max(two))
)


def messages_in(intervals: list[Interval]) -> set[int]:
    return {one for one in MESSAGES if any(low <= one <= high for low, high in intervals)}


@given(st.lists(places), st.sampled_from([-1, *MESSAGES]), st.lists(st.integers(0, 5)))
def test_what_no_settled_range_covers_is_unsettled(
    members: list[Interval], start: int, states: list[int]
) -> None:
    later = [one for one in MESSAGES if one > start]
    known = list(zip(later, states, strict=False))
    ranges = [Range(one, one, (SETTLED, *UNSETTLED)[state], 1) for one, state in known]
    ledger = Ledger(LedgerHeader(start_sequence=start), ranges)
    found = unsettled_members(ledger, INDEX, normalise(members))
    settled = {one for one, state in known if state == 0} | {m for m in MESSAGES if m <= start}
    assert messages_in(found) == messages_in(members) - settled
    assert count_messages(INDEX, found) == len(messages_in(found))
    assert bool(found) == bool(messages_in(found))


@given(st.lists(places), st.lists(st.tuples(st.sampled_from(["acked", "lost"]), places)))
def test_each_member_counts_once(members: list[Interval], ends: list[tuple[str, Interval]]) -> None:
    counts = count_ends(ends, INDEX, normalise(members))
    assert sum(counts.values()) == len(messages_in(members) & messages_in([i for _, i in ends]))
    for outcome in {outcome for outcome, _ in ends}:
        own = messages_in([place for name, place in ends if name == outcome])
        others = messages_in([place for name, place in ends if name != outcome])
        assert len((own - others) & messages_in(members)) <= counts[outcome]
        assert counts[outcome] <= len(own & messages_in(members))
