"""Decide what becomes of a batch that has failed, has invalid values, or is left unsettled."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from spark_mq.delta.object_store import canonical_uri
from spark_mq.errors import InvalidOption, InvalidSchema, StorageError
from spark_mq.group import ConsumerGroup
from spark_mq.handler import HandlerPolicy, describe_held
from spark_mq.ledger.settle import RELEASE, SettlePart
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.operations.context import QueueContext
from spark_mq.operations.outages import OUTAGES, find_store_failure, is_outage
from spark_mq.spark.batch_lease import BatchLease
from spark_mq.spark.lease_lookup import BatchLeases
from spark_mq.spark.settle_rows import LeaseRouter
from spark_mq.streaming.source import leave_batch, stream_id_in_queue
from spark_mq.util.failures import exc_info, safe_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

INVALID_VALUES: Final = ("keep", "reject")

_URI: Final = re.compile(r"\b(?:s3a?|gs|az|abfss?|adl|azure)://[^\s'\"]+", re.IGNORECASE)

# An outage in the text of a failed Spark job.
_REMOTE_OUTAGE: Final = re.compile(r"spark_mq\.errors\.(?:StorageError|ContentionTimeout)\b.*")


def find_outage(owners: LeaseRouter, failure: Exception, lease: BatchLease) -> Exception | None:
    """Return the error of the queue's store that made a batch fail, or None.

    `failure` alone proves nothing, because the user's function may use another store, which may
    fail forever. Proof is a failed settle, a Spark task whose error names the queue, or a ledger or
    file of the batch that cannot be read now.
    """
    if owners.outage is not None and is_outage(failure):
        return failure
    ledgers = [(lease_id, owners.of(lease_id)._ledger) for lease_id in lease.lease_ids]
    remote = _REMOTE_OUTAGE.search(safe_text(failure))
    if remote and any(_is_named(ledger.queue, remote[0]) for _, ledger in ledgers):
        return StorageError(f"a task failed: {remote[0][:400]}", path=None, landed=None)
    for lease_id, ledger in ledgers:
        if (outage := find_store_failure(ledger, lease_id)) is not None:
            return outage
    return None


def _is_named(queue: QueueContext, text: str) -> bool:
    """Return whether a text names a queue, in any spelling of its path."""
    if queue.path in text:
        return True
    own, options = canonical_uri(queue.path, queue.storage_options), queue.storage_options
    uris = (canonical_uri(uri, options) for uri in _URI.findall(text))
    return any(f"{uri}/".startswith(f"{own}/") for uri in uris)


def release_batch(owners: LeaseRouter, lease: BatchLease) -> None:
    """Release the unsettled messages of a batch, uncounted, before the query ends."""
    named = ", ".join(lease.lease_ids)
    try:
        owners.settle([SettlePart(RELEASE, lease_id) for lease_id in lease.lease_ids])
    except OUTAGES as error:
        _log.warning("%s could not be released, and waits for its replay: %s", named, error)
    else:
        _log.warning("%s met a failing store. Its messages are released, uncounted", named)


def log_failure(
    owners: LeaseRouter, lease: BatchLease, failure: Exception, verb: str | None
) -> None:
    """Log why a batch failed with the messages of each lease. `verb` settles them, if any."""
    for lease_id in lease.lease_ids:
        group = owners.of(lease_id)
        end = f"; its lease {lease_id} is {verb}ed" if verb else f" (lease {lease_id})"
        text, held = "group %s: a batch failed with %s%s", _held_by(group, lease_id)
        _log.error(text, group.name, held, end, exc_info=exc_info(failure))


def _held_by(group: ConsumerGroup, lease_id: str) -> str:
    try:
        held = group._ledger.current().held(lease_id)
    except Exception as error:  # the log of the failure itself must not fail
        return f"messages that cannot be read now ({safe_text(error)})"
    deliveries: Counter[int] = Counter()
    for r in held:
        deliveries[r.delivery_count] += r.message_count
    return describe_held(deliveries, group._ledger.last_settings.max_delivery_attempts)


class RejectInvalid:
    """Calls ``process(batch, lease)`` after it has rejected the rows with a ``data_error``.

    That verdict depends on the value alone, so a replay gives the same.
    """

    def __init__(
        self, process: Callable[[DataFrame, BatchLease], Any], policy: HandlerPolicy
    ) -> None:
        if policy.ack == "on_receive":
            raise InvalidOption(
                "invalid='reject' cannot be used with ack='on_receive', which acks invalid values "
                "first. Use ack='on_success' or ack='manual'",
                option="invalid",
                value="reject",
            )
        self._process = process

    def __call__(self, batch: DataFrame, lease: BatchLease) -> Any:
        missing = {"data_error", "lease_id", "sequence"} - set(batch.columns)
        if missing:
            name = min(missing)
            raise InvalidSchema(
                f"invalid='reject' needs the column {name!r}. Read with the option valueSchema, "
                f"and keep data_error, lease_id and sequence in your transformations",
                column=name,
            )
        batch = batch.persist()  # Two jobs read it, and Python parses it.
        try:
            invalid = batch.where("data_error IS NOT NULL")
            rejected = lease.reject(
                invalid.selectExpr("lease_id", "sequence", "data_error AS error")
            )
            lease._batch = batch.where("data_error IS NULL")  # for its read()
            if rejected.settled + rejected.already_settled and lease._batch.isEmpty():
                return None
            return self._process(lease._batch, lease)
        finally:
            batch.unpersist()


def leave_unsettled(groups: Iterable[ConsumerGroup], leases: BatchLeases) -> None:
    """Keep Spark's commit of a batch from acking its unsettled messages."""
    batches = {(stream, n) for stream, n, _ in filter(None, map(parse_lease_id, leases.lease_ids))}
    batches |= {(stream, n) for stream, n, several in leases.batches if not several}
    for group in groups:
        place = group._context.path, group._context.storage_options
        several = {
            (stream_id_in_queue(stream, *place), n)
            for stream, n, several in leases.batches
            if several
        }
        for stream, n in sorted(batches | several):
            if left := leave_batch(group._ledger, stream, n):
                _log.info(
                    "group %s: batch %d left %d unsettled messages; they are delivered "
                    "again when their lease expires",
                    group.name,
                    n,
                    left,
                )
