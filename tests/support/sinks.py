"""A Delta table as the sink of a group."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

__all__ = ["SCHEMA", "make_sink", "sink", "values"]

SCHEMA = pa.schema([("value", pa.string())])


@pytest.fixture
def sink(tmp_path: Path) -> str:
    return make_sink(tmp_path / "sink")


def make_sink(path: Path) -> str:
    write_deltalake(str(path), SCHEMA.empty_table())
    return str(path)


def values(sink: str) -> list[str]:
    return sorted(DeltaTable(sink).to_pyarrow_table()["value"].to_pylist())
