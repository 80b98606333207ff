"""Decide if the queue at a path was created there, moved or copied."""

from __future__ import annotations

import uuid
from dataclasses import replace

from spark_mq.delta.object_store import canonical_path, join
from spark_mq.errors import CopiedQueue, InvalidOption
from spark_mq.ledger.queue_settings import ITSELF, QueueSettings

__all__ = ["dead_letter_place", "identified", "is_own_place", "rehomed", "relative_place"]

_OWN_DEAD_LETTERS = "./dead_letters"


def identified(settings: QueueSettings, root: str) -> QueueSettings:
    """Return the settings of a new queue, with a new id."""
    return replace(settings, queue_id=uuid.uuid4().hex, home=canonical_path(root))


def relative_place(root: str, place: str | None) -> str | None:
    """Return a place below a queue as a relative path. Raise InvalidOption for the queue itself."""
    if place is None:
        return None
    own, other = canonical_path(root), canonical_path(place)
    if own == other:
        raise InvalidOption(
            f"dead_letter_path={place!r} is the queue itself: give another queue, or leave it out",
            option="dead_letter_path",
            value=place,
        )
    return f".{other[len(own) :]}" if other.startswith(own + "/") else place


def is_own_place(settings: QueueSettings) -> bool:
    """Return whether the dead letters stay below the queue, so that a copy has its own."""
    return (settings.dead_letter_path or ITSELF).startswith(".")


def rehomed(
    settings: QueueSettings, root: str, *, copy: bool, place: str | None = None
) -> QueueSettings:
    """Return the settings of a queue that was moved, or of a copy, which gets a new id.

    A copy's dead letters go to `place`. None keeps a place below the queue, or else means
    ``dead_letters/`` below it.
    """
    if not copy:
        return replace(settings, home=canonical_path(root))
    former = (*settings.former_ids, settings.queue_id) if is_own_place(settings) else ()
    keeps = is_own_place(settings) and place is None
    target = settings.dead_letter_path if keeps else relative_place(root, place)
    return replace(
        identified(settings, root), dead_letter_path=target, former_ids=former if keeps else ()
    )


def dead_letter_place(root: str, settings: QueueSettings) -> str:
    """Return the path of the dead letters. Raise CopiedQueue if another queue may use it, too."""
    place = settings.dead_letter_path or _OWN_DEAD_LETTERS
    if settings.is_dead_letter_queue:
        return root
    if place.startswith("./"):
        return join(root, place[2:])
    if settings.home not in (None, canonical_path(root)):
        raise CopiedQueue(
            f"the queue at {root} is a copy, or was moved: it was created at {settings.home}. Its "
            f"dead letters go to {place}, and the other queue may use the same place. Call "
            "Queue.rehome(copy=True) if it is a copy, or Queue.rehome(copy=False) if it was moved",
            path=root,
            home=settings.home,
        )
    return place
