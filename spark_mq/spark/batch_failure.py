"""Decide if an outage of the store made a batch fail."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Final

from spark_mq.errors import SparkMQError, StorageError
from spark_mq.group import ConsumerGroup
from spark_mq.handler import describe_held
from spark_mq.ledger.settle import RELEASE, SettleCommand
from spark_mq.operations.outages import OUTAGES, is_outage
from spark_mq.spark.batch_lease import BatchLease
from spark_mq.spark.lease_router import LeaseRouter

__all__ = ["find_outage", "log_failure", "release_batch"]

_log = logging.getLogger(__name__)

_REMOTE_OUTAGE: Final = re.compile(r"spark_mq\.errors\.(?:StorageError|ContentionTimeout)\b.*")
"""An outage in the text of a failed Spark job."""


def find_outage(owners: LeaseRouter, failure: Exception, lease: BatchLease) -> Exception | None:
    """Return the store's error behind a failed function, or None.

    The function is the user's. A Spark job that failed in an executor names its cause only as text.
    Spark's own reader has other errors. So the batch's files are checked too.
    """
    if is_outage(failure):
        return failure
    if found := _REMOTE_OUTAGE.search(str(failure)):
        return StorageError(f"a task failed: {found[0][:400]}", path=None, landed=None)
    try:
        for lease_id in lease.lease_ids:
            owners.of(lease_id)._ledger.check_payloads(lease_id)
    except OUTAGES as error:
        return error
    except SparkMQError as error:
        _log.warning("the files of lease %s could not be checked: %s", lease.lease_id, error)
    return None


def release_batch(owners: LeaseRouter, lease: BatchLease) -> None:
    """Release the unsettled messages of a batch, uncounted, before the query ends."""
    named = ", ".join(lease.lease_ids)
    try:
        owners.settle([SettleCommand(RELEASE, one) for one in lease.lease_ids])
    except OUTAGES as error:
        _log.warning("%s could not be released, and waits for its replay: %s", named, error)
    else:
        _log.warning("%s met a failing store. Its messages are released, uncounted", named)


def log_failure(owners: LeaseRouter, lease: BatchLease, verb: str | None) -> None:
    """Log the current exception with each lease's messages.

    The leases are those of the batch. ``verb`` is the effect on the lease, if there is one.
    """
    for lease_id in lease.lease_ids:
        group = owners.of(lease_id)
        end = f"; its lease {lease_id} is {verb}ed" if verb else f" (lease {lease_id})"
        _log.exception(
            "group %s: a batch failed with %s%s", group.name, _held_by(group, lease_id), end
        )


def _held_by(group: ConsumerGroup, lease_id: str) -> str:
    """Describe the messages of a lease, for a log."""
    try:
        held = group._ledger.current().held(lease_id)
    except Exception as error:  # the log of the failure itself must not fail
        return f"messages that cannot be read now ({error})"
    deliveries: Counter[int] = Counter()
    for r in held:
        deliveries[r.delivery_count] += r.message_count
    return describe_held(deliveries, group._ledger.last_settings.max_delivery_attempts)
