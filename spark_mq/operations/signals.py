"""Build the telemetry of commands on a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from spark_mq.errors import LeaseLost
from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import Settle, SettleCommand, SettleOutcome
from spark_mq.ledger.stream_batch import AckBatches, Replay
from spark_mq.telemetry.conventions import RECEIVE, SETTLE, Destination, Signal, error_type

__all__ = ["destination_of", "lease_signals", "settle_signals", "signals_of"]

_LOST: Final = f"{LeaseLost.__module__}.{LeaseLost.__qualname__}"


def destination_of(queue_path: str, group: str | None = None) -> Destination:
    return Destination(queue_path.rstrip("/").rpartition("/")[2], group)


def signals_of(command: Command[Any], result: Any) -> list[Signal]:
    """Return the signals of a worker's command, from its result or error."""
    if isinstance(command, Settle):
        return settle_signals(command.parts, result)
    if isinstance(command, AckBatches):
        return _ack_signals(result)
    if isinstance(command, Acquire | Replay):
        acked = result.acked if isinstance(result, Grant) else 0
        return [*_ack_signals(acked), *lease_signals(command.worker_id, result, command.name)]
    return []


def settle_signals(
    commands: Sequence[SettleCommand], result: list[SettleOutcome] | Exception
) -> list[Signal]:
    """Return one signal for each verb of a settle."""
    verbs = dict.fromkeys(command.verb for command in commands)
    if isinstance(result, Exception):
        return [Signal(verb, SETTLE, error=error_type(result)) for verb in verbs]
    found = []
    for verb in verbs:
        mine = [
            outcome
            for command, outcome in zip(commands, result, strict=False)
            if command.verb == verb
        ]
        lost = any(outcome.lost for outcome in mine)
        messages = sum(outcome.settled for outcome in mine)
        found.append(Signal(verb, SETTLE, messages, _LOST if lost else None))
    return found


def _ack_signals(messages: int | Exception) -> list[Signal]:
    """Return the signal of acks that the source made by itself, or none without messages."""
    return [Signal("ack", SETTLE, messages)] if isinstance(messages, int) and messages else []


def lease_signals(worker_id: str, result: Any, name: str = "lease") -> list[Signal]:
    """Return the signal of a lease by its result: an error, ranges, or an object with some."""
    details = {"messaging.client.id": worker_id}
    if isinstance(result, Exception):
        return [Signal(name, RECEIVE, 0, error_type(result), details)]
    messages = sum(r.message_count for r in getattr(result, "ranges", result))
    return [Signal(name, RECEIVE, messages, None, details)] if messages else []
