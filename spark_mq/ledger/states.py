"""Define the states of a range and the legal transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spark_mq.errors import IllegalTransition

__all__ = [
    "AVAILABLE",
    "BLOCKED",
    "DEAD",
    "LEASED",
    "LEGAL_TRANSITIONS",
    "ROUTING",
    "SETTLED",
    "STATES",
    "UNREAD",
    "UNSETTLED",
    "State",
    "illegal_transition",
]


class State(StrEnum):
    """The delivery state of a range, see ``docs/reference/states.md``."""

    #: Published and not yet in the ledger. Only ranges outside a ledger have this state.
    UNREAD = "unread"
    #: Held by a lease until ``expires_at``. The delivery is counted already.
    LEASED = "leased"
    #: Due for delivery from ``available_at`` on.
    AVAILABLE = "available"
    #: Rejected or past a limit. The sweep routes it to the dead-letter queue.
    DEAD = "dead"
    #: Past a limit in a group that blocks. It waits for the owner's ``unblock``.
    BLOCKED = "blocked"
    #: Being copied to another queue under the routing id in ``lease_id``.
    ROUTING = "routing"
    #: Finished. The ledger forgets it below the floor.
    SETTLED = "settled"


UNREAD: Final[str] = State.UNREAD
LEASED: Final[str] = State.LEASED
AVAILABLE: Final[str] = State.AVAILABLE
DEAD: Final[str] = State.DEAD
BLOCKED: Final[str] = State.BLOCKED
ROUTING: Final[str] = State.ROUTING
SETTLED: Final[str] = State.SETTLED

STATES: Final = (LEASED, AVAILABLE, DEAD, BLOCKED, ROUTING, SETTLED)  # of the ranges in a ledger

UNSETTLED: Final = (LEASED, AVAILABLE, DEAD, BLOCKED, ROUTING)

# A late ack, expires_at, a trim or the owner settles available messages without a lease. A redrive
# moves available and unread messages to routing.
_NEXT_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    UNREAD: (LEASED, AVAILABLE, DEAD, ROUTING, SETTLED),
    LEASED: (AVAILABLE, DEAD, BLOCKED, SETTLED),
    AVAILABLE: (LEASED, DEAD, BLOCKED, ROUTING, SETTLED),
    DEAD: (AVAILABLE, ROUTING, SETTLED),
    BLOCKED: (AVAILABLE, DEAD, SETTLED),
    ROUTING: (SETTLED,),
    SETTLED: (),
}
LEGAL_TRANSITIONS: Final = frozenset(
    (before, after) for before, following in _NEXT_STATES.items() for after in (before, *following)
)
"""Pairs of states, equal ones included. A seek replaces the ledger and is not checked."""


def illegal_transition(before: str, after: str) -> IllegalTransition:
    return IllegalTransition(
        f"a range moved from {before} to {after}: the delivery rules do not allow it. This "
        f"is a bug in spark_mq; report it.",
        before=str(before),
        after=str(after),
    )
