"""Reading rows from the middle of small and large row groups: the same rows as pyarrow reads from
the start, for files of any writer.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from support.byte_store import ByteStore

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.reader import MessageReader
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


@dataclass(frozen=True)
class Written:
    files: ObjectStore
    path: str
    table: pa.Table

    def slice(self, offset: int, rows: int) -> FileSlice:
        return FileSlice(self.path, offset, rows, offset, 0, 0)


@pytest.fixture(scope="module", params=["ours", "delta-rs", "pyarrow"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A file of small row groups, of a single one, and of two with small pages."""
    folder, table = tmp_path_factory.mktemp("files"), messages()
    if request.param == "ours":
        path = write_file(ObjectStore(str(folder)), table).path
    elif request.param == "delta-rs":
        write_deltalake(folder, table)
        path = next(p.name for p in Path(folder).glob("*.parquet"))
    else:
        path = "file.parquet"
        pq.write_table(
            table,
            folder / path,
            data_page_version="2.0",
            row_group_size=ROWS - 10_000,
            data_page_size=8_000,
            compression="zstd",
        )
    return Written(ObjectStore(str(folder)), path, table)


@pytest.mark.parametrize(
    ("offset", "rows"),
    [(0, 1), (0, 10), (59_999, 2), (54_000, 12_000), (109_990, 20), (119_999, 1), (3, 0),
     (19_000, 42_000)],
)  # fmt: skip
def test_any_slice_is_what_was_written(written: Written, offset: int, rows: int) -> None:
    found = MessageReader(written.files).read(written.slice(offset, rows))
    same(found, written.table.slice(offset, rows))


def test_many_slices_are_read_in_one_go(written: Written) -> None:
    pieces = [written.slice(at, 1 + at % 5) for at in range(0, ROWS - 5, 997)]
    rows = [row for piece in pieces for row in range(piece.offset, piece.offset + piece.rows)]
    same(MessageReader(written.files).read(*pieces), written.table.take(rows))


def same(found: pa.Table, wanted: pa.Table) -> None:
    for name in ("key", "value", "headers", "published_at"):
        assert found[name].to_pylist() == wanted[name].to_pylist(), name
    ids = found["message_id"].to_pylist()
    assert [i for i in ids if i.startswith("m")] == [
        i for i in wanted["message_id"].to_pylist() if i
    ]


NOISE, TEXT = random.Random(7).randbytes(500_000), b'{"amount": 12, "currency": "EUR"}' * 15_000
MIXED = NOISE[:250_000] + TEXT[:250_000]


@pytest.mark.parametrize(
    ("data", "size", "codec"),
    [(TEXT, 100, "SNAPPY"), (NOISE, 100, "UNCOMPRESSED"), (MIXED, 100, "SNAPPY"),
     (NOISE[:10_000], 100, "SNAPPY"), (NOISE, 500_000, "UNCOMPRESSED"), (MIXED, 500_000, "SNAPPY"),
     (NOISE, 4, "SNAPPY"), (b"", 1, "SNAPPY")],
    ids=["text", "random", "half of each", "few", "one", "one, half of each", "short", "empty"],
)  # fmt: skip
def test_values_that_do_not_shrink_are_not_compressed(
    data: bytes, size: int, codec: str, tmp_path: Path
) -> None:
    """All other columns are. Of few bytes it does not matter."""
    values = [data[at : at + size] for at in range(0, len(data), size)] or [b""] * 100_000
    rows = pa.table({"value": pa.array(values, pa.binary())})
    path = tmp_path / write_file(ObjectStore(str(tmp_path)), rows).path
    columns = pq.read_metadata(path).row_group(0).to_dict()["columns"]
    codecs = {column["path_in_schema"]: column["compression"] for column in columns}
    assert codecs.pop("value") == codec
    assert set(codecs.values()) == {"SNAPPY"}
    assert pq.read_table(path, columns=["value"])["value"].to_pylist() == values


class Counted(io.FileIO):
    """A file that counts the bytes that are read of all such files."""

    bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        Counted.bytes_read += len(data)
        return data

    def __del__(self) -> None:
        self.close()


def test_what_lies_before_a_slice_costs_nothing(tmp_path: Path, byte_store: ByteStore) -> None:
    store, long = ObjectStore(str(tmp_path)), [bytes([n % 256]) * 100 for n in range(400_000)]
    values = pa.table({"value": pa.array(long, pa.binary())})
    name = write_file(store, values).path
    byte_store.on("open", act=lambda call: Counted(tmp_path / call.path))
    costs = []
    for at in (0, 200_000, 390_000):
        reader = MessageReader(store, ["value"])
        reader.row_count(name)  # the footer
        before = Counted.bytes_read
        read = reader.read(FileSlice(name, at, 1_000, at, 0, 0))
        costs.append(Counted.bytes_read - before)
        assert read["value"].equals(values["value"].slice(at, 1_000))
    assert 0 < max(costs) < 1.5 * min(costs), costs
    assert max(costs) < 0.1 * (tmp_path / name).stat().st_size, costs
