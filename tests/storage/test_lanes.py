"""Publish into lanes and by priority: sorting, tags, the index, foreign writers, and what groups
get.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.arrow_memory import at_most
from support.handles import take, take_all
from support.limits import Limits
from support.rule_variants import returns, rule_variant
from support.tables import group_ledger_of, messages_of

from spark_mq import Message, Queue
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import InvalidOption
from spark_mq.ledger.settle import ACK, NACK, SettlePart
from spark_mq.ledger.slots import SlotLayout, decode_slots
from spark_mq.parquet.lease_columns import read_slots, sort_by_slot
from spark_mq.testing import memory_queue

LANES = 8
KEYS = ["a", "b", "c", "d", None]


def messages(count: int) -> list[Message]:
    return [Message(f"{n}", key=KEYS[n % 5], priority=9 if n % 7 == 0 else 0) for n in range(count)]


@pytest.fixture(params=["delta", "memory"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Queue:
    if request.param == "memory":
        return memory_queue(lanes=LANES, dedup_window="1h")
    return Queue.create(tmp_path / "q", lanes=LANES, dedup_window="1h")


def slots_of(queue: Queue, at: int = 0) -> list[tuple[int, int | None]]:
    """Return the priority and the lane of each message of a file."""
    file, layout = messages_of(queue).index().files[at], SlotLayout(LANES)
    found = decode_slots(file.slots).between(0, file.rows - 1)
    return [
        (layout.priority(number), layout.lane_of(number))
        for number, first, last in found
        for _ in range(first, last + 1)
    ]


def test_a_file_is_sorted_by_priority_and_lane(queue: Queue) -> None:
    receipt = queue.publish(messages(50))
    lease = queue.group().lease("w", max_messages=50)
    by_sequence = sorted(lease.messages, key=lambda m: m.sequence)
    expected = [
        (9 if int(m.text) % 7 == 0 else 0, None if m.key is None else crc32(m.key.encode()) % LANES)
        for m in by_sequence
    ]
    assert slots_of(queue) == expected
    assert expected == sorted(expected, key=lambda b: (-b[0], LANES if b[1] is None else b[1]))
    # Stable, and the receipt has the order given.
    assert {m.sequence: m.text for m in by_sequence} == {
        seq: str(n) for n, seq in enumerate(receipt.sequences)
    }
    assert repr(receipt.sequences).endswith(", ...]")
    for slot in set(expected):
        of = [int(m.text) for m, b in zip(by_sequence, expected, strict=True) if b == slot]
        assert of == sorted(of)


def test_a_queue_without_lanes_and_priorities_has_no_slots(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    queue.publish(messages(3)[1:])
    assert not messages_of(queue).index().files.with_slots
    with pytest.raises(InvalidOption, match="lanes"):
        queue.group().configure(order="key")
    assert queue.groups() == []


def test_slots_survive_in_the_commit_index(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", lanes=LANES)
    for _ in range(3):
        queue.publish(messages(20))
    before = list(messages_of(queue).index().files)
    queue.sweep()
    again = Queue.open(tmp_path / "q")
    assert list(messages_of(again).index().files) == before
    assert all(file.slots for file in before)
    assert DeltaTable(tmp_path / "q" / "commits").to_pyarrow_table()["slots"].null_count == 0


def test_files_of_foreign_writers_are_kept_in_order(tmp_path: Path) -> None:
    path = tmp_path / "q"
    queue = Queue.create(path, lanes=LANES)
    group = queue.group()
    group.configure(order="key")
    table = pa.table(
        {"value": [f"{n}".encode() for n in range(12)], "key": [KEYS[n % 4] for n in range(12)]}
    )
    write_deltalake(path / "messages", table, mode="append", schema_mode="merge")
    queue.publish([Message(f"{n}", key=KEYS[n % 4]) for n in range(12, 16)])
    file = messages_of(queue).index().files[0]
    assert decode_slots(file.slots).rows == 12
    seen = [int(text) for text in take_all(group, count=3)]
    assert sorted(seen, key=lambda n: n % 4) == [n for at in range(4) for n in range(at, 16, 4)]


def test_a_tag_that_lies_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "q"
    queue = Queue.create(path, lanes=LANES)
    queue.publish([Message("0", key="a"), Message("1", key="b")])
    log = path / "messages" / "_delta_log" / "00000000000000000001.json"
    own = messages_of(queue).index().files[0].slots
    with rule_variant("read_slots", returns("")):
        assert messages_of(Queue.open(path)).index().files[0].slots == own, "a tag is enough"
    log.write_text(log.read_text().replace(own, "8|72|2 7"))
    assert messages_of(Queue.open(path)).index().files[0].slots == own
    log.write_text(log.read_text().replace(r"numRecords\": 2", r"numRecords\": 3"))
    assert messages_of(Queue.open(path)).index().files[0].slots == ""


def test_sorting_costs_nothing_without_lanes_and_priorities() -> None:
    table = pa.table({"key": ["b", "a"], "priority": pa.array([None, 0], pa.int32())})
    with_slots = sort_by_slot(table, 0)
    assert with_slots.table is table
    assert (with_slots.slots, with_slots.places) == ("", None)


def test_the_priority_is_a_column_of_the_table(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    queue.publish([Message("x", priority=3), "y"])
    [file] = messages_of(queue).index().files
    stored = pq.read_table(tmp_path / "q" / "messages" / file.path)
    assert stored["priority"].to_pylist() == [3, None]


def test_a_redriven_message_stands_at_the_end_of_its_key(queue: Queue) -> None:
    group = queue.group()
    group.configure(order="key")
    first = [Message(f"{n}", key="a", priority=2) for n in range(3)]
    queue.publish(first)
    lease = group.lease("w", max_messages=9)
    lease.reject([lease.messages[0].sequence])
    lease.ack()
    queue.sweep()
    queue.publish(Message("3", key="a", priority=2))
    assert queue.redrive().messages == 1
    assert take(group) == ["3", "0"]
    assert slots_of(queue, 2) == [(2, SlotLayout(LANES).lane("a"))]


@pytest.mark.parametrize("batch", [3, 1 << 16])
def test_runs_go_on_from_batch_to_batch(tmp_path: Path, batch: int, limits: Limits) -> None:
    limits(slot_rows=batch)
    keys = ["a"] * 5 + [None] * 2 + ["b", "a"]
    priorities = [0, None, 0, 0, 3, 3, 0, 0, 0]
    table = pa.table({"key": keys, "priority": pa.array(priorities, pa.int32())})
    pq.write_table(table, tmp_path / "f.parquet")
    layout = SlotLayout(LANES)
    found = decode_slots(read_slots(ObjectStore(str(tmp_path)), "f.parquet", LANES))
    each = [n for n, first, last in found.between(0, 8) for _ in range(first, last + 1)]
    assert each == [
        layout.number(p or 0, layout.lane(key)) for key, p in zip(keys, priorities, strict=True)
    ]


def test_a_key_that_all_rows_share_is_held_once(tmp_path: Path) -> None:
    """A file of 100 kB decodes to 60 GB."""
    rows, large = 60_000, "x" * 1_000_000
    once = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([large]))
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"key": once}), path, store_schema=False, row_group_size=rows)
    with at_most(512 * 2**20):
        text = read_slots(ObjectStore(str(tmp_path)), "bomb.parquet", LANES)
    assert decode_slots(text).rows == rows


def test_damaged_keys_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"no parquet")
    assert read_slots(ObjectStore(str(tmp_path)), "f.parquet", LANES) == ""


def test_an_ack_in_the_commit_of_a_nack_settles_nothing_behind_it(queue: Queue) -> None:
    group = queue.group()
    group.configure(order="key")
    queue.publish([Message(f"{n}", key="a") for n in range(3)])
    lease = group.lease("w", max_messages=3)
    first, second, third = (m.sequence for m in lease.messages)
    acks = SettlePart(ACK, lease.lease_id, [(first, first), (third, third)])
    nack = SettlePart(NACK, lease.lease_id, [(second, second)], delay=0)
    acked, nacked = group_ledger_of(group).settle([acks, nack])
    assert (acked.settled, acked.lost, nacked.settled) == (1, [], 1)
    assert nacked.returned == [(third, third)]
    assert take(group) == ["1", "2"]
