"""Few threads decode at the same time. tests/unit/util/test_fair_lock.py has the lock."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pyarrow as pa
from support.handles import until
from support.rule_variants import first, rule_variant

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.reader import MessageReader, read_turns
from spark_mq.parquet.writer import write_file


def _turns_of_this_read() -> tuple[int, int]:
    with read_turns.hold(30):
        return len(read_turns.owners), read_turns.places


def test_a_forked_process_begins_with_free_places() -> None:
    may_end = threading.Event()

    def read() -> None:
        with read_turns.hold(30):
            may_end.wait(30)

    readers = [threading.Thread(target=read) for _ in range(read_turns.places)]
    for thread in readers:
        thread.start()
    try:
        until(lambda: len(read_turns.owners) == read_turns.places)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(_turns_of_this_read) == (1, read_turns.places)
    finally:
        may_end.set()
    for thread in readers:
        thread.join(30)
    assert not read_turns.owners, "nothing that ran before keeps one"


def test_only_reads_of_local_files_take_turns(tmp_path: Path) -> None:
    """Most of a read from an object store is waiting."""
    turns: list[object] = []
    files, remote = (ObjectStore(str(tmp_path)) for _ in range(2))
    remote.is_local = False
    written = write_file(files, pa.table({"value": pa.array([b"a", b"b"])}))
    piece = FileSlice(written.path, 0, 2, 0, 0, written.size)
    with rule_variant("FairLock.hold", first(turns.append)):
        for store, expected in ((files, 1), (remote, 1), (files, 2)):
            rows = MessageReader(store).read(piece)
            assert rows["value"].to_pylist() == [b"a", b"b"]
            assert len(turns) == expected
