"""Read the stored rows of many ledgers, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, to_rows

__all__ = ["scan_ledgers"]

_AHEAD: Final = 16
"""Ledgers that a scan holds in memory at once, and the requests to a store at the same time."""
_LOCAL_THREADS: Final = 2


def scan_ledgers(
    store: ObjectStore,
    files: Mapping[str, Sequence[str]],
    columns: Sequence[str] | None,
    read_ledger: Callable[[str], Ledger | None],
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of groups in order. See :meth:`LedgerStore.scan`.

    Parameters
    ----------
    store
        The files of ``leases/``.
    files
        The paths of each group's data files.
    columns
        Columns of LEASES_SCHEMA. None for all.
    read_ledger
        Reads the ledger of a group whose file another commit has replaced, or names its damage.
    """
    names = LEASES_SCHEMA.names if columns is None else list(columns)
    schema = pa.schema([LEASES_SCHEMA.field(name) for name in names])

    def read(group: str) -> pa.Table | None:
        try:
            return pa.concat_tables([store.read_parquet(path, schema) for path in files[group]])
        except (FileNotFoundError, pa.ArrowException):
            ledger = read_ledger(group)
            return None if ledger is None else to_rows(group, ledger).select(names)

    groups, threads = list(files), _LOCAL_THREADS if store.is_local else _AHEAD
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(groups), _AHEAD):
            some = groups[start : start + _AHEAD]
            # One task for each thread: a task for each file would cost more.
            shares = [some[at::threads] for at in range(threads)]
            tables = list(pool.map(lambda share: [read(group) for group in share], shares))
            for at, group in enumerate(some):
                rows = tables[at % threads][at // threads]
                if rows is not None:
                    yield group, rows
