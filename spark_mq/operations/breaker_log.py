"""Log the changes of a group's breaker."""

from __future__ import annotations

import logging

from spark_mq.ledger.breaker import Breaker
from spark_mq.util.advice import RESUME_GROUP
from spark_mq.util.clock import to_datetime
from spark_mq.util.show import printable

__all__ = ["log_breaker_change"]

_log = logging.getLogger(__name__)


def log_breaker_change(group: str, before: Breaker, after: Breaker) -> None:
    if before == after:
        return
    cause, reason = after.cause or "no error text", after.pause_reason or "no reason given"
    cause, reason = printable(cause), printable(reason)
    if after.opened_at is not None and before.opened_at is None:
        _log.error(
            "group %s: the breaker is open: %d leases failed in a row, the last with %s. The next "
            "trial is at %s. Repair the handler, or %s",
            group, len(after.failed), cause, _at(after.next_trial_at), RESUME_GROUP,
        )  # fmt: skip
    elif after.failed_trials > before.failed_trials:
        _log.warning(
            "group %s: the trial failed with %s. The next trial is at %s",
            group, cause, _at(after.next_trial_at),
        )  # fmt: skip
    elif before.opened_at is not None and after.opened_at is None:
        _log.warning("group %s: the breaker is closed", group)
    if after.paused_at is not None and before.paused_at is None:
        _log.warning("group %s is paused: %s", group, reason)
    elif before.paused_at is not None and after.paused_at is None:
        _log.warning("group %s is resumed", group)


def _at(instant: int | None) -> str:
    return "once" if instant is None else f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC"
