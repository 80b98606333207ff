"""Sinks of groups: Delta tables and queues."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_mq import Queue

__all__ = ["OF_QUEUES", "OF_TABLES", "SCHEMA", "make_sink", "sink", "values"]

SCHEMA = pa.schema([("value", pa.string())])


OF_TABLES = pytest.mark.parametrize("sink", ["table"], indirect=True)
OF_QUEUES = pytest.mark.parametrize("sink", ["queue"], indirect=True)


@pytest.fixture(params=["table", "queue"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_sink(tmp_path / "sink", request.param)


def make_sink(path: Path, kind: str = "table") -> str:
    if kind == "queue":
        return Queue.create(path).path
    write_deltalake(str(path), SCHEMA.empty_table())
    return str(path)


def values(sink: str) -> list[str]:
    is_queue = Path(sink, "messages").exists()
    table = DeltaTable(f"{sink}/messages" if is_queue else sink)
    return sorted(table.to_pyarrow_table()["value"].cast(pa.string()).to_pylist())
