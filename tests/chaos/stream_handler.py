"""The handler of the Spark workers of ``make fault``: appends each batch to a Delta table, and dies
of poison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake


def process(batch: Any, lease: Any) -> None:
    Path(os.environ["FAULT_ALIVE"]).touch()
    rows: pa.Table = batch.select("sequence", "value").toArrow()
    if b"poison" in map(bytes, rows["value"].to_pylist()):
        os.kill(os.getpid(), signal.SIGKILL)
    options, table = lease.delta_options, DeltaTable(os.environ["FAULT_SINK"])
    app, version = options["txnAppId"], int(options["txnVersion"])
    # What Delta's own writer does with these options.
    if (table.transaction_version(app) or 0) < version:
        write_deltalake(
            table, rows.select(["sequence"]), mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app, version)]),
        )  # fmt: skip
