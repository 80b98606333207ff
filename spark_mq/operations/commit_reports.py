"""Tell people about commands: their telemetry, and what the log should say of a commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from spark_mq.errors import LeaseLost
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.commands import Command
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import Settle
from spark_mq.ledger.stream_batch import AckBatches, Replay
from spark_mq.telemetry import RECEIVE, SETTLE, Signal, error_type
from spark_mq.util.clock import to_datetime
from spark_mq.util.show import printable, shell_command, show_count, show_some, show_time
from spark_mq.util.user import worker_label

_log = logging.getLogger(__name__)
_LOST: Final = f"{LeaseLost.__module__}.{LeaseLost.__qualname__}"


def signals_of(command: Command[Any], result: Any) -> list[Signal]:
    """Return the telemetry of a worker's command, from its result or error."""
    if isinstance(command, Settle):
        return _settle_signals(command, result)
    if isinstance(command, AckBatches):
        return _ack_signals(result)
    if isinstance(command, Acquire | Replay):
        return _lease_signals(command, result)
    return []


def _settle_signals(command: Settle, result: Any) -> list[Signal]:
    """Return one signal for each verb of a settle."""
    verbs = dict.fromkeys(part.verb for part in command.parts)
    if isinstance(result, Exception):
        return [Signal(verb, SETTLE, error=error_type(result)) for verb in verbs]
    signals = []
    for verb in verbs:
        pairs = zip(command.parts, result, strict=False)
        mine = [outcome for part, outcome in pairs if part.verb == verb]
        lost = _LOST if any(outcome.lost for outcome in mine) else None
        signals.append(Signal(verb, SETTLE, sum(outcome.settled for outcome in mine), lost))
    return signals


def _ack_signals(messages: Any) -> list[Signal]:
    """Return the signal of acks that the source made by itself, or none without messages."""
    return [Signal("ack", SETTLE, messages)] if isinstance(messages, int) and messages else []


def _lease_signals(command: Acquire | Replay, result: Grant | Exception) -> list[Signal]:
    details = {"messaging.client.id": worker_label(command.worker_id)}
    if isinstance(result, Exception):
        return [Signal(command.name, RECEIVE, 0, error_type(result), details)]
    signals, messages = _ack_signals(result.acked), result.message_count
    if messages:
        signals.append(Signal(command.name, RECEIVE, messages, None, details))
    return signals


def log_breaker_change(group: str, queue_path: str, before: Breaker, after: Breaker) -> None:
    if before == after:
        return
    cause, reason = after.cause or "no error text", after.pause_reason or "no reason given"
    cause, reason = printable(cause), printable(reason)
    if after.opened_at is not None and before.opened_at is None:
        _log.error(
            "group %s: the breaker is open: %d leases failed in a row, the last with %s. The next "
            "trial is at %s. Repair the handler, or call group.resume() or %s. If only "
            "some messages are bad, let the handler reject them, or set breaker_threshold=None, so "
            "that they become dead letters",
            group, len(after.failed), cause, _at(after.next_trial_at),
            shell_command("group", "resume", group, "-q", queue_path),
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


def log_expired(group: str, events: Iterable[tuple[str, Range]]) -> None:
    """Log which workers lost leases, because they died, hung, or lost sight of the store."""
    messages: Counter[str] = Counter()
    for event, r in events:
        if event == "lease_expired":
            messages[r.worker or "unknown"] += r.message_count
    _log.warning(
        "group %s: the leases of %s expired, with %s. Their workers died, hung, or did not reach "
        "the store",
        group, show_some(list(messages), 5), show_count(messages.total(), "message"),
    )  # fmt: skip


def _at(instant: int | None) -> str:
    return "once" if instant is None else show_time(to_datetime(instant))
