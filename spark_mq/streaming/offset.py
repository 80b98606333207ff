"""Define the offsets of streams, and the ids of leases and transactions made from them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from spark_mq.delta.object_store import canonical_path
from spark_mq.errors import InvalidOption

__all__ = [
    "QUEUES",
    "auto_ack_app_id",
    "check_offset",
    "fence_app_id",
    "parse_lease_id",
    "parse_multi_offset",
    "parse_offset",
    "stream_id_in_queue",
]

QUEUES: Final = "queues"  # a key that only the offset of a stream over several queues has

_STREAM = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEASE_ID = re.compile(rf"({_STREAM})/([0-9]{{1,18}})/([0-9a-f]+)")
_MAX_BATCH: Final = 10**18 - 1  # transaction numbers of so many batches fit into 64 bits


def parse_lease_id(lease_id: str) -> tuple[str, int, str] | None:
    """Return (stream, batch, runner) of a lease id, or None if no stream made it."""
    match = _LEASE_ID.fullmatch(lease_id)
    return (match[1], int(match[2]), match[3]) if match else None


def fence_app_id(stream: str) -> str:
    """Return the app id of a stream's transactions in ``leases/`` that fence zombies."""
    return f"spark_mq.stream:{stream}"


def auto_ack_app_id(stream: str) -> str:
    """Return the app id of the last batch that left messages unsettled. See ``auto_ack.py``."""
    return f"spark_mq.left:{stream}"


def check_offset(offset: Any) -> tuple[str, int]:
    """Return (stream, batch) of an offset. Raise InvalidOption for another source's offset."""
    stream, n = (
        (offset.get("stream"), offset.get("batch")) if isinstance(offset, Mapping) else (None, None)
    )
    if not (
        isinstance(stream, str)
        and re.fullmatch(_STREAM, stream)
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


def parse_offset(offset: Any) -> tuple[str, int]:
    """Return (stream, batch) of an offset over one queue. Raise InvalidOption."""
    if isinstance(offset, Mapping) and QUEUES in offset:
        raise InvalidOption(
            "the checkpoint is of a stream over several queues. Give path as a list, such as "
            '["/q/orders"], or use a new checkpoint',
            option="path",
            value=None,
        )
    return check_offset(offset)


def parse_multi_offset(offset: Any) -> tuple[str, int]:
    """Return (stream, batch) of an offset over several queues. Raise InvalidOption."""
    if isinstance(offset, Mapping) and "batch" in offset and QUEUES not in offset:
        raise InvalidOption(
            "the checkpoint is of a stream over one queue. Give path as plain text, not as a list, "
            "or use a new checkpoint",
            option="path",
            value=None,
        )
    return check_offset(offset)


def stream_id_in_queue(stream: str, path: str) -> str:
    """Return the id in one queue of a stream over several queues."""
    # A link, or s3a instead of s3, is no other queue. A queue in memory has no place.
    place = canonical_path(path) if "/" in path else path
    return str(uuid.uuid5(uuid.UUID(stream), place))
