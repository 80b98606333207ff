"""What a log tells of a failed handler: what it had in hand, and what has become of that. For people; no rule depends on it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, ROUTING, SETTLED, WAITING
from spark_mq.ledger.settle import NACK, REJECT, SettleCommand, SettleOutcome
from spark_mq.util.validation import to_datetime

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["in_hand", "tell_fate"]

_log = logging.getLogger(__name__)

_ENDS: Final = {DEAD: "dead", ROUTING: "dead", BLOCKED: "blocking the group", SETTLED: "dropped", LEASED: "leased again already"}


def in_hand(group: ConsumerGroup, lease_id: str) -> str:
    """How many messages a lease still holds, and which of their deliveries it is."""
    try:
        stored = group.queue.leases.read(group.name)
        ledger, attempts = group.found(stored), group.rules(stored).max_delivery_attempts
    except Exception as error:  # the failure that this is about is to be told whatever happens
        return f"messages that cannot be told for now ({error})"
    held = ledger.held(lease_id)
    if not held:
        return "no message left in its lease"
    counts = sorted({r.delivery_count for r in held})
    delivery = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{_messages(sum(r.message_count for r in held))} in hand (delivery {delivery}{f' of {attempts}' if attempts else ''})"


def tell_fate(group: ConsumerGroup, done: Iterable[tuple[SettleCommand, SettleOutcome]]) -> None:
    """Logs what has become of messages that failed: when they are due again, or that they are dead."""
    for one, outcome in done:
        if not outcome.settled or one.verb not in (NACK, REJECT):
            continue
        try:
            ledger, index, now = group.ledger(), group.queue.log.index(), group.queue.now()
        except Exception as error:
            _log.debug("group %s: what became of lease %s cannot be told: %s", group.name, one.lease_id, error)
            continue
        ends: Counter[str] = Counter()
        due: int | None = None
        for first, last in outcome.ranges:
            for r in ledger.select(list(ledger.overlapping(first, last))):
                piece = r.part(first, last, index)
                if r.state == WAITING:
                    ends["due again"] += piece.message_count
                    due = min(r.available_at or 0, due if due is not None else 2**63)
                else:
                    ends[_ENDS[r.state]] += piece.message_count
        when = "" if due is None else " at once" if due <= now else f" from {to_datetime(due):%Y-%m-%d %H:%M:%S} UTC"
        told = ", ".join(f"{count} {end}{when if end == 'due again' else ''}" for end, count in ends.items() if count)
        verb = "rejected" if one.verb == REJECT else "nacked"
        _log.warning("group %s: %s %s: %s (lease %s)", group.name, _messages(outcome.settled), verb, told or "settled", one.lease_id)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
