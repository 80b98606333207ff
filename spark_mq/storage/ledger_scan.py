"""Read the stored rows of one ledger file, or of many ledgers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import pyarrow as pa

from spark_mq.delta.actions import AddFile
from spark_mq.delta.object_store import ObjectStore, decode_parquet
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, MAX_SMALL_BYTES, decode_small, to_rows

__all__ = ["read_rows", "scan_ledgers"]

# Most ledgers in memory during a scan, and most requests to a store at the same time.
_AHEAD: Final = 16


def read_rows(store: ObjectStore, path: str, size: int, schema: pa.Schema) -> pa.Table:
    """Return a data file's rows with null groups. Raise as :meth:`ObjectStore.read_parquet`."""
    data = store.read(path)
    rows = decode_small(data, schema) if size <= MAX_SMALL_BYTES else None
    return decode_parquet(path, data, schema) if rows is None else rows


def scan_ledgers(
    store: ObjectStore,
    files: Mapping[str, Sequence[AddFile]],
    columns: Sequence[str] | None,
    read_ledger: Callable[[str], Ledger | None],
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of groups in order. See :meth:`LedgerStore.scan`.

    `read_ledger` reads the ledger of a group whose file another commit has replaced, or raises an
    error that names its damage.
    """
    names = LEASES_SCHEMA.names if columns is None else list(columns)
    schema = pa.schema([LEASES_SCHEMA.field(name) for name in names])

    def read(group: str) -> pa.Table | None:
        try:
            parts = [read_rows(store, file.path, file.size, schema) for file in files[group]]
            return parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        except (FileNotFoundError, pa.ArrowInvalid):
            ledger = read_ledger(group)
            return None if ledger is None else to_rows(group, ledger).select(names)

    def tables() -> Iterator[pa.Table | None]:
        if store.is_local:  # the interpreter's lock makes threads slower here
            yield from map(read, files)
            return
        with ThreadPoolExecutor(_AHEAD) as pool:
            for some in _batches(files):
                yield from pool.map(read, some)

    for group, rows in zip(files, tables(), strict=True):
        if rows is not None:
            yield group, rows


def _batches(groups: Iterable[str]) -> Iterator[list[str]]:
    left = iter(groups)
    while some := list(islice(left, _AHEAD)):
        yield some
