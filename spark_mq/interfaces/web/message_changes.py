"""Change one message in a group without a lease: retry it now, discard it, or make it dead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spark_mq.errors import InvalidOption
from spark_mq.inspect.leases import MessagePosition
from spark_mq.interfaces.web.view import View

__all__ = [
    "MESSAGE_CHANGES",
    "change_message",
    "changes_for",
    "sequence_of",
    "standing_of",
]


class MessageChange(NamedTuple):
    """A change of one message, with the question that asks for it."""

    verb: str  # the text of the button
    question: str
    loses: bool = False


MESSAGE_CHANGES: Final[Mapping[str, MessageChange]] = {
    "retry-message": MessageChange("Retry now", "Deliver message {message} to group {group} now?"),
    "discard-message": MessageChange(
        "Discard",
        "Discard message {message} in group {group}? No worker of the group gets it again.",
        loses=True,
    ),
    "dead_letter-message": MessageChange(
        "Dead-letter",
        "Make message {message} dead in group {group}? The next sweep makes it a dead letter.",
    ),
}


def changes_for(one: MessagePosition) -> list[tuple[str, str, bool]]:
    """Return the changes that fit a message, with the text of each button, and if it is red."""
    if one.state in ("transferring", "settled"):
        return []
    useless = {"ready": "retry-message", "dead": "dead_letter-message"}.get(one.state)
    return [(do, one.verb, one.loses) for do, one in MESSAGE_CHANGES.items() if do != useless]


def sequence_of(view: View) -> int:
    """Return the sequence that the parameters name. Raise InvalidOption."""
    if (sequence := view.sequence("sequence")) is None:
        raise InvalidOption(
            "sequence is missing: give version:row, or a number", option="sequence", value=None
        )
    return sequence


def standing_of(view: View) -> Mapping[str, Any]:
    """Return how the message stands in the group, or None if the group does not know it."""
    group, found = view.group()[0].name, view.queue.locate(sequence_of(view))
    return {"standing": next((one for one in found if one.group == group), None)}


def change_message(view: View, do: str) -> Mapping[str, int]:
    """Make one of MESSAGE_CHANGES. Return the sequence, and the number of changed messages."""
    group, sequence = view.group()[0], sequence_of(view)
    given: dict[str, Any] = {"force": view.text("force") is not None, "by": view.user}
    if do == "retry-message":
        changed = group.retry_now(sequence, **given)
    else:
        change = group.discard if do == "discard-message" else group.dead_letter
        changed = change(sequence, reason=view.text("reason"), **given)
    return {"sequence": sequence, "changed": changed}
