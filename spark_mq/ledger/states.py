"""Define the states of a range and the legal transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spark_mq.errors import IllegalTransition

__all__ = [
    "BLOCKED",
    "DEAD",
    "LEASED",
    "ROUTING",
    "SETTLED",
    "STATES",
    "UNREAD",
    "WAITING",
    "State",
    "validate_transition",
]


class State(StrEnum):
    """The delivery state of a range. The package docstring shows who moves a range on."""

    #: Published and not yet in the ledger. Only ranges outside a ledger have this state.
    UNREAD = "unread"
    #: Held by a lease until ``expires_at``. The delivery is counted already.
    LEASED = "leased"
    #: Due for delivery from ``available_at`` on.
    WAITING = "waiting"
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
WAITING: Final[str] = State.WAITING
DEAD: Final[str] = State.DEAD
BLOCKED: Final[str] = State.BLOCKED
ROUTING: Final[str] = State.ROUTING
SETTLED: Final[str] = State.SETTLED

STATES: Final = (LEASED, WAITING, DEAD, BLOCKED, ROUTING, SETTLED)
"""The states of the ranges in a ledger."""

_NEXT_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    UNREAD: (LEASED, WAITING, DEAD, ROUTING, SETTLED),
    LEASED: (WAITING, DEAD, BLOCKED, SETTLED),
    WAITING: (LEASED, DEAD, BLOCKED, ROUTING, SETTLED),
    DEAD: (ROUTING, SETTLED),
    BLOCKED: (WAITING, DEAD, SETTLED),
    ROUTING: (SETTLED,),
    SETTLED: (),
}
# Pairs: one lookup without a second call, because an ack of single messages makes one a message.
_LEGAL: Final = frozenset(
    (before, after) for before, following in _NEXT_STATES.items() for after in (before, *following)
)


def validate_transition(before: str, after: str) -> None:
    """Check that a range may move from one state to another.

    A range may always keep its state, for a piece of it or a new lease. A seek replaces the
    whole ledger and is not checked here.

    Parameters
    ----------
    before
        The state of the range in the ledger, or ``State.UNREAD``.
    after
        The state of the range in the next ledger.

    Raises
    ------
    IllegalTransition
        The table of legal transitions lacks this one. This is a bug in spark_mq.

    Examples
    --------
    >>> validate_transition(State.LEASED, State.SETTLED)
    """
    if (before, after) not in _LEGAL:
        raise IllegalTransition(
            f"a range moved from {before} to {after}: the delivery rules do not allow it. This "
            f"is a bug in spark_mq; report it.",
            before=str(before),
            after=str(after),
        )
