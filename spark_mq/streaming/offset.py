"""The offsets of streams, and the ids made from them: of leases, and of the marks that fence
zombies."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

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

QUEUES: Final = "queues"
"""What tells the offset of a stream over several queues from that of one."""

_STREAM = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEASE_ID = re.compile(rf"({_STREAM})/([0-9]{{1,18}})/([0-9a-f]+)")
_MOST: Final = 10**18 - 1
"""Batches: the marks of so many still fit into 64 bits."""


def parse_lease_id(lease_id: str) -> tuple[str, int, str] | None:
    """(stream, batch, runner) of a lease id of a stream, or None for another's."""
    match = _LEASE_ID.fullmatch(lease_id)
    return (match[1], int(match[2]), match[3]) if match else None


def fence_app_id(stream: str) -> str:
    """The app id of a stream's marks in ``leases/``."""
    return f"spark_mq.stream:{stream}"


def auto_ack_app_id(stream: str) -> str:
    """The app id under which a stream's last batch stands that has left something unsettled on
    purpose: see ``auto_ack.py``."""
    return f"spark_mq.left:{stream}"


def check_offset(offset: Any) -> tuple[str, int]:
    """(stream, batch) of an offset. Raises InvalidOption for one that is not spark_mq's."""
    stream, n = (
        (offset.get("stream"), offset.get("batch")) if isinstance(offset, Mapping) else (None, None)
    )
    if not (
        isinstance(stream, str)
        and re.fullmatch(_STREAM, stream)
        and isinstance(n, int)
        and not isinstance(n, bool)
        and 0 <= n <= _MOST
    ):
        raise InvalidOption(
            f"the checkpoint holds the offset {str(offset)[:200]!r}, which is none of spark_mq: "
                f"it belongs to another source. "
            "Use a checkpoint of its own",
            option="checkpointLocation", value=str(offset)[:200],
        )  # fmt: skip
    return stream, n


def parse_offset(offset: Any) -> tuple[str, int]:
    """(stream, batch) of an offset of a stream over one queue. Raises InvalidOption."""
    if isinstance(offset, Mapping) and QUEUES in offset:
        raise InvalidOption(
            'the checkpoint is that of a stream over several queues: give path as a list, like '
                '["/q/orders"], or use a new checkpoint',
            option="path", value=None,
        )  # fmt: skip
    return check_offset(offset)


def parse_multi_offset(offset: Any) -> tuple[str, int]:
    """(stream, batch) of an offset of a stream over several queues. Raises InvalidOption."""
    if isinstance(offset, Mapping) and "batch" in offset and QUEUES not in offset:
        raise InvalidOption(
            "the checkpoint is that of a stream over one queue: give its path as plain text, not "
                "as a list, or use a new checkpoint",
            option="path", value=None,
        )  # fmt: skip
    return check_offset(offset)


def stream_id_in_queue(stream: str, path: str) -> str:
    """The id by which a stream over several queues is known in one of them."""
    return str(uuid.uuid5(uuid.UUID(stream), path))
