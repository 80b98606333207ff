"""Encode commands and their results as JSON, for the commit of another writer.

One wrong value would make a ledger unreadable, so each value of a command is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

import msgspec

from spark_mq.ledger.acquire import Acquire, Grant
from spark_mq.ledger.commands import Command
from spark_mq.ledger.intervals import Interval, normalise
from spark_mq.ledger.settle import (
    ACK,
    NACK,
    REJECT,
    RELEASE,
    Extend,
    Extended,
    Settle,
    SettleOutcome,
    SettlePart,
)
from spark_mq.util.user import validate_worker
from spark_mq.util.validation import (
    truncate_error,
    validate_choice,
    validate_count,
    validate_fraction,
    validate_lease_id,
)

_COMMANDS: Final[Mapping[str, type[Command[Any]]]] = {
    kind.name: kind for kind in (Acquire, Settle, Extend)
}
_RESULTS: Final = {
    Acquire.name: Grant,
    Settle.name: list[SettleOutcome],
    Extend.name: Extended,
}


def encode_command(command: Command[Any]) -> dict[str, Any] | None:
    """Return a command as JSON, or None if only its own process can run it."""
    if type(command) not in _COMMANDS.values():
        return None
    given = asdict(command)  # type: ignore[call-overload]
    for field in fields(command):  # type: ignore[arg-type]
        if field.name not in _CHECKS and given.pop(field.name) != field.default:
            return None  # without it, another process would run a different command
    return {command.name: given}


def decode_command(data: Mapping[str, Any]) -> Command[Any] | None:
    """Return another writer's command, or None if it must run it itself."""
    try:
        ((name, given),) = data.items()
        return _COMMANDS[name](**_checked(given))
    except (TypeError, KeyError, ValueError, AttributeError):
        return None  # unknown to this version of spark_mq, or invalid


def encode_result(result: Any) -> Any:
    """Return a result as JSON, or None if the command's own writer must run it."""
    if isinstance(result, Grant) and not result.ranges:
        return None  # it looks for the reason itself
    return msgspec.to_builtins(result) if isinstance(result, Grant | Extended | list) else None


def decode_result(command: Command[Any], data: Any) -> Any:
    """Return the result of a command in another writer's commit."""
    return msgspec.convert(data, _RESULTS[command.name])


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _CHECKS[name](value) for name, value in given.items()}


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not a truth value")
    return value


def _intervals(given: Any) -> list[Interval]:
    sequence = partial(validate_count, "sequence", least=0, most=2**63 - 1)
    intervals = [(sequence(first), sequence(last)) for first, last in given]
    if any(first > last for first, last in intervals):
        raise ValueError("an interval ends before it starts")
    return normalise(intervals)


def _parts(given: Sequence[Mapping[str, Any]]) -> tuple[SettlePart, ...]:
    return tuple(SettlePart(**_checked(part)) for part in given)


def _targets(given: Sequence[Any]) -> tuple[tuple[str, list[Interval] | None], ...]:
    return tuple((validate_lease_id(name), _or_none(_intervals)(named)) for name, named in given)


_MOST_MICROSECONDS: Final = 2**52
_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "worker_id": validate_worker,
    "max_messages": partial(validate_count, "max_messages"),
    "timeout": _or_none(partial(validate_count, "timeout", most=_MOST_MICROSECONDS)),
    "max_timeout": _or_none(partial(validate_count, "max_timeout", most=_MOST_MICROSECONDS)),
    "fail_on_data_loss": _flag,
    "max_bytes": _or_none(partial(validate_count, "max_bytes", most=2**63 - 1)),
    "parts": _parts,
    "targets": _targets,
    "verb": partial(validate_choice, "verb", choices=(ACK, NACK, REJECT, RELEASE)),
    "lease_id": validate_lease_id,
    "intervals": _or_none(_intervals),
    "whole": _flag,
    "delay": _or_none(partial(validate_count, "delay", least=0, most=_MOST_MICROSECONDS)),
    "error": _or_none(truncate_error),
    "reason": truncate_error,
    "jitter": partial(validate_fraction, "jitter"),
    "handler_failed": _flag,
}
