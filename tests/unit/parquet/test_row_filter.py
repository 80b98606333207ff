"""Which rows of a data file a filter matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_filter import FILTERS
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.lease_columns import match_rows, matching_rows

Row = tuple[str | None, list[tuple[str, str | None]] | None]

HEADERS = pa.map_(pa.string(), pa.string())


def wants(wanted: dict[str, Any], row: Row) -> bool:
    """The same in plain Python."""
    key, headers = row
    prefixes = wanted.get("key_prefix")
    if prefixes and (key is None or not any(key.startswith(one) for one in prefixes)):
        return False
    conditions = wanted.get("header", {}).items()
    return all(
        any(name == of and value in values for of, value in headers or ())
        for name, values in conditions
    )


def table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), ())
    keys, headers = columns
    return pa.table({"key": pa.array(keys, pa.string()), "headers": pa.array(headers, HEADERS)})


words = st.sampled_from(["", "a", "ab", "b", "é", "A"])
rows = st.lists(
    st.tuples(
        st.none() | words, st.none() | st.lists(st.tuples(words, st.none() | words), max_size=3)
    ),
    max_size=12,
)
some = st.lists(words, min_size=1, max_size=2)
filters = st.fixed_dictionaries(
    {},
    optional={
        "key_prefix": st.lists(words.filter(bool), min_size=1, max_size=2),
        "header": st.dictionaries(words.filter(bool), some, min_size=1, max_size=2),
    },
).filter(bool)


@given(rows, filters, st.integers(0, 3))
def test_rows_match_as_in_plain_python(
    given_rows: list[Row], wanted: dict[str, Any], start: int
) -> None:
    wanted = FILTERS.check("filter", wanted)
    found = matching_rows(table(given_rows).slice(start), wanted)
    assert found.to_pylist() == [wants(wanted, row) for row in given_rows[start:]]


def test_bytes_that_are_no_utf8_are_just_other_bytes() -> None:
    offsets = pa.array([0, 1, 2], pa.int32())
    values = pa.array([b"\xff", b"eu"], pa.binary()).view(pa.string())
    headers = pa.MapArray.from_arrays(offsets, pa.array(["region", "region"]), values)
    keys = pa.array([b"eu-\xff", b"\xffeu-"], pa.binary()).view(pa.string())
    found = pa.table({"key": keys, "headers": headers})
    assert matching_rows(found, {"key_prefix": ["eu-"]}).to_pylist() == [True, False]
    assert matching_rows(found, {"header": {"region": ["eu"]}}).to_pylist() == [False, True]


def test_rows_whose_keys_cannot_be_read_count_as_matching(tmp_path: Path) -> None:
    """Then their payload is found damaged, as in a group without a filter."""
    path = tmp_path / "a.parquet"
    rows = table([("us", None)] * 10)
    pq.write_table(
        rows, path, row_group_size=5, write_page_checksum=True, use_dictionary=False,
        compression="none",
    )  # fmt: skip
    column = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(bytes(data))
    piece = FileSlice("a.parquet", 0, 10, 0, 0, 1)
    found = match_rows(ObjectStore(str(tmp_path)), piece, {"key_prefix": ["eu"]})
    assert list(found.between(0, 9)) == [(True, 0, 4), (False, 5, 9)]
