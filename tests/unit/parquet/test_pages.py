"""Reading rows from the middle of large row groups: the same rows as pyarrow reads from the start,
for files of any writer.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from support.marks import slow

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet import reader, thrift
from spark_mq.parquet.pages import PageReader
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.parquet.writer import write_file

ROWS = 120_000


def messages(rows: int = ROWS) -> pa.Table:
    """Pages of many sizes: long and short values, few keys, nulls, headers, times."""
    chance = random.Random(3)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table({
        "message_id": pa.array([f"m{n}" if n % 7 else None for n in range(rows)]),
        "key": pa.array([f"key {n // 9_000}" if n % 5 else None for n in range(rows)]),
        "value": pa.array([chance.randbytes(chance.randrange(60)) for _ in range(rows)],
                          pa.binary()),
        "headers": pa.array([[("h", str(n))] if n % 11 == 0 else None for n in range(rows)],
                            pa.map_(pa.string(), pa.string())),
        "published_at": pa.array([start + timedelta(seconds=n) for n in range(rows)],
                                 pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def codecs(file: Path) -> dict[str, str]:
    """Of each column of a file's first row group."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    return {
        group.column(i).path_in_schema: group.column(i).compression
        for i in range(group.num_columns)
    }


@dataclass(frozen=True)
class Written:
    files: ObjectStore
    path: str
    table: pa.Table

    def slice(self, offset: int, rows: int) -> FileSlice:
        return FileSlice(self.path, offset, rows, offset, 0, 0)


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        "ours, compressed",
        "delta-rs",
        "pyarrow, with an index",
        "pyarrow, pages of version 2",
        "pyarrow, without an index",
    ],
)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder, table = tmp_path_factory.mktemp("files"), messages()
    if request.param == "delta-rs":
        write_deltalake(folder, table)
        path = next(p.name for p in Path(folder).glob("*.parquet"))
    elif request.param.startswith("ours"):
        if "compressed" in request.param:
            padded = pa.array(
                [value + b" " * 60 for value in table["value"].to_pylist()], pa.binary()
            )
            table = table.set_column(table.schema.get_field_index("value"), "value", padded)
        path = write_file(ObjectStore(str(folder)), table).path
        assert codecs(folder / path)["value"] == (
            "SNAPPY" if "compressed" in request.param else "UNCOMPRESSED"
        )
    else:
        path = "file.parquet"
        more: dict[str, Any] = {
            "write_page_index": "without" not in request.param,
            "data_page_version": "2.0" if "2" in request.param else "1.0",
        }
        pq.write_table(
            table,
            folder / path,
            row_group_size=ROWS - 10_000,
            data_page_size=8_000,
            compression="zstd",
            **more,
        )
    large = pq.ParquetFile(folder / path).metadata.row_group(0).num_rows > reader._MAX_WHOLE_ROWS
    assert large != request.param.startswith("ours")
    return Written(ObjectStore(str(folder)), path, table)


@pytest.mark.parametrize(
    ("offset", "rows"),
    [
        (0, 1),
        (0, 10),
        (59_999, 2),
        (54_000, 12_000),
        (109_990, 20),
        (119_999, 1),
        (3, 0),
        (19_000, 42_000),
    ],
)
def test_any_slice_is_what_was_written(written: Written, offset: int, rows: int) -> None:
    found = MessageReader(written.files).read(written.slice(offset, rows))
    same(found, written.table.slice(offset, rows))


def test_slices_in_any_order_are_what_was_written(written: Written) -> None:
    chance, pieces = random.Random(5), MessageReader(written.files)
    at = 0
    for _ in range(60):
        at = chance.choice([at, chance.randrange(ROWS), min(ROWS - 1, at + chance.randrange(500))])
        rows = min(ROWS - at, chance.choice([1, 3, 700]))
        same(pieces.read(written.slice(at, rows)), written.table.slice(at, rows))
        at = min(ROWS - 1, at + rows)


def test_many_slices_are_read_in_one_go(written: Written) -> None:
    pieces = [written.slice(at, 1 + at % 5) for at in range(0, ROWS - 5, 997)]
    rows = [row for piece in pieces for row in range(piece.offset, piece.offset + piece.rows)]
    same(MessageReader(written.files).read(*pieces), written.table.take(rows))


def same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema == FILE_SCHEMA
    for name in ("key", "value", "headers", "published_at"):
        assert found[name].to_pylist() == wanted[name].to_pylist(), name
    ids = found["message_id"].to_pylist()
    assert [i for i in ids if i.startswith("m")] == [
        i for i in wanted["message_id"].to_pylist() if i
    ]


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("text", "SNAPPY"),
        ("random", "UNCOMPRESSED"),
        ("half of each", "SNAPPY"),
        ("few", "SNAPPY"),
        ("one", "UNCOMPRESSED"),
        ("one, half of each", "SNAPPY"),
        ("short", "SNAPPY"),
        ("empty", "SNAPPY"),
    ],
)
def test_values_that_do_not_shrink_are_not_compressed(
    kind: str, codec: str, tmp_path: Path
) -> None:
    """All other columns are. Of few bytes it does not matter."""
    noise, text = random.Random(7).randbytes(500_000), b'{"amount": 12, "currency": "EUR"}' * 15_000
    many = {
        "text": text,
        "random": noise,
        "half of each": noise[:250_000] + text[:250_000],
        "one, half of each": noise[:250_000] + text[:250_000],
        "few": noise[:10_000],
    }
    sizes = {"one": len(noise), "one, half of each": len(noise), "short": 4}
    size, source = sizes.get(kind, 100), many.get(kind, noise)
    values = (
        [b""] * 100_000
        if kind == "empty"
        else [source[at : at + size] for at in range(0, len(source), size)]
    )
    written = write_file(
        ObjectStore(str(tmp_path)), pa.table({"value": pa.array(values, pa.binary())})
    )
    found = codecs(tmp_path / written.path)
    assert found.pop("value") == codec
    assert set(found.values()) == {"SNAPPY"}
    assert pq.read_table(tmp_path / written.path, columns=["value"])["value"].to_pylist() == values


def test_columns_that_nobody_wants_are_not_read(written: Written) -> None:
    found = MessageReader(written.files, ["key"]).read(written.slice(70_000, 5))
    assert found.schema.names == ["key"]
    assert found["key"].to_pylist() == written.table["key"].slice(70_000, 5).to_pylist()
    assert (
        MessageReader(written.files, ["deliver_at"])
        .read(written.slice(70_000, 5))["deliver_at"]
        .to_pylist()
        == [None] * 5
    )


def test_more_rows_than_the_file_has_are_an_error(written: Written) -> None:
    with pytest.raises(pa.ArrowInvalid, match="fewer than its commit says"):
        MessageReader(written.files).try_read(written.slice(ROWS - 1, 2))


@pytest.mark.parametrize(("last", "reported"), [(None, True), ([], False), ([("a", None)], False)])
def test_headers_that_nobody_set_are_not_read(
    tmp_path: Path, last: list[tuple[str, str]] | None, reported: bool
) -> None:
    """But one empty map among a million, or one without a value, is none of these."""
    rows = 60_000
    headers = pa.array([None] * (rows - 1) + [last], pa.map_(pa.string(), pa.string()))
    write_deltalake(tmp_path, pa.table({"value": pa.array([b"x"] * rows), "headers": headers}))
    name = next(p.name for p in tmp_path.glob("*.parquet"))
    column = PageReader(pa.OSFile(str(tmp_path / name))).columns(0, ["headers"], rows - 2, rows)[
        "headers"
    ]
    assert (column is not None) == reported
    found = (
        MessageReader(ObjectStore(str(tmp_path)))
        .read(FileSlice(name, rows - 2, 2, 0, 0, 0))["headers"]
        .to_pylist()
    )
    assert found == [None, last]


class Counted:
    """A file that counts the bytes that are read of it."""

    def __init__(self, file: Any) -> None:
        self._file, self.bytes = file, 0

    def size(self) -> int:
        return int(self._file.size())

    def seek(self, at: int) -> None:
        self._file.seek(at)

    def read(self, size: int) -> bytes:
        self.bytes += size
        return bytes(self._file.read(size))


def test_what_lies_before_a_slice_costs_nothing(tmp_path: Path) -> None:
    values = pa.table(
        {"value": pa.array([bytes([n % 256]) * 100 for n in range(400_000)], pa.binary())}
    )
    pq.write_table(
        values,
        tmp_path / "f",
        row_group_size=400_000,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )
    cost = {}
    for at in (0, 200_000, 399_000):
        raw = Counted(pa.OSFile(str(tmp_path / "f")))
        column = PageReader(raw).columns(0, ["value"], at, at + 1_000)["value"]
        assert column is not None
        assert column.to_pylist() == values["value"].slice(at, 1_000).to_pylist()
        cost[at] = raw.bytes
    assert max(cost.values()) < 1.5 * min(cost.values()), cost
    assert max(cost.values()) < 0.1 * (tmp_path / "f").stat().st_size, cost


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    file = tmp_path / "f"
    values = pa.table({"value": pa.array([b"x" * 40] * ROWS, pa.binary())})
    pq.write_table(
        values,
        file,
        row_group_size=ROWS,
        write_page_index=True,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    pieces, wrong = MessageReader(ObjectStore(str(tmp_path))), 0
    for at in range(0, ROWS, 10_000):
        try:
            assert set(
                pieces.try_read(FileSlice("f", at, 10_000, at, 0, 0))["value"].to_pylist()
            ) == {b"x" * 40}
        except (OSError, pa.ArrowException):
            wrong += 1
    assert 1 <= wrong <= 2, "the slice with that page, and none without it"


@pytest.mark.parametrize("step", [7, slow(1)])
def test_a_flipped_bit_in_the_index_delivers_no_other_message(tmp_path: Path, step: int) -> None:
    """The places of the pages have no checksum.

    And once the file is restored, it is read as ever.
    """
    file = tmp_path / "f"
    values = pa.table({"value": pa.array([f"{n:040}".encode() for n in range(ROWS)], pa.binary())})
    pq.write_table(
        values,
        file,
        row_group_size=ROWS,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )
    good = file.read_bytes()
    raw = PageReader(pa.OSFile(str(file)))
    column = thrift.get(thrift.get(raw.index.meta, 4)[0], 1)[0]
    at, size = thrift.get(column, 4), thrift.get(column, 5)
    reported = thrift.get(thrift.decode(good, at)[0], 1)
    first = thrift.get(reported[len(reported) // 2], 3)
    piece = FileSlice("f", first - 5, 10, first - 5, 0, 0)  # in two pages
    wanted = values["value"].slice(first - 5, 10).to_pylist()
    for place in range(at, at + size, step):
        for bit in (1, 2, 64):
            file.write_bytes(good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :])
            with contextlib.suppress(OSError, pa.ArrowException):
                assert (
                    MessageReader(ObjectStore(str(tmp_path))).try_read(piece)["value"].to_pylist()
                    == wanted
                ), (place - at, bit)
            file.write_bytes(good)
            assert (
                MessageReader(ObjectStore(str(tmp_path))).read(piece)["value"].to_pylist() == wanted
            )


@given(st.binary(max_size=60))
def test_bytes_that_are_no_struct_are_reported(data: bytes) -> None:
    try:
        found, at = thrift.decode(data)
    except ValueError:
        return
    assert at <= len(data)
    assert thrift.decode(thrift.encode(found))[0] == found


def test_a_footer_comes_back_as_it_was(written: Written) -> None:
    data = written.files.read(written.path)
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    found, at = thrift.decode(footer)
    assert at == size
    assert thrift.encode(found) == footer


@pytest.mark.parametrize("split", [1, 3])
def test_parts_of_a_footer_may_be_in_bytes_already(written: Written, split: int) -> None:
    data = written.files.read(written.path)
    found, _ = thrift.decode(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    head = thrift.encode({number: field for number, field in found.items() if number <= split})
    rest = {number: field for number, field in found.items() if number > split}
    whole = head[:-1] + thrift.encode(rest, after=split)
    assert whole == thrift.encode(found)
    assert thrift.encode({1: (thrift.STRUCT, whole)}) == thrift.encode({1: (thrift.STRUCT, found)})


@pytest.mark.parametrize(("size", "files"), [(20, 1), (3_000, 2)])
def test_columns_with_equal_pages_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, files: int
) -> None:
    """Pages of large values have fewer rows than those of ids and keys."""
    table = messages(10_000)
    values = [random.Random(n).randbytes(size) for n in range(table.num_rows)]
    table = table.set_column(2, "value", pa.array(values, pa.binary()))
    store = ObjectStore(str(tmp_path))
    name = write_file(store, table.drop_columns(["headers"])).path
    opened = []
    open_parquet = pq.ParquetFile

    def count(*args: Any, **given: Any) -> pq.ParquetFile:
        opened.append(args)
        return open_parquet(*args, **given)

    pages = PageReader(pa.OSFile(str(tmp_path / name)))
    monkeypatch.setattr(pq, "ParquetFile", count)
    names = ["message_id", "key", "value", "published_at", "deliver_at"]
    found = pages.columns(0, names, 4_321, 4_400)
    assert len(opened) == files
    for column in names[:-1]:
        rows = found[column]
        assert rows is not None
        assert rows.to_pylist() == table[column].slice(4_321, 79).to_pylist()
    empty = found["deliver_at"]
    assert empty is not None
    assert empty.null_count == 79
