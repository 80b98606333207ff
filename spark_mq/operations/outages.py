"""Recognise a failing store, because no message is to blame for that."""

from __future__ import annotations

import logging
import time
from typing import Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import ContentionTimeout, HandlerTimeout, SparkMQError, StorageError
from spark_mq.operations.context import GroupLedger
from spark_mq.util.failures import cause_of

_log = logging.getLogger(__name__)

OUTAGES: Final = (*STORE_ERRORS, ContentionTimeout)  # pass once the store works again
FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 30.0  # seconds until the next try; each pause is twice the one before
START_SECONDS: Final = 60.0  # of a worker, in which a refusal ends it at once
REFUSED_SECONDS: Final = 60.0  # without a break end it later on


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


class Refusals:
    """Tell a store that refuses a worker from one that fails for a while.

    A refusal is of what this process never could do. If it has changed the group's table before, it
    is an outage. So it is if nothing can be read now, because the queue was read when it was
    opened. The store may recover between an error and that reading, so it takes two refusals in a
    row. A worker that was idle for long gets a minute, because the store may be the cause.
    """

    def __init__(self, ledger: GroupLedger) -> None:
        self._ledger, self._began = ledger, time.monotonic()
        self._refused_at: float | None = None
        self._refused_first: Exception | None = None

    def give_up(self, error: Exception) -> bool:
        """Return whether no wait helps, after an error of a lease."""
        if not self._is_refusal(error):
            self._refused_at = self._refused_first = None
            return False
        now = time.monotonic()
        self._refused_at = now if self._refused_at is None else self._refused_at
        self._refused_first = self._refused_first or error
        if error is self._refused_first:
            return False
        refused, worked = now - self._refused_at, self._refused_at - self._began
        return worked < START_SECONDS or refused >= REFUSED_SECONDS

    def _is_refusal(self, error: Exception) -> bool:
        if self._ledger.ledgers.was_changed or not getattr(error, "lasting", False):
            return False
        try:
            self._ledger.ledgers.read(self._ledger.name)
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
