"""Data files whose pages claim gigabytes: they are refused by name, and their memory is not
taken.
"""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.arrow_memory import at_most
from support.handles import again, index_commits

from spark_mq import Queue, errors
from spark_mq.delta.actions import AddFile
from spark_mq.delta.log import Change
from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.thrift import I32, I64, Struct, decode, encode, get
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, encode_ledger
from spark_mq.storage.ledger_scan import read_rows

Make = Callable[..., Queue]
MB = 2**20
CLAIM = 2**31 - 1
SMALL = pa.table({"value": pa.array([b"x" * 100, b"y" * 50], pa.binary())})
SHARED = pa.table(
    {"value": pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), [b"z" * MB])}
)


def forge(
    path: Path,
    table: pa.Table,
    change: Callable[[Struct, bytes], bytes],
    lie: Callable[[Struct, Struct, Struct], None] = lambda meta, group, file: None,
    **options: Any,
) -> Path:
    """Write a file of one column, with its page headers, pages and footer changed."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_statistics=False, store_schema=False, **options)
    data = buffer.getvalue()
    footer, _ = decode(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    group = footer[4][1][1][0]
    column = group[1][1][1][0]
    meta = column[3][1]
    at = min(place for place in (get(meta, 11), get(meta, 9)) if place)
    end, out, places = at + get(meta, 7), b"PAR1", {}
    while at < end:
        header, after = decode(data, at)
        at = after + get(header, 3)
        body = change(header, data[after:at])
        header[3] = (I32, len(body))
        header.pop(4, None)  # the checksum
        places.setdefault(get(header, 1), len(out))
        out += encode(header) + body
    meta[7], meta[9] = (I64, len(out) - 4), (I64, places[0])
    if 2 in places:
        meta[11] = (I64, places[2])
    for number in (4, 5, 6, 7):
        column.pop(number, None)  # the page index
    meta.pop(16, None)
    lie(meta, group, footer)
    end_of_file = encode(footer)
    path.write_bytes(out + end_of_file + len(end_of_file).to_bytes(4, "little") + b"PAR1")
    return path


def as_it_is(header: Struct, body: bytes) -> bytes:
    return body


def claims_size(header: Struct, body: bytes) -> bytes:
    header[2] = (I32, CLAIM)
    return body


def claims_values(header: Struct, body: bytes) -> bytes:
    if get(header, 1) == 2:
        header[7][1][1] = (I32, CLAIM)
    return body


def bomb(header: Struct, body: bytes) -> bytes:
    """One value of 300 MB zeros, whose page has 300 kB."""
    size, pack = 300 * MB, zlib.compressobj(9, wbits=31)
    start = b"\x02\x00\x00\x00\x02\x01" + size.to_bytes(4, "little")
    header[2] = (I32, len(start) + size)
    zeros = b"".join(pack.compress(bytes(MB)) for _ in range(300))
    return pack.compress(start) + zeros + pack.flush()


def hides_dictionary(meta: Struct, group: Struct, file: Struct) -> None:
    """The footer says that the column is small, and names no dictionary."""
    meta[9] = meta.pop(11)
    understates(meta, group, file)


def understates(meta: Struct, group: Struct, file: Struct) -> None:
    meta[6], group[2] = (I64, 100), (I64, 100)


FILES: dict[str, tuple[pa.Table, Any, Any, dict[str, Any]]] = {
    "a page of 2 GB": (SMALL, claims_size, None, {"compression": "zstd"}),
    "a page that grows to 300 MB": (SMALL.slice(1), bomb, None, {"compression": "gzip"}),
    "a dictionary of 2 billion values": (SMALL, claims_values, None, {"use_dictionary": True}),
    "a hidden dictionary": (SHARED, as_it_is, hides_dictionary, {"use_dictionary": True}),
    "a packed hidden dictionary": (SHARED, as_it_is, hides_dictionary, {"compression": "zstd"}),
    "an understated dictionary": (SHARED, as_it_is, understates, {"compression": "zstd"}),
}
REFUSED = r"column value is refused: .*(claims? \d+ |dictionary that its footer)"


def forged(path: Path, name: str) -> int:
    """Write one of FILES. Returns its rows."""
    table, change, lie, options = FILES[name]
    if "use_dictionary" not in options and table is not SHARED:
        options = {**options, "use_dictionary": False}
    forge(path, table, change, lie or understates_nothing, **options)
    return table.num_rows


def understates_nothing(meta: Struct, group: Struct, file: Struct) -> None:
    pass


@pytest.mark.parametrize("name", FILES)
def test_pages_that_claim_gigabytes_are_refused_by_name(tmp_path: Path, name: str) -> None:
    rows = forged(tmp_path / "f", name)
    assert (tmp_path / "f").stat().st_size < MB
    with at_most(64 * MB), pytest.raises(errors.CorruptLog, match=f"data file f .*{REFUSED}"):
        MessageReader(ObjectStore(str(tmp_path))).read(FileSlice("f", 0, rows, 0, 0, 1))


def test_a_large_row_group_is_checked_before_it_is_read_in_steps(tmp_path: Path) -> None:
    def overstates(meta: Struct, group: Struct, file: Struct) -> None:
        group[2] = (I64, 10**9)

    forge(tmp_path / "f", SMALL, claims_size, overstates, compression="zstd", use_dictionary=False)
    with at_most(64 * MB), pytest.raises(errors.CorruptLog, match=REFUSED):
        MessageReader(ObjectStore(str(tmp_path))).read(FileSlice("f", 0, 2, 0, 0, 1))


def test_a_page_header_without_end_is_damage(tmp_path: Path) -> None:
    for data in (b"\x1c" * 100_000, b"\x15" + b"\x80" * 100_000):
        with pytest.raises(ValueError, match="no Thrift struct"):
            decode(data)


def test_honest_files_of_the_same_codecs_are_read(tmp_path: Path) -> None:
    values = pa.array([bytes(5 * MB), b"", None, b"a" * 1_000] * 2, pa.binary())
    for codec in ("zstd", "gzip", "brotli", "lz4", "snappy", "none"):
        for version in ("1.0", "2.0"):
            pq.write_table(
                pa.table({"value": values}),
                tmp_path / "f",
                compression=codec,
                data_page_version=version,
            )
            piece = FileSlice("f", 0, 8, 0, 0, 1)
            table = MessageReader(ObjectStore(str(tmp_path))).read(piece)
            assert table["value"].combine_chunks().equals(values)


def test_a_page_that_memory_cannot_hold_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that snappy has packed are looked at only then: they cost nothing before."""

    def fails(*args: object, **options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 2147483648 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fails)
    forge(tmp_path / "f", SMALL, claims_size, understates_nothing, use_dictionary=False)
    with pytest.raises(errors.CorruptLog, match=REFUSED):
        MessageReader(ObjectStore(str(tmp_path))).read(FileSlice("f", 0, 2, 0, 0, 1))


def test_too_little_memory_is_no_damage(delta_queue: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's MemoryError is an ArrowException, so it made sound messages dead."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    taken = again(queue).group().lease("w", max_messages=2)
    assert taken is not None

    def fails(*args: object, **options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 2147483648 failed")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read_row_group", fails)
        with pytest.raises(MemoryError):
            taken.table()
    assert {r.state for r in queue.group()._ledger.current()} == {"leased"}
    assert taken.table().num_rows == 2


@pytest.mark.parametrize("name", ["a page that grows to 300 MB", "a hidden dictionary"])
def test_the_messages_of_a_bomb_are_dead_and_others_go_on(delta_queue: Make, name: str) -> None:
    queue = delta_queue()
    queue.publish("before")
    path = Path(queue.path) / "messages" / "bomb.parquet"
    rows = forged(path, name)
    messages = queue._context.messages
    stats = f'{{"numRecords": {rows}}}'
    add = AddFile("bomb.parquet", path.stat().st_size, 1, stats=stats)
    messages.log.commit(Change("hostile", {"operation": "WRITE"}, adds=(add,)), 0)
    queue = again(queue)
    queue.publish("after")
    found = []
    with at_most(64 * MB):
        while (taken := queue.group().lease("w", max_messages=50_000)) is not None:
            found += [m.value for m in taken.messages]
            taken.ack()
        assert queue.sweep().routed == rows
    assert sorted(found) == [b"after", b"before"]
    letters = queue.redrive(dry_run=True).table
    assert letters is not None
    assert letters.num_rows == 0  # a letter without a payload is not redriven


def break_pages(table: Path) -> None:
    """Rewrite a table's data files as snappy pages, whose first one is no snappy.

    It takes all files, because two that were written within a tick of the disk's clock look
    equally new.
    """
    paths = list(table.rglob("part-*.parquet"))
    assert paths
    for path in paths:
        buffer = io.BytesIO()
        rows = pq.ParquetFile(path).read()
        pq.write_table(rows, buffer, compression="snappy", use_dictionary=False)
        data = bytearray(buffer.getvalue())
        _, page = decode(bytes(data), 4)
        data[page : page + 5] = b"\xff" * 5
        path.write_bytes(data)


def test_a_ledger_whose_pages_are_broken_is_named_with_its_advice(
    delta_queue: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """pyarrow raises an OSError without a number, which looked like one of the store."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    queue.group("other").ensure()
    assert queue.group("broken").lease("w", max_messages=1) is not None
    break_pages(Path(queue._context.ledgers.path, "consumer_group=broken"))
    read = again(queue)
    for fails in (read.group("broken").stats, read.stats):
        with pytest.raises(errors.CorruptLog, match="'broken' cannot be read") as caught:
            fails()
        assert caught.value.advice, "the group can be dropped"
    assert read.group("other").lease("w", max_messages=2) is not None
    with pytest.raises(errors.CorruptLog, match="'broken' cannot be read"):
        read.sweep()  # its other chores are done
    assert "is lost: consumer_group=broken" in caplog.text


def test_a_broken_page_of_commits_costs_nothing_while_the_log_is_there(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish(["a", "b"])
    index_commits(queue)
    break_pages(Path(queue._context.messages.path).parent / "commits")
    assert again(queue).stats()["published"] == 2


@pytest.mark.parametrize("ranges", [50, 300, 3_000])
def test_a_flipped_bit_in_a_page_never_changes_a_ledger(tmp_path: Path, ranges: int) -> None:
    """A lease would go by ranges that nobody wrote."""
    rng, store = random.Random(ranges), ObjectStore(str(tmp_path))
    rows = [Range(2 * n, 2 * n, "leased" if n % 2 else "settled", 1) for n in range(ranges)]
    sound = bytes(encode_ledger(Ledger(LedgerHeader(), rows))[0])
    store.write("f", sound)
    expected = read_rows(store, "f", len(sound), LEASES_SCHEMA)
    pages = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    refused = 0
    for _ in range(200):
        data = bytearray(sound)
        data[rng.randrange(pages)] ^= 1 << rng.randrange(8)
        store.write("f", bytes(data))
        try:
            assert read_rows(store, "f", len(sound), LEASES_SCHEMA) == expected
        except (pa.ArrowInvalid, MemoryError):
            refused += 1
    assert refused > 100


def test_each_table_is_written_with_page_checksums(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish(["a", "b"])
    assert queue.group().lease("w", max_messages=1) is not None
    index_commits(queue)
    queue.sweep()
    home = Path(queue._context.messages.path).parent
    for table in ("messages", "leases", "commits", "history"):
        files = [p for p in (home / table).rglob("*.parquet") if p.parent.name != "_delta_log"]
        assert files, table
        assert all(4 in decode(path.read_bytes(), 4)[0] for path in files), table
