"""How a consumer group settles: by lease, by sequence, by message id, those of several threads in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption, LeaseLost
from spark_mq.lease import Lease, SettleResult, result_of
from spark_mq.ledger import settle as settling
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.commit_info import settle_note
from spark_mq.ledger.intervals import Interval, from_sequences
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.util.validation import check_lease_id

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["SETTLE_PAUSE", "Leases", "extend", "settle_named", "settle_together"]

SETTLE_PAUSE = 0.005
"""Seconds to wait after a lost race: less than a lease waits, so that a settle is not starved by leases."""

Leases = str | Lease | Iterable[str | Lease] | Mapping[str, Iterable[int] | None]
"""One lease or several, by id or as objects; or some sequences of each (None: all that it holds)."""

_Part = tuple[str, list[Interval] | None, Lease | None]
"""A lease, what of it is meant (None: all), and its object if that is known: then the whole of it is what that knows of."""


def extend(group: ConsumerGroup, lease_id: str, timeout: int | None) -> tuple[SettleResult, int]:
    """Extends a lease by microseconds (None: the group's visibility timeout). Returns the deadline, too."""

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, tuple[SettleOutcome, int], Mapping[str, Any]]:
        rules, now = group.rules(stored), group.queue.now()
        folded = rules_of.fold(group.found(stored), now, rules, [lease_id])
        deadline = now + (timeout or rules.visibility_timeout)
        after, outcome = settling.extend(folded, lease_id, deadline)
        return after if outcome.settled else None, (outcome, deadline), {"operation": "extend", "lease_id": lease_id}

    outcome, deadline = change(group.queue.leases, group.name, step, pause=SETTLE_PAUSE)
    return _result([(lease_id, None, None)], [outcome]), deadline


def settle_together(group: ConsumerGroup, calls: Sequence[Sequence[SettleCommand]]) -> list[list[SettleOutcome] | Exception]:
    """The settles of several callers in one commit. What cannot be computed for one of them is that one's error alone."""

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, list[list[SettleOutcome] | Exception], Mapping[str, Any]]:
        rules, now = group.rules(stored), group.queue.now()
        ledger = rules_of.fold(group.found(stored), now, rules, {w.lease_id for wanted in calls for w in wanted})
        results: list[list[SettleOutcome] | Exception] = []
        done: list[tuple[SettleCommand, SettleOutcome]] = []
        for wanted in calls:
            try:
                after, outcomes = ledger, []
                reach = max([ledger.frontier, *(last for one in wanted for _, last in one.intervals or ())])
                index = group.queue.log.index(reach)  # whoever names more than is known may know more
                for one in wanted:
                    after, outcome = settling.settle(after, index, now, rules, one)
                    outcomes.append(outcome)
                ledger = after
                results.append(outcomes)
                done += zip(wanted, outcomes, strict=True)
            except Exception as error:
                if len(calls) == 1:
                    raise
                results.append(error)
        changed = any(outcome.settled for _, outcome in done)
        return ledger if changed else None, results, settle_note([w for w, _ in done], [o for _, o in done])

    return change(group.queue.leases, group.name, step, pause=SETTLE_PAUSE)


def settle_named(
    group: ConsumerGroup, leases: Leases, sequences: Iterable[int] | None, ids: Iterable[str] | None, how: Mapping[str, Any]
) -> SettleResult:
    """Settles what is named, each of it if a lease holds it still, and raises LeaseLost for the rest. ``how``: the verb and its arguments.

    ``ids``: message ids; they name all held messages of the leases that have one of them.
    """
    parts, missing = _named(group, leases, sequences, ids)
    wanted = [
        SettleCommand(
            lease_id=lease_id,
            intervals=lease.left() if whole and lease is not None else intervals,
            whole=whole and lease is not None,
            **how,
        )
        for lease_id, intervals, lease in parts
        for whole in [intervals is None]
    ]
    asked = [(part, one) for part, one in zip(parts, wanted, strict=True) if one.intervals != []]
    outcomes = group.settle([one for _, one in asked]) if asked else []
    for ((_, _, lease), _), outcome in zip(asked, outcomes, strict=True):
        if lease is not None:
            lease.forget(outcome.ranges)
    return _result([part for part, _ in asked], outcomes, missing)


def _named(
    group: ConsumerGroup, leases: Leases, sequences: Iterable[int] | None, ids: Iterable[str] | None
) -> tuple[list[_Part], list[str]]:
    """What is meant, lease by lease, and the message ids that no lease holds."""
    if isinstance(leases, Mapping):
        parts = [_part(lease, None if some is None else from_sequences(some)) for lease, some in leases.items()]
    else:
        several = [leases] if isinstance(leases, str | Lease) or not isinstance(leases, Iterable) else list(leases)
        parts = [_part(lease, None if sequences is None else from_sequences(sequences)) for lease in several]
    named = sequences is not None or any(some is not None for _, some, _ in parts)
    if named and (ids is not None or (len(parts) > 1 and sequences is not None)):
        raise InvalidOption(
            "sequences name messages of one lease: give {lease_id: sequences} for several leases, and either sequences or message_ids",
            option="sequences", value=None,
        )  # fmt: skip
    if ids is None:
        return parts, []
    wanted = pa.array(_check_ids(ids), pa.string())
    ledger, log = group.ledger(), group.queue.log
    found: list[_Part] = []
    seen = pa.array([], pa.string())
    for lease_id, _, lease in parts:
        held = ledger.held(lease_id)
        sequences_of: list[int] = []
        for piece, rows in log.read((s for r in held for s in log.index(r.last).slices(r.first, r.last)), ["message_id"]):
            hits = pc.is_in(rows["message_id"], value_set=wanted)
            sequences_of += [piece.first + row for row in pc.indices_nonzero(hits).to_pylist()]
            seen = pa.concat_arrays([seen, *rows["message_id"].filter(hits).chunks])
        found.append((lease_id, from_sequences(sequences_of), lease))
    return found, sorted(set(wanted.to_pylist()) - set(seen.to_pylist()))


def _part(lease: str | Lease, intervals: list[Interval] | None) -> _Part:
    if isinstance(lease, Lease):
        return lease.lease_id, intervals, lease
    return check_lease_id(lease), intervals, None


def _check_ids(ids: Iterable[str]) -> list[str]:
    given = [] if isinstance(ids, str | bytes) or not isinstance(ids, Iterable) else list(ids)
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable) or not all(isinstance(one, str) for one in given):
        raise InvalidOption(f"message_ids={ids!r} is not a list of message ids", option="message_ids", value=ids)
    return given


def _result(parts: Sequence[_Part], outcomes: Sequence[SettleOutcome], missing: Sequence[str] = ()) -> SettleResult:
    """The sum of what some settles did. Raises LeaseLost for what was not held, a whole lease of which nothing is known included."""
    result = result_of([lease_id for lease_id, _, _ in parts], outcomes, missing)
    empty = [
        lease_id for (lease_id, _, _), outcome in zip(parts, outcomes, strict=True) if not (outcome.settled or outcome.already_settled)
    ]
    if empty:
        told = ", ".join(empty)
        brief = told if len(told) <= 400 else f"{told[:400]}..."
        raise LeaseLost(f"lease {brief} holds nothing any more, or never was", lease_id=told, lost=[], message_ids=[], result=result)
    return result
