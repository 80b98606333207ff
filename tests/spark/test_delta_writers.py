"""What a writer of a Delta table does that sleeps before its commit, while another one commits.

Only delta-rs keeps the other commit on a local disk. So a transaction in the table's log can keep
out a batch that delta-rs writes late, and not one that Spark writes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from support.handles import until
from support.spark_session import new_session

pytestmark = [pytest.mark.slow, pytest.mark.delta]
SPAWN = multiprocessing.get_context("spawn")
STREAM, BATCH = "stream", 1
TRANSACTION = CommitProperties(app_transactions=[Transaction(STREAM, BATCH)])
LIBRARY = Path(__file__).parents[1] / "support" / "freeze_rename.c"


def write_by_spark(table: str, scratch: Path) -> None:
    """Append the batch as a handler does that uses ``lease.delta_options``."""
    writer = new_session(scratch).range(5).write.format("delta").mode("append")
    writer.option("txnAppId", STREAM).option("txnVersion", BATCH).save(table)


def write_by_delta_rs(table: str, _: Path) -> None:
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    with pytest.raises(CommitFailedError, match="oncurrent transaction"):
        write_deltalake(DeltaTable(table), rows, mode="append", commit_properties=TRANSACTION)


@pytest.mark.parametrize(
    ("write", "rows"), [(write_by_delta_rs, [100]), (write_by_spark, [0, 1, 2, 3, 4, 100])]
)
def test_a_writer_that_sleeps_before_its_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[str, Path], None],
    rows: list[int],
) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": pa.array([100], pa.int64())}))
    commit = f"{table}/_delta_log/{1:020}.json"
    library = tmp_path / "freeze.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", library, LIBRARY, "-ldl"]
    subprocess.run(command, check=True)
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("FREEZE_AT", commit)
        writer = SPAWN.Process(target=write, args=(table, tmp_path / "scratch"), daemon=True)
        writer.start()
    frozen = until(lambda: stopped_process(table, writer), "the writer is about to commit")
    try:
        fence(table)
    finally:
        os.kill(frozen, signal.SIGCONT)
    writer.join(120)
    assert writer.exitcode == 0
    after = DeltaTable(table)
    assert sorted(after.to_pyarrow_table()["id"].to_pylist()) == rows
    assert after.version() == 1
    kept = after.transaction_version(f"{STREAM}/fence")
    assert kept == (BATCH if rows == [100] else None), "whose commit is there"


def fence(table: str) -> None:
    """Commit the transaction of the batch without rows, as another worker would."""
    known = DeltaTable(table)
    both = [Transaction(STREAM, BATCH), Transaction(f"{STREAM}/fence", BATCH)]
    known.create_write_transaction(
        [], "append", known.schema(), [], commit_properties=CommitProperties(app_transactions=both)
    )


def stopped_process(table: str, writer: Any) -> int | None:
    """Return the id of a process that writes into the table and is stopped."""
    assert writer.is_alive()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended, or is not ours
            continue
        if state in "Tt" and f"FREEZE_AT={table}/".encode() in environment:
            return int(process.name)
    return None
