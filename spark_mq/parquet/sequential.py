"""Read the columns of a row group whose pages cannot be located."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.claims import check_group
from spark_mq.parquet.footers import expanding_columns

__all__ = ["SequentialReader"]

_STEP_ROWS: Final = 10_000
_STEP_BYTES: Final = 16 * 2**20


class SequentialReader:
    """Read a row group once, front to back, in steps."""

    def __init__(self, raw: object, group: int, names: tuple[str, ...]) -> None:
        metadata = pq.ParquetFile(raw, pre_buffer=False).metadata
        check_group(raw, metadata.row_group(group), names)
        file = pq.ParquetFile(
            raw,
            metadata=metadata,
            read_dictionary=expanding_columns(metadata.row_group(group), names),
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            buffer_size=2**20,  # Without it, pyarrow fetches a whole column chunk in one piece.
            pre_buffer=False,
        )
        meta = metadata.row_group(group)
        width = meta.total_byte_size // max(1, meta.num_rows)
        rows = min(_STEP_ROWS, max(1, _STEP_BYTES // max(1, width)))
        # Without pyarrow's threads, for the reason that decode_parquet has.
        self._steps = file.iter_batches(
            rows, row_groups=[group], columns=list(names), use_threads=False
        )
        self._step = pa.table({name: [] for name in names})
        self._begin = 0
        self.at = 0  # the first row that it can still return

    def rows(self, first: int, end: int) -> pa.Table:
        """Return rows `first` up to `end`. A later call must not go back."""
        parts = []
        self.at = first
        while True:
            if self._begin + self._step.num_rows > first:
                upto = min(end - self._begin, self._step.num_rows)
                low = max(first - self._begin, 0)
                parts.append(self._step.slice(low, upto - low))
                if self._begin + upto >= end:
                    return pa.concat_tables(parts)
            self._begin += self._step.num_rows
            step = next(self._steps, None)
            if step is None:
                raise pa.ArrowInvalid(f"a row group ends after {self._begin} rows, too early")
            self._step = pa.Table.from_batches([step])
