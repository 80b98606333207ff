"""Recognise a failing store, because no message is to blame for that."""

from __future__ import annotations

import logging
from typing import Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import ContentionTimeout, HandlerTimeout, SparkMQError, StorageError
from spark_mq.operations.context import GroupLedger
from spark_mq.util.failures import cause_of

__all__ = [
    "OUTAGES",
    "find_store_failure",
    "is_outage",
    "is_refusal",
    "may_be_outage",
    "outage_pause",
]

_log = logging.getLogger(__name__)

OUTAGES: Final = (*STORE_ERRORS, ContentionTimeout)  # pass once the store works again
FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 30.0  # seconds until the next try; each pause is twice the one before


def outage_pause(failures: int, most: float = MAX_PAUSE) -> float:
    """Return the seconds to wait after `failures` earlier failures in a row."""
    return min(most, FIRST_PAUSE * 2.0 ** min(failures, 20))


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error is of any store or of contention, or comes from such an error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if issubclass(type(error), (StorageError, ContentionTimeout)):  # of any user's class
            return True
        seen.add(id(error))
        error = cause_of(error)
    return False


def may_be_outage(error: BaseException | None) -> bool:
    """Return whether a handler's error may be an outage, or a call that hung in one."""
    return is_outage(error) or isinstance(error, HandlerTimeout)


def is_refusal(ledger: GroupLedger, error: Exception) -> bool:
    """Return whether a store refuses what this process never could do, so that no wait helps.

    If the process has changed the group's table before, it is an outage. So it is if nothing can be
    read now, because the queue was read when it was opened.
    """
    if ledger.ledgers.was_changed or not getattr(error, "lasting", False):
        return False
    try:
        ledger.ledgers.read(ledger.name)
    except OUTAGES:
        return False
    return True


def find_store_failure(ledger: GroupLedger, lease_id: str) -> Exception | None:
    """Return why a lease's ledger or a payload file is out of reach, or None."""
    try:
        if ranges := ledger.current().held(lease_id):
            index = ledger.messages.index(ranges[-1].last)
            ledger.payloads.forget(index, ranges)
            ledger.payloads.require_reachable(index, ranges)
    except OUTAGES as error:
        return error
    except SparkMQError as error:
        _log.warning("the files of lease %s could not be checked: %s", lease_id, error)
    return None
