"""Open the operations that other writers have posted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.settle import SettleCommand
from spark_mq.operations.acquire import LeaseOptions, lease_operation
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.settle import extend_operation
from spark_mq.operations.shared_ledger import LedgerOperation

__all__ = ["open_posted"]


def open_posted(ledger: GroupLedger, data: Mapping[str, Any]) -> LedgerOperation[Any] | None:
    """Return the operation that another writer has posted.

    Parameters
    ----------
    ledger
        The group.
    data
        The operation as JSON.

    Returns
    -------
    LedgerOperation or None
        None if this version of spark_mq has no such operation. Then its writer runs it.
    """
    try:
        ((kind, given),) = data.items()
        return _KINDS[kind](ledger, given)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def _lease(ledger: GroupLedger, given: Mapping[str, Any]) -> LedgerOperation[Any]:
    return lease_operation(ledger, LeaseOptions(**given))


def _settle(ledger: GroupLedger, given: Any) -> LedgerOperation[Any]:
    commands = [
        SettleCommand(**{**one, "intervals": _intervals(one["intervals"])}) for one in given
    ]
    return ledger.settle_operation(commands)


def _extend(ledger: GroupLedger, given: Mapping[str, Any]) -> LedgerOperation[Any]:
    targets = [(str(lease_id), _intervals(named)) for lease_id, named in given["targets"]]
    return extend_operation(ledger, targets, given["timeout"])


def _intervals(given: Any) -> list[Interval] | None:
    return None if given is None else [(int(first), int(last)) for first, last in given]


_KINDS: Final[Mapping[str, Callable[[GroupLedger, Any], LedgerOperation[Any]]]] = {
    "lease": _lease,
    "settle": _settle,
    "extend": _extend,
}
