"""Define the offsets of streams."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from spark_mq.delta.object_store import canonical_path
from spark_mq.errors import InvalidOption
from spark_mq.ledger.stream_batch import STREAM_ID

QUEUES: Final = "queues"  # a key that only the offset of a stream over several queues has

_OTHER_PATH: Final = {
    False: "the checkpoint is of a stream over several queues. Give path as a list, such as "
    '["/q/orders"], or use a new checkpoint',
    True: "the checkpoint is of a stream over one queue. Give path as plain text, not as a list, "
    "or use a new checkpoint",
}

_MAX_BATCH: Final = 10**18 - 1  # transaction numbers of so many batches fit into 64 bits


def check_offset(offset: Any) -> tuple[str, int]:
    """Return (stream, batch) of an offset. Raise InvalidOption for another source's offset."""
    stream, n = (
        (offset.get("stream"), offset.get("batch")) if isinstance(offset, Mapping) else (None, None)
    )
    if not (
        isinstance(stream, str)
        and re.fullmatch(STREAM_ID, stream)
        and isinstance(n, int)
        and not isinstance(n, bool)
        and 0 <= n <= _MAX_BATCH
    ):
        raise InvalidOption(
            f"the checkpoint's offset {str(offset)[:200]!r} is not of spark_mq: another source "
            f"wrote it. Use a checkpoint of its own",
            option="checkpointLocation",
            value=str(offset)[:200],
        )
    return stream, n


def parse_offset(offset: Any, *, several: bool = False) -> tuple[str, int]:
    """Return (stream, batch) of an offset over one queue or `several`. Raise InvalidOption."""
    if isinstance(offset, Mapping) and "batch" in offset and (QUEUES in offset) is not several:
        raise InvalidOption(_OTHER_PATH[several], option="path", value=dict(offset))
    return check_offset(offset)


def stream_id_in_queue(
    stream: str, path: str, storage_options: Mapping[str, str] | None = None
) -> str:
    """Return the id in one queue of a stream over several queues."""
    # A link, or s3a instead of s3, is no other queue. A queue in memory has no place.
    place = canonical_path(path, storage_options) if "/" in path else path
    return str(uuid.uuid5(uuid.UUID(stream), place))
