"""Data files whose metadata claims gigabytes: they are refused by name, and their memory is not
taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.arrow_memory import at_most
from support.handles import again, index_commits
from support.queues import Make
from support.tables import add_file, group_ledger_of, messages_of, parquet_bytes
from support.thrift import I64, Struct, decode, encode

from spark_mq import errors
from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.parquet.reader import MessageReader
from spark_mq.storage.ledger_files import LEASES_SCHEMA, encode_ledger

MB = 2**20
CLAIM = 2**31 - 1
SMALL = pa.table({"value": pa.array([b"x" * 100, b"y" * 50], pa.binary())})
SHARED = pa.table(
    {"value": pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), [b"z" * MB])}
)


def claims_size(meta: Struct, group: Struct) -> None:
    meta[6] = (I64, CLAIM)


def hides_dictionary(meta: Struct, group: Struct) -> None:
    """The footer says that the column is small, and names no dictionary."""
    meta[9] = meta.pop(11)
    meta[6], group[2] = (I64, 100), (I64, 100)


def claims_less_than_nothing(meta: Struct, group: Struct) -> None:
    meta[6] = (I64, -1)


FILES: dict[str, tuple[pa.Table, Callable[[Struct, Struct], None]]] = {
    "a column of 2 GB": (SMALL, claims_size),
    "a negative size": (SMALL, claims_less_than_nothing),
    "a hidden dictionary": (SHARED, hides_dictionary),
}
REFUSED = r"column value is refused: .*(claim -?\d+ |dictionary that its footer)"


def forged(path: Path, name: str) -> int:
    """Write one of FILES, with its metadata changed. Return its rows."""
    table, lie = FILES[name]
    data = parquet_bytes(table, write_statistics=False, store_schema=False, compression="zstd")
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, _ = decode(data, start)
    group = footer[4][1][1][0]
    lie(group[1][1][1][0][3][1], group)
    end_of_file = encode(footer)
    path.write_bytes(data[:start] + end_of_file + len(end_of_file).to_bytes(4, "little") + b"PAR1")
    return table.num_rows


@pytest.mark.parametrize("name", FILES)
def test_metadata_that_claims_gigabytes_is_refused_by_name(tmp_path: Path, name: str) -> None:
    rows = forged(tmp_path / "f", name)
    assert (tmp_path / "f").stat().st_size < MB
    with at_most(64 * MB), pytest.raises(errors.CorruptLog, match=f"data file f .*{REFUSED}"):
        MessageReader(ObjectStore(str(tmp_path))).read(FileSlice("f", 0, rows, 0, 0, 1))


def test_an_honest_file_that_packs_well_is_read(tmp_path: Path) -> None:
    values = pa.array([bytes(5 * MB), b"", None, b"a" * 1_000] * 2, pa.binary())
    pq.write_table(pa.table({"value": values}), tmp_path / "f", compression="zstd")
    table = MessageReader(ObjectStore(str(tmp_path))).read(FileSlice("f", 0, 8, 0, 0, 1))
    assert table["value"].combine_chunks().equals(values)


def test_too_little_memory_is_no_damage(delta_queue: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's MemoryError is an ArrowException, so it made sound messages dead."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    taken = again(queue).group().lease("w", max_messages=2)

    def fails(*args: object, **options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 2147483648 failed")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read_row_groups", fails)
        with pytest.raises(MemoryError):
            taken.table()
    assert {r.state for r in group_ledger_of(queue.group()).current()} == {"leased"}
    assert taken.table().num_rows == 2


@pytest.mark.parametrize("name", ["a column of 2 GB", "a hidden dictionary"])
def test_the_messages_of_a_bomb_are_dead_and_others_go_on(delta_queue: Make, name: str) -> None:
    queue = delta_queue()
    queue.publish("before")
    path = Path(queue.path) / "messages" / "bomb.parquet"
    rows = forged(path, name)
    add_file(queue, "bomb.parquet", path.stat().st_size, f'{{"numRecords": {rows}}}')
    queue = again(queue)
    queue.publish("after")
    found = []
    with at_most(64 * MB):
        while (taken := queue.group().lease("w", max_messages=50_000)) is not None:
            found += [m.value for m in taken.messages]
            taken.ack()
        assert queue.sweep().routed == rows
    assert sorted(found) == [b"after", b"before"]
    assert queue.redrive(dry_run=True).table.num_rows == 0, "a letter without a payload stays"


@pytest.mark.parametrize("ranges", [50, 150, 3_000])
def test_a_flipped_bit_in_a_page_never_changes_a_ledger(tmp_path: Path, ranges: int) -> None:
    """A lease would go by ranges that nobody wrote."""
    rng, store = random.Random(ranges), ObjectStore(str(tmp_path))
    rows = [Range(2 * n, 2 * n, "leased" if n % 2 else "settled", 1) for n in range(ranges)]
    sound = bytes(encode_ledger(Ledger(LedgerHeader(), rows)).data)
    store.write("f", sound)
    expected = store.read_parquet("f", LEASES_SCHEMA)
    assert expected.num_rows == 1 + ranges
    assert len(sound) < 5_000, "numbers that ascend take little space"
    pages = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    refused = 0
    for _ in range(200):
        data = bytearray(sound)
        data[rng.randrange(pages)] ^= 1 << rng.randrange(8)
        store.write("f", bytes(data))
        try:
            assert store.read_parquet("f", LEASES_SCHEMA) == expected
        except (pa.ArrowInvalid, MemoryError):
            refused += 1
    assert refused > 100


def test_each_table_is_written_with_page_checksums(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish(["a", "b"])
    assert queue.group().lease("w", max_messages=1) is not None
    index_commits(queue)
    queue.sweep()
    home = Path(messages_of(queue).path).parent
    for table in ("messages", "leases", "commits", "history"):
        files = [p for p in (home / table).rglob("*.parquet") if p.parent.name != "_delta_log"]
        assert files, table
        assert all(4 in decode(path.read_bytes(), 4)[0] for path in files), table
