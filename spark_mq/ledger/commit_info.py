"""Old names of the commit metadata, until their callers have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_mq.ledger.acquire import AcquireRequest, Grant
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import commit_info as settle_note

__all__ = ["lease_note", "settle_note"]


def lease_note(request: AcquireRequest, ranges: Sequence[Range]) -> dict[str, Any]:
    """Return the metadata of a lease's commit."""
    return Grant(tuple(ranges)).commit_info(request)
