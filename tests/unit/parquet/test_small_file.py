"""Small Parquet files: pyarrow reads back what the encoder was given."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thrift import decode

from spark_mq.parquet.small_file import SmallFileEncoder

INSTANT = pa.timestamp("us", tz="UTC")
TYPES = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    INSTANT: st.integers(-(2**60), 2**60),
    pa.string(): st.text(max_size=300),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=20))
    rows = draw(st.integers(1, 40))
    columns = []
    for kind in kinds:
        nulls = draw(st.sampled_from(["none", "some", "all"]))
        value = {"none": TYPES[kind], "some": st.none() | TYPES[kind], "all": st.none()}[nulls]
        values = draw(st.lists(value, min_size=rows, max_size=rows))
        plain = pa.int64() if kind == INSTANT else kind
        columns.append(pa.array(values, plain).cast(kind))
    return pa.table(columns, names=[f"column {n}" for n in range(len(kinds))])


def plain(column: pa.ChunkedArray) -> list[object]:
    values: list[object] = (
        column.cast(pa.int64()) if column.type == INSTANT else column
    ).to_pylist()
    return values


@given(tables())
def test_pyarrow_reads_back_what_was_encoded(table: pa.Table) -> None:
    data = SmallFileEncoder(table.schema).encode([plain(column) for column in table.columns])
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    assert file.schema_arrow == table.schema
    assert file.read() == table
    assert file.metadata.num_row_groups == 1
    chunks = [file.metadata.row_group(0).column(n) for n in range(table.num_columns)]
    assert sum(chunk.total_compressed_size for chunk in chunks) == (
        file.metadata.row_group(0).total_byte_size
    )


@given(tables(), st.data())
def test_pyarrow_finds_a_damaged_byte_of_a_page(table: pa.Table, draw: st.DataObject) -> None:
    data = bytearray(SmallFileEncoder(table.schema).encode([plain(c) for c in table.columns]))
    header, page = decode(bytes(data), 4)
    at = page + draw.draw(st.integers(0, header[3][1] - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()


@pytest.mark.parametrize("rows", [1, 63, 64, 127, 128, 8_191, 8_192, 20_000])
def test_counts_at_the_edges_of_their_encoding(rows: int) -> None:
    table = pa.table(
        {
            "all": pa.array(range(rows), pa.int64()),
            "some": pa.array([n if n % 3 else None for n in range(rows)], pa.int32()),
            "none": pa.nulls(rows, pa.string()),
            "text": pa.array(["x" * (n % 200) for n in range(rows)], pa.string()),
        }
    )
    data = SmallFileEncoder(table.schema).encode([c.to_pylist() for c in table.columns])
    assert pq.read_table(io.BytesIO(data)) == table


def test_a_type_that_the_encoder_does_not_know_is_refused() -> None:
    with pytest.raises(KeyError):
        SmallFileEncoder(pa.schema([pa.field("x", pa.float64())]))
