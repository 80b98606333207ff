"""Change the settings of a queue that may change after its creation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_mq.errors import InvalidOption
from spark_mq.ledger.owner_commands import NoteChange
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.operations.context import QueueContext
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.util.advice import CONFIGURE_GROUP, CONFIGURE_QUEUE
from spark_mq.util.setting_fields import settings_of
from spark_mq.util.validation import suggest

__all__ = ["configure_queue"]


def configure_queue(context: QueueContext, changes: Mapping[str, Any]) -> QueueSettings:
    """Change settings of a queue, and note it in ``leases/``. Return all. Raise InvalidOption."""
    for name, value in changes.items():
        _check_name(name, value)
    context.settings.changed(**changes)  # a bad value is refused before any look

    seen: list[QueueSettings] = []  # before and after, of the last try

    def described(text: str | None) -> str:
        before = QueueSettings.from_json(text, context.path) or context.settings
        seen[:] = before, before.changed(**changes)
        return seen[1].to_json()

    context.messages.describe(described, "configure")
    if seen[0] != seen[1]:
        _note(context, seen[0].changes(seen[1]))
    return context.settings


def _note(context: QueueContext, detail: str) -> None:
    """Note a change of the queue in ``leases/``, from which ``history/`` gets it."""
    context.group(HORIZON).run(NoteChange(detail))


def _check_name(name: str, value: Any) -> None:
    """Raise InvalidOption for a setting that a queue lacks, or that is fixed."""
    own = settings_of(QueueSettings)
    changeable = [one.name for one in own.values() if one.fixed is None]
    if name in changeable:
        return
    if name in own:
        why = f"it is fixed when the queue is created: {own[name].fixed}"
    elif name == "group" or name in settings_of(GroupSettings):
        why = f"it belongs to each group. Use {CONFIGURE_GROUP}"
    else:
        hint = suggest(name, changeable)
        meant = f"Did you mean {hint!r}?" if hint else f"Use {', '.join(changeable)}."
        why = f"the name is unknown. {meant}"
    raise InvalidOption(
        f"{CONFIGURE_QUEUE} cannot change {name!r}: {why}",
        advice=[CONFIGURE_GROUP, CONFIGURE_QUEUE],
        option=name,
        value=value,
    )
