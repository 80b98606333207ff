"""Wait while the store fails, because no message is to blame for that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import ContentionTimeout, SparkMQError, StorageError
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import Settle, SettleCommand, SettleOutcome
from spark_mq.operations.context import GroupLedger

__all__ = ["OUTAGES", "find_store_failure", "is_outage", "outage_pause", "settle_with_retry"]

_log = logging.getLogger(__name__)

OUTAGES: Final = (*STORE_ERRORS, ContentionTimeout)  # pass once the store works again
FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 30.0  # seconds until the next try; each pause is twice the one before
MAX_SETTLE_PAUSE: Final = 5.0  # less, because the lease of a settle may expire meanwhile


def outage_pause(failures: int, most: float = MAX_PAUSE) -> float:
    """Return the seconds to wait after `failures` earlier failures in a row."""
    return min(most, FIRST_PAUSE * 2.0 ** min(failures, 20))


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error is of any store or of contention, or comes from such an error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StorageError | ContentionTimeout):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


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


def settle_with_retry(
    ledger: GroupLedger,
    commands: Sequence[SettleCommand],
    also: Callable[[], Sequence[Command[Any]]],
    gave_up: threading.Event,
    before_retry: Callable[[Sequence[Any]], None],
) -> tuple[list[SettleOutcome], list[Any]] | None:
    """Settle together with other commands. Retry while the store fails, until `gave_up` is set.

    Return the outcomes, and the results or errors of the others, or None after `gave_up`. The first
    try shares the commands of `also`. Each failure calls `before_retry` with their results.
    """
    settle, failures = Settle(tuple(commands)), 0
    while True:
        others = [] if failures else list(also())
        try:
            outcomes, *results = ledger.committer.run([settle, *others])
        except OUTAGES as error:
            outcomes, results = error, []
        if not isinstance(outcomes, Exception):
            return outcomes, results
        before_retry(results)
        if not isinstance(outcomes, OUTAGES):
            raise outcomes
        pause, failures = outage_pause(failures, MAX_SETTLE_PAUSE), failures + 1
        _log.warning("could not settle, trying again in %.1f s: %s", pause, outcomes)
        if gave_up.wait(pause):
            return None
