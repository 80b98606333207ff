"""Open the operations that other writers have posted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from spark_mq.ledger.intervals import Interval, normalise
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleCommand
from spark_mq.operations.acquire import LeaseOptions, lease_operation
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.settle import extend_operation
from spark_mq.operations.shared_ledger import LedgerOperation
from spark_mq.util.validation import (
    truncate_error,
    validate_choice,
    validate_count,
    validate_fraction,
    validate_lease_id,
    validate_name,
)

__all__ = ["open_posted"]


def open_posted(ledger: GroupLedger, data: Mapping[str, Any]) -> LedgerOperation[Any] | None:
    """Return the operation that another writer posted, or None if it must run it itself."""
    try:
        ((kind, given),) = data.items()
        return _KINDS[kind](ledger, given)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None  # unknown to this version of spark_mq, or invalid


def _lease(ledger: GroupLedger, given: Mapping[str, Any]) -> LedgerOperation[Any]:
    return lease_operation(ledger, LeaseOptions(**_checked(given)))


def _settle(ledger: GroupLedger, given: Any) -> LedgerOperation[Any]:
    return ledger.settle_operation([SettleCommand(**_checked(one)) for one in given])


def _extend(ledger: GroupLedger, given: Mapping[str, Any]) -> LedgerOperation[Any]:
    targets = [
        (validate_lease_id(lease_id), _or_none(_intervals)(named))
        for lease_id, named in given["targets"]
    ]
    return extend_operation(ledger, targets, _CHECKS["timeout"](given["timeout"]))


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with valid values, as one wrong value would make the ledger unreadable."""
    return {name: _CHECKS[name](value) for name, value in given.items()}


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not a truth value")
    return value


def _intervals(given: Any) -> list[Interval]:
    sequence = partial(validate_count, "sequence", least=0, most=2**63 - 1)
    found = [(sequence(first), sequence(last)) for first, last in given]
    if any(first > last for first, last in found):
        raise ValueError("an interval ends before it starts")
    return normalise(found)


_MOST_MICROSECONDS: Final = 2**52
_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "worker_id": partial(validate_name, "worker_id"),
    "max_messages": partial(validate_count, "max_messages"),
    "timeout": _or_none(partial(validate_count, "timeout", most=_MOST_MICROSECONDS)),
    "max_timeout": _or_none(partial(validate_count, "max_timeout", most=_MOST_MICROSECONDS)),
    "fail_on_data_loss": _flag,
    "max_bytes": _or_none(partial(validate_count, "max_bytes", most=2**63 - 1)),
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
_KINDS: Final[Mapping[str, Callable[[GroupLedger, Any], LedgerOperation[Any]]]] = {
    "lease": _lease,
    "settle": _settle,
    "extend": _extend,
}
