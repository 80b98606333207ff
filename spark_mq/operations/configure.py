"""Change the settings of a queue that may change after its creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.ledger.queue_settings import QUEUE_DURATIONS, QueueSettings
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.trim import NoteChange
from spark_mq.operations.context import QueueContext
from spark_mq.operations.public_settings import public_queue_settings, settings_changed
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.util.advice import CONFIGURE_GROUP, CONFIGURE_QUEUE
from spark_mq.util.validation import suggest

__all__ = ["configure_queue"]

# Settings of a queue that cannot change, each with the reason and the remedy.
_FIXED: Final[Mapping[str, str]] = {
    "dead_letter_path": "dead letters that are there would be split between two queues. Drain this "
    "queue and create another one",
    "durable": "each open handle chose how it writes when it was opened. Create another queue",
    "queue_id": "the dead letters of the queue carry it. Use rehome for a copy",
    "home": "it is where the queue was created. Use rehome for a queue that was moved",
    "former_ids": "they follow from copies. Use rehome",
}
_OF_GROUPS: Final = {field.name for field in fields(GroupSettings)} | {"group"}


def configure_queue(context: QueueContext, changes: Mapping[str, Any]) -> QueueSettings:
    """Change settings of a queue, and note it in ``leases/``. Return all. Raise InvalidOption."""
    for name, value in changes.items():
        _check_name(name, value)
    changed(context.settings, changes)  # a bad value is refused before any look

    seen: list[QueueSettings] = []  # before and after, of the last try

    def described(text: str | None) -> str:
        before = QueueSettings.from_json(text, context.path) or context.settings
        seen[:] = before, changed(before, changes)
        return seen[1].to_json()

    context.messages.describe(described, "configure")
    if seen[0] != seen[1]:
        _note(context, settings_changed(*map(public_queue_settings, seen)))
    return context.settings


def _note(context: QueueContext, detail: str) -> None:
    """Note a change of the queue in ``leases/``, from which ``history/`` gets it."""
    context.group(HORIZON).run(NoteChange(detail))


def changed(settings: QueueSettings, changes: Mapping[str, Any]) -> QueueSettings:
    """Return settings with a user's changes. Raise InvalidOption."""
    kept = {name: _duration(getattr(settings, name)) for name in QUEUE_DURATIONS}
    checked = QueueSettings.validated(settings.group, **{**kept, **changes})
    return replace(settings, **{name: getattr(checked, name) for name in QUEUE_DURATIONS})


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=micros)


def _check_name(name: str, value: Any) -> None:
    if name in QUEUE_DURATIONS:
        return
    if name in _OF_GROUPS:
        why = f"it belongs to each group. Use {CONFIGURE_GROUP}"
    elif name in _FIXED:
        why = f"it is fixed when the queue is created: {_FIXED[name]}"
    else:
        hint = suggest(name, QUEUE_DURATIONS)
        meant = f"Did you mean {hint!r}?" if hint else f"Use {', '.join(QUEUE_DURATIONS)}."
        why = f"the name is unknown. {meant}"
    raise InvalidOption(
        f"{CONFIGURE_QUEUE} cannot change {name!r}: {why}",
        advice=[CONFIGURE_GROUP, CONFIGURE_QUEUE],
        option=name,
        value=value,
    )
