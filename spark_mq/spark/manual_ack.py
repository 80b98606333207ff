"""Leave the unsettled messages of a batch to expire (``ack="manual"``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_mq.group import ConsumerGroup
from spark_mq.spark.lease_lookup import BatchLeases
from spark_mq.streaming.auto_ack import exclude_from_auto_ack
from spark_mq.streaming.offset import parse_lease_id, stream_id_in_queue

__all__ = ["leave_unsettled"]

_log = logging.getLogger("spark_mq.spark.foreach_batch")


def leave_unsettled(groups: Iterable[ConsumerGroup], found: BatchLeases) -> None:
    """Keep Spark's commit of a batch from acking its unsettled messages."""
    batches = {(stream, n) for stream, n, _ in filter(None, map(parse_lease_id, found.lease_ids))}
    batches |= {(stream, n) for stream, n, several in found.batches if not several}
    for group in groups:
        several = {
            (stream_id_in_queue(stream, group._context.path), n)
            for stream, n, several in found.batches
            if several
        }
        for stream, n in sorted(batches | several):
            if left := exclude_from_auto_ack(group._ledger, stream, n):
                _log.info(
                    "group %s: batch %d left %d messages unsettled; they are delivered "
                    "again when their lease expires",
                    group.name,
                    n,
                    left,
                )
