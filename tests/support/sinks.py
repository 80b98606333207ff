"""Sinks of groups: Delta tables and queues."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_mq import Queue

__all__ = ["OF_QUEUES", "OF_TABLES", "SCHEMA", "make_sink", "sink", "table_of", "values"]

SCHEMA = pa.schema([("value", pa.string())])
Options = dict[str, str] | None

OF_TABLES = pytest.mark.parametrize("sink", ["table"], indirect=True)
OF_QUEUES = pytest.mark.parametrize("sink", ["queue"], indirect=True)


@pytest.fixture(params=["table", "queue"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_sink(tmp_path / "sink", request.param)


def make_sink(path: Path | str, kind: str = "table", options: Options = None) -> str:
    if kind == "queue":
        return Queue.create(path, storage_options=options).path
    write_deltalake(str(path), SCHEMA.empty_table(), storage_options=options)
    return str(path)


def table_of(sink: str, options: Options = None) -> DeltaTable:
    """Return the table that has what was written to a sink."""
    is_table = DeltaTable.is_deltatable(sink, options)
    return DeltaTable(sink if is_table else f"{sink}/messages", storage_options=options)


def values(sink: str, options: Options = None) -> list[str]:
    rows = table_of(sink, options).to_pyarrow_table()
    return sorted(rows["value"].cast(pa.string()).to_pylist())
