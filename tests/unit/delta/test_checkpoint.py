"""Checkpoints hold the whole state of a table and no tombstone, and other engines read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.tables import parquet_bytes

from spark_mq.delta.actions import AddFile, Change, checkpoint_path, encode_actions, log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import last_checkpoint, listed_checkpoint
from spark_mq.delta.tables import KEPT_BY_THE_SWEEP, create_table, write_checkpoint
from spark_mq.errors import CorruptLog

SCHEMA = pa.schema([("part", pa.string()), ("value", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = ObjectStore(str(tmp_path / "table"))
    assert create_table(
        made, SCHEMA, description="d", partition_by=["part"], configuration=KEPT_BY_THE_SWEEP
    )
    return made


def file(name: str, part: str | None = "a") -> AddFile:
    return AddFile(f"part={part}/{name}.parquet", 7, 3, {"part": part}, modified=1_000)


def commit(store: ObjectStore, name: str, **options: Any) -> int:
    log = DeltaLog(store)
    return log.commit(Change(name, {"operation": name}, **options), log.refresh().version)


def actions(store: ObjectStore, version: int, name: str) -> list[dict[str, Any]]:
    with store.open(checkpoint_path(version)) as opened:
        column = pq.ParquetFile(opened).read()[name]
    return [row for row in column.to_pylist() if row is not None]


def only_checkpoint(store: ObjectStore, version: int) -> DeltaLog:
    """A new handle that cannot read the commits before the checkpoint."""
    for old in range(version):
        store.delete(log_path(old))
    return DeltaLog(store)


def test_a_checkpoint_holds_the_state_and_no_tombstone(store: ObjectStore) -> None:
    commit(store, "one", adds=[file("one")], txns=[("app", 1)])
    for n in range(20):
        commit(store, f"n{n}", adds=[file(f"n{n}")], removes=[file(f"n{n - 1}")] if n else [])
    version = commit(store, "last", adds=[file("last", None)], txns=[("app", 2), ("other", 9)])
    before = DeltaLog(store).refresh()
    assert write_checkpoint(store) == version == last_checkpoint(store)
    with store.open(checkpoint_path(version)) as opened:
        parquet = pq.ParquetFile(opened)
        assert "remove" not in parquet.schema_arrow.names
        assert parquet.metadata.num_rows == 1 + 1 + 2 + 3
    after = only_checkpoint(store, version).refresh()
    assert sorted(f.path for f in after.files()) == sorted(f.path for f in before.files())
    assert {f.path: f for f in after.files()} == {f.path: f for f in before.files()}
    assert (after.txns, after.metadata["id"]) == ({"app": 2, "other": 9}, before.table_id)
    assert after.metadata["configuration"] == KEPT_BY_THE_SWEEP
    assert after.protocol.minWriterVersion == 2


def test_paths_are_encoded_as_in_commits(store: ObjectStore) -> None:
    commit(store, "one", adds=[file("a b%é"), file("gone %")])
    write_checkpoint(store)
    commit(store, "two", adds=[file("c d")], removes=[file("gone %")])
    version = write_checkpoint(store)
    assert sorted(add["path"] for add in actions(store, version, "add")) == [
        "part=a/a%20b%25%C3%A9.parquet",
        "part=a/c%20d.parquet",
    ]
    paths = {f.path for f in only_checkpoint(store, version).refresh().files()}
    assert paths == {"part=a/a b%é.parquet", "part=a/c d.parquet"}


def test_delta_rs_goes_on_from_a_checkpoint_and_one_of_its_own_is_carried_on_without_tombstones(
    store: ObjectStore,
) -> None:
    for part, value in (("a", 1), ("b", 2), ("a", 3)):
        write_deltalake(store.root, pa.table({"part": [part], "value": [value]}), mode="append")
    only_checkpoint(store, write_checkpoint(store))
    table = DeltaTable(store.root)
    assert table.metadata().description == "d"
    assert table.metadata().configuration == KEPT_BY_THE_SWEEP
    assert table.protocol().min_writer_version == 2
    assert sorted(table.to_pyarrow_table()["value"].to_pylist()) == [1, 2, 3]
    table.delete("part = 'b'")
    table.create_checkpoint()
    theirs = table.version()
    assert actions(store, theirs, "remove")
    stats = {add["path"]: json.loads(add["stats"]) for add in actions(store, theirs, "add")}
    write_deltalake(store.root, pa.table({"part": ["a"], "value": [4]}), mode="append")
    version = write_checkpoint(store)
    assert version == theirs + 1
    ours = {add["path"]: json.loads(add["stats"]) for add in actions(store, version, "add")}
    assert len(ours) == len(stats) + 1
    assert {path: ours[path] for path in stats} == stats
    assert not any(add["dataChange"] for add in actions(store, version, "add"))
    only_checkpoint(store, version)
    found = DeltaTable(store.root).to_pyarrow_table()
    assert sorted(found["value"].to_pylist()) == [1, 3, 4]


def test_a_checkpoint_in_parts_is_carried_on(store: ObjectStore) -> None:
    for name in ("one", "two", "three"):
        version = commit(store, name, adds=[file(name)])
    write_checkpoint(store)
    with store.open(checkpoint_path(version)) as opened:
        whole = pq.ParquetFile(opened).read()
    cut = pc.is_valid(pc.struct_field(whole["add"], "path"))
    for at, part in enumerate((whole.filter(cut), whole.filter(pc.invert(cut))), 1):
        name = f"_delta_log/{version:020d}.checkpoint.{at:010d}.{2:010d}.parquet"
        store.write(name, parquet_bytes(part))
    for path in (checkpoint_path(version), "_delta_log/_last_checkpoint"):
        store.delete(path)
    only_checkpoint(store, version)
    commit(store, "four", adds=[file("four")], removes=[file("two")])
    commit(store, "again", adds=[file("one")])
    second = write_checkpoint(store)
    paths = [f"part=a/{name}.parquet" for name in ("four", "one", "three")]
    assert sorted(add["path"] for add in actions(store, second, "add")) == paths, "each once"
    assert sorted(f.path for f in only_checkpoint(store, second).refresh().files()) == paths


def test_a_change_of_metadata_and_protocol_is_in_the_checkpoint(store: ObjectStore) -> None:
    log = DeltaLog(store)
    metadata = {**log.refresh().metadata, "description": "new"}
    old = {"minReaderVersion": 1, "minWriterVersion": 2}
    new = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}
    changes = [{"protocol": old}, {"protocol": new}, {"metaData": metadata}]
    store.create(log_path(1), encode_actions(changes))
    version = write_checkpoint(store)
    state = only_checkpoint(store, version).refresh()
    assert state.description == "new"
    (protocol,) = actions(store, version, "protocol")
    assert (protocol["minWriterVersion"], protocol["writerFeatures"]) == (7, ["appendOnly"])
    assert DeltaTable(store.root).metadata().description == "new"


def test_a_missing_commit_is_named_and_no_checkpoint_hides_it(store: ObjectStore) -> None:
    for name in ("one", "two", "three"):
        commit(store, name, adds=[file(name)])
    store.delete(log_path(2))
    with pytest.raises(CorruptLog, match="commit 2 "):
        write_checkpoint(store)
    assert last_checkpoint(store) == -1


@pytest.mark.parametrize("parts", ["x", "²", "-1", "9" * 50])
def test_a_checkpoint_with_odd_parts_is_no_checkpoint(tmp_path: Path, parts: str) -> None:
    (tmp_path / "_delta_log").mkdir()
    for name in (f"{7:020d}.json", f"{6:020d}.checkpoint.{1:010d}.{parts}.parquet"):
        (tmp_path / "_delta_log" / name).write_text("{}")
    with pytest.raises(CorruptLog, match="commit 0"):
        listed_checkpoint(ObjectStore(str(tmp_path)))
