"""Define the columns of published and delivered messages, and the limits of their values."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.util.clock import EARLIEST, LATEST

INSTANT: Final = pa.timestamp("us", tz="UTC")  # the type of every instant in a table

# The columns of ``messages/``. Only ``value`` is required. The table has no partitions.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("published_at", INSTANT),
        pa.field("deliver_at", INSTANT),
        pa.field("expires_at", INSTANT),
        pa.field("priority", pa.int32()),
    ]
)

DEDUP_FIELD: Final = pa.field("dedup_id", pa.string())  # given by publishers, and not stored

FILE_SCHEMA: Final = MESSAGE_SCHEMA  # of a data file of ``messages/``

TIME_COLUMNS: Final = ("deliver_at", "expires_at")  # limit when a message may be leased

# The columns of a data file that a worker gets.
DELIVERED_COLUMNS: Final = ("message_id", "key", "value", "headers", "published_at")

# The columns of leased messages, in a stream and in the Python API.
DELIVERY_SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        *(MESSAGE_SCHEMA.field(name) for name in DELIVERED_COLUMNS),
        pa.field("delivery_count", pa.int32()),
        pa.field("lease_id", pa.string()),
        pa.field("lease_expires_at", INSTANT),
    ]
)


def effective_priorities(column: pa.Array | pa.ChunkedArray) -> Any:
    """Return priorities within their limits, which foreign writers do not check. Null is 0."""
    return pc.max_element_wise(0, pc.min_element_wise(MAX_PRIORITY, pc.fill_null(column, 0)))


def clamp_instants(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return instants in microseconds, cut to years 1 to 9999, which foreign writers may exceed."""
    instants = column if column.type == INSTANT else column.cast(INSTANT, safe=False)
    if instants.null_count == len(instants):
        return instants
    limits = pc.min_max(instants)
    if limits["min"].value >= EARLIEST and limits["max"].value <= LATEST:
        return instants
    at = instants.cast(pa.int64())
    late = pc.max_element_wise(at, EARLIEST, skip_nulls=False)
    return pc.min_element_wise(late, LATEST, skip_nulls=False).cast(INSTANT)
