"""Define the states of messages, and the legal transitions between them.

A ledger keeps six of them. Time makes unread and available messages ready or delayed, so views show
these two words for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spark_mq.errors import IllegalTransition


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
    #: Being copied to another queue under the transfer id in ``lease_id``.
    TRANSFERRING = "transferring"
    #: Finished. The ledger forgets it before the start.
    SETTLED = "settled"


UNREAD: Final[str] = State.UNREAD
LEASED: Final[str] = State.LEASED
AVAILABLE: Final[str] = State.AVAILABLE
DEAD: Final[str] = State.DEAD
BLOCKED: Final[str] = State.BLOCKED
TRANSFERRING: Final[str] = State.TRANSFERRING
SETTLED: Final[str] = State.SETTLED

UNSETTLED: Final = (LEASED, AVAILABLE, DEAD, BLOCKED, TRANSFERRING)

# Of messages that the owner may change. Those in transfer belong to another queue, too.
CHANGEABLE: Final = (UNREAD, LEASED, AVAILABLE, DEAD, BLOCKED)

STATES: Final = (*UNSETTLED, SETTLED)  # of the ranges in a ledger

READY: Final = "ready"  # unread or available, and due
DELAYED: Final = "delayed"  # unread or available, and due later

STATE_NAMES: Final[tuple[str, ...]] = (
    READY, UNREAD, DELAYED, LEASED, DEAD, BLOCKED, TRANSFERRING, SETTLED,
)  # fmt: skip
"""The states that views show. "ready" contains "unread"."""

# A late ack, expires_at, a trim or the owner settles available messages without a lease. A redrive
# moves available and unread messages to transferring. If it has a transform and died before its
# publish, the next one moves them back.
_NEXT_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    UNREAD: (LEASED, AVAILABLE, DEAD, TRANSFERRING, SETTLED),
    LEASED: (AVAILABLE, DEAD, BLOCKED, SETTLED),
    AVAILABLE: (LEASED, DEAD, BLOCKED, TRANSFERRING, SETTLED),
    DEAD: (AVAILABLE, TRANSFERRING, SETTLED),
    BLOCKED: (AVAILABLE, DEAD, SETTLED),
    TRANSFERRING: (AVAILABLE, SETTLED),
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
