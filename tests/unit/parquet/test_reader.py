"""Reading slices of one file and of several: what is filled in, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables import add_file, messages_of, parquet_bytes

from spark_mq import Queue
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.reader import MessageReader, repeat_values, to_delivery_table, verify_slice

AT = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


@pytest.fixture
def files(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path))


def write(files: ObjectStore, name: str, **options: Any) -> None:
    rows = options.pop("rows")
    pq.write_table(rows, Path(files.root, name), **options)


def slice_of(path: str, rows: int, first: int = 0, at: int = 0, offset: int = 0) -> FileSlice:
    return FileSlice(path, offset, rows, first, at, 0)


def leased(first: int, last: int, count: int = 1) -> Range:
    held = {"delivery_count": count, "lease_id": "x", "expires_at": 5 * SECOND}
    return Range(first, last, "leased", last - first + 1, **held)


def test_what_a_publisher_left_out_is_filled_in_for_each_file(files: ObjectStore) -> None:
    write(files, "a", rows=pa.table({"value": [b"1", b"2"]}))
    instants = pa.array([None, AT], pa.timestamp("us", "UTC"))
    rows = {"value": [b"3", b"4"], "message_id": ["own", None], "published_at": instants}
    write(files, "b", rows=pa.table(rows))
    a, b = slice_of("a", 2, 10, SECOND), slice_of("b", 2, 20, 2 * SECOND)
    pieces = [a, b, slice_of("a", 1, 11, SECOND, 1)]
    found = MessageReader(files).read(*pieces)
    assert found.schema == MessageReader(files).read().schema
    assert found["value"].to_pylist() == [b"1", b"2", b"3", b"4", b"2"]
    assert found["message_id"].to_pylist() == ["10", "11", "own", "21", "11"]
    seconds = [
        (instant - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        for instant in found["published_at"].to_pylist()
    ]
    assert seconds == [1, 1, 2, AT.timestamp(), 1]
    assert found["headers"].null_count == 5


def test_a_file_without_any_wanted_column_has_its_rows(files: ObjectStore) -> None:
    write(files, "a", rows=pa.table({"other": [1, 2, 3]}))
    found = MessageReader(files, ["value", "message_id"]).read(slice_of("a", 2, 7, 0, 1))
    assert found.to_pydict() == {"message_id": ["7", "8"], "value": [None, None]}
    with pytest.raises(pa.ArrowInvalid, match="fewer"):
        MessageReader(files, ["value"]).try_read(slice_of("a", 3, 0, 0, 1))


def test_a_foreign_type_is_read_as_the_own_one(files: ObjectStore) -> None:
    rows = pa.table({
        "value": pa.array(["text"], pa.large_string()),
        "published_at": pa.array([1_500_000_999], pa.timestamp("ns")),
        "headers": pa.array([[("h", "x")]], pa.map_(pa.large_string(), pa.string())),
    })  # fmt: skip
    write(files, "a", rows=rows)
    found = MessageReader(files).read(slice_of("a", 1))
    assert found.schema == MessageReader(files).read().schema
    assert found["value"].to_pylist() == [b"text"]
    assert found["headers"].to_pylist() == [[("h", "x")]]
    assert found["published_at"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)]


def test_the_error_names_the_slice_that_cannot_be_read(files: ObjectStore) -> None:
    write(files, "a", rows=pa.table({"value": [b"1"]}))
    pieces = [slice_of("a", 1, 1 << 32), slice_of("gone", 2, 2 << 32)]
    with pytest.raises(CorruptLog, match="gone is missing") as caught:
        MessageReader(files).read(*pieces)
    assert caught.value.version == 2
    with pytest.raises(FileNotFoundError):
        MessageReader(files).try_read(*pieces)


def test_verify_slice_reads_the_footer_only_unless_it_reads_all(files: ObjectStore) -> None:
    write(files, "a", rows=pa.table({"value": [b"1", b"2", b"3", b"4"]}), row_group_size=2)
    piece = slice_of("a", 3, 100, 0, 1)
    assert list(verify_slice(files, piece, 4)) == [(piece, None)]
    parts = verify_slice(files, piece, 4, whole=True)
    found = [(part.offset, part.rows, part.first, why) for part, why in parts]
    assert found == [(1, 1, 100, None), (2, 2, 101, None)]
    ((_, why),) = verify_slice(files, piece, 5)
    assert why == "data file a has 4 rows, and 5 by its commit"
    path = Path(files.root, "a")
    path.write_bytes(b"\xff" * 24 + path.read_bytes()[24:])
    assert list(verify_slice(files, piece, 4)) == [(piece, None)]


def test_a_delivery_table_has_what_the_ledger_says(files: ObjectStore) -> None:
    write(files, "a", rows=pa.table({"value": [b"1", b"2", b"3"]}))
    pieces = [
        (slice_of("a", 2, 10), leased(10, 11)),
        (slice_of("a", 1, 12, 0, 2), leased(12, 12, 4)),
    ]
    payload = MessageReader(files, ["value"]).read(*(piece for piece, _ in pieces))
    kinds = {"sequence": pa.int64(), "value": pa.binary(), "delivery_count": pa.int32(),
             "lease_id": pa.string(), "lease_expires_at": pa.timestamp("us", "UTC")}  # fmt: skip
    found = to_delivery_table(payload, pieces, pa.schema(kinds), {"lease_id": "own"})
    assert found.schema == pa.schema(kinds)
    assert found["sequence"].to_pylist() == [10, 11, 12]
    assert found["delivery_count"].to_pylist() == [1, 1, 4]
    assert set(found["lease_id"].to_pylist()) == {"own"}
    assert {at.timestamp() for at in found["lease_expires_at"].to_pylist()} == {5}

    later = to_delivery_table(payload, pieces, pa.schema(kinds), {"lease_expires_at": 9 * SECOND})
    assert {at.timestamp() for at in later["lease_expires_at"].to_pylist()} == {9}
    assert later["lease_id"].to_pylist() == ["x"] * 3
    schema = pa.schema([pa.field("sequence", pa.int64()), pa.field("state", pa.string())])
    only = to_delivery_table(None, pieces, schema, {})
    assert only.to_pydict() == {"sequence": [10, 11, 12], "state": ["leased"] * 3}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (pa.array([70, -3, None, 4], pa.int32()), [9, 0, 0, 4]),
        (pa.array([9, 9, None, 0], pa.int64()), [9, 9, 0, 0]),
        (None, [0] * 4),
    ],
)
def test_a_priority_is_shown_as_it_counts(
    files: ObjectStore, stored: pa.Array | None, shown: list[int]
) -> None:
    columns = {} if stored is None else {"priority": stored}
    write(files, "a", rows=pa.table({"value": [b"x"] * 4, **columns}))
    pieces = [(slice_of("a", 4, 0), leased(0, 3))]
    payload = MessageReader(files, ["priority"]).read(*(piece for piece, _ in pieces))
    schema = pa.schema([pa.field("priority", pa.int32())])
    assert to_delivery_table(payload, pieces, schema, {})["priority"].to_pylist() == shown


def test_messages_are_the_rows_of_a_file(tmp_path: Path) -> None:
    headers = pa.array([None, [("h", "é")], []], pa.map_(pa.string(), pa.string()))
    instants = pa.array([AT, AT, AT.replace(year=2027)], pa.timestamp("us", "UTC"))
    texts = {"value": [b"\xff", None, b""], "key": ["é", None, ""]}
    queue = Queue.create(tmp_path / "q", durable=False)
    data = parquet_bytes(pa.table({**texts, "headers": headers, "published_at": instants}))
    messages_of(queue).files.write("a", data)
    add_file(queue, "a", len(data))
    found = queue.group().lease("w", max_messages=9).messages
    assert [m.message_id for m in found] == [str(m.sequence) for m in found]
    assert [(m.key, m.value, m.headers) for m in found] == [
        ("é", b"\xff", {}),
        (None, None, {"h": "é"}),
        ("", b"", {}),
    ]
    assert [m.published_at for m in found] == instants.to_pylist()
    assert found[0].headers is not found[2].headers, "a worker may change its own"


@pytest.mark.parametrize("values", [[1, 2], [1, 1], [None, 3], [3, None], [7]])
def test_values_are_repeated(values: list[int | None]) -> None:
    rows = list(range(1, len(values) + 1))
    wanted = [value for value, count in zip(values, rows, strict=True) for _ in range(count)]
    assert repeat_values(values, rows, pa.int64()).to_pylist() == wanted
