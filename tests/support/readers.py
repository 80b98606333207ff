"""Read a queue's tables by delta-rs beside a writer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_mq import Queue
from spark_mq.storage.ledger_table import LedgerTable
from support.tables import ledgers_of

COMMITS_OF_A_READ = 10


def opened(table: LedgerTable) -> DeltaTable:
    """Open the newest version, again if the listing of the log's folder caught a commit between.

    delta-rs has two texts for it: after the first commit and after a checkpoint.
    """
    while True:
        try:
            return DeltaTable(table.path, storage_options=table.files.options)
        except DeltaError as error:
            if "gap" not in str(error).lower():
                raise


def reads_beside_a_writer(queue: Queue, reads: int) -> None:
    """Each read of the newest version by delta-rs finds the file of a ledger, and all its rows."""
    stop, allowed = threading.Event(), threading.Semaphore(0)
    group = queue.group().ensure()

    def write() -> None:
        held = group.lease("w", max_messages=2)
        while held is not None and not stop.is_set():
            if allowed.acquire(timeout=0.1):
                held.extend()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            versions = set()
            for _ in range(reads):
                # Without a limit, each listing of the log would catch a commit between.
                allowed.release(COMMITS_OF_A_READ)
                table = opened(ledgers_of(queue))
                rows = table.to_pyarrow_table(columns=["state"])
                assert rows["state"].to_pylist().count("header") == 1
                versions.add(table.version())
        finally:
            stop.set()
    writing.result()
    assert len(versions) > reads // 20, "the writer was busy"
