"""Create the tables of a queue, open them, change their settings, and notice that a queue was
moved or copied.

A create that crashed is completed by the next one, or by an open. Nothing else is replaced.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from spark_mq.delta.object_store import (
    ObjectStore,
    absolute_path,
    canonical_path,
    canonical_uri,
    join,
)
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import CopiedQueue, InvalidOption, NotAQueue, QueueExists, QueueNotFound
from spark_mq.ledger.owner_commands import NoteChange
from spark_mq.ledger.setting_options import CreateOptions
from spark_mq.ledger.settings import ITSELF, GroupSettings, QueueSettings, new_settings
from spark_mq.operations.context import QueueContext
from spark_mq.operations.nesting import OWN_DEAD_LETTERS, is_queue_at, refuse_nested
from spark_mq.storage.history_table import HistoryTable
from spark_mq.storage.ledger_table import HORIZON, LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import Clock, require_zones
from spark_mq.util.setting_fields import settings_of
from spark_mq.util.show import shell_command, show_some
from spark_mq.util.validation import invalid, short_repr, suggest

DROP_MARK: Final = "messages/_spark_mq_drop"  # marks a drop that began: written first, deleted last

# Names that a crashed create may leave under a path, or that the root of a volume has.
_OWN: Final = ("messages", "leases", "commits", "history", "dead_letters", "lost+found")


def create_queue_tables(
    root: str,
    settings: QueueSettings,
    options: Mapping[str, str],
    *,
    exist_ok: bool,
    given: Collection[str] = (),
) -> bool:
    """Create a queue's missing tables. Return if any was. Raise NotAQueue or QueueExists."""
    # Commit 0 of ``messages/`` decides on the settings. Commit 0 of ``leases/`` completes the queue
    # and decides whose queue is new. Between the two commits, no one can tell whether the creator
    # crashed or is slow, so others may complete the queue with the settings that they find. `given`
    # names the settings that an existing queue must have.
    refuse_delta_table(root, options)
    messages, ledgers, _ = _stores(root, options, settings)
    complete = ledgers.open() is not None  # before messages/, which is created first
    begun = messages.open()
    if begun is None and complete:
        raise NotAQueue(
            f"{root} has leases/, but no messages/. Restore messages/, or remove {root} and "
            f"create the queue again",
            path=root,
        )
    own = False
    if begun is None:
        refuse_foreign_files(root)
        refuse_nested(root, options)
        own = messages.create(identified(settings, root, options).to_json())
        begun = messages.open()
    stored = None if begun is None else QueueSettings.from_json(begun.description, root)
    if stored is None:
        raise NotAQueue(
            f"{root}/messages is a Delta table, but not one of a queue. Use a path of the "
            f"queue's own",
            path=root,
        )
    # A queue that is completed here must have the defaults of the settings that were not given.
    named = given if exist_ok or complete else None
    refused = _differences(stored, settings, named, options)
    if refused or (complete and not exist_ok):
        raise _exists(root, refused)
    if not complete and not _complete(ledgers, messages.table_id, own=own) and not exist_ok:
        raise _exists(root)
    return not complete


def _differences(
    stored: QueueSettings,
    wanted: QueueSettings,
    given: Collection[str] | None,
    options: Mapping[str, str],
) -> str:
    """Return the settings that a queue does not have as they were given, for people."""
    parts = []
    for old, new in ((stored.group, wanted.group), (stored, wanted)):
        for name, setting in settings_of(type(old)).items():
            has, asked = getattr(old, name), getattr(new, name)
            if name == "dead_letter_path" and has and asked:
                has, asked = (canonical_uri(place, options) for place in (has, asked))
            if has != asked and setting.argument and (given is None or name in given):
                parts.append(f"{name}={setting.show(has)}, not {setting.show(asked)}")
    return ", ".join(parts)


def _complete(ledgers: LedgerTable, messages_id: str, *, own: bool) -> bool:
    """Create ``leases/``. Return False if another creator has done so."""
    # If own, it credits the creator of messages/, who may be another process.
    return ledgers.create(leases_description(messages_id), messages_id if own else None)


def _exists(root: str, refused: str = "") -> QueueExists:
    use = "Use Queue.open, or exist_ok=True (--exist-ok)"
    if not refused:
        return QueueExists(f"there is a queue at {root} already. {use}", path=root)
    return QueueExists(
        f"there is a queue at {root} already, with other settings: {refused}. {use} without these "
        "settings. Change those that may change with queue.configure or "
        f"{shell_command('queue', 'configure', root)}",
        path=root,
    )


def _create_command(root: str) -> str:
    return f"Queue.create or {shell_command('queue', 'create', root)}"


_Stores = tuple[MessageTable, LedgerTable, HistoryTable]


def _stores(root: str, options: Mapping[str, str], settings: QueueSettings) -> _Stores:
    require_zones()
    durable = settings.durable
    ledgers = LedgerTable(join(root, "leases"), options, durable=durable)
    return (
        MessageTable(join(root, "messages"), options, durable=durable, lanes=settings.lanes),
        ledgers,
        HistoryTable(join(root, "history"), ledgers, options, durable=durable),
    )


def open_context(root: str, options: Mapping[str, str], clock: Clock | None = None) -> QueueContext:
    """Open the stores of a queue. Raise QueueNotFound, NotAQueue or UnsupportedTable."""
    settings = QueueSettings()
    while True:  # At most twice. The settings decide how the stores are opened.
        messages, ledgers, history = _stores(root, options, settings)
        table = messages.open()
        if table is None:
            refuse_delta_table(root, options)
            raise QueueNotFound(
                f"there is no queue at {root}. Create it with {_create_command(root)}",
                path=root,
            )
        stored = QueueSettings.from_json(table.description, root)
        if stored is None:
            raise NotAQueue(
                f"{messages.path} is a Delta table, but not one of a queue",
                path=root,
            )
        if (stored.durable, stored.lanes) == (settings.durable, settings.lanes):
            break
        settings = stored
    leases = ledgers.open()
    if leases is None and table.version == 0:
        leases = _completed(root, messages, ledgers)  # nobody has used the queue yet
    _check_complete(root, table, leases)
    messages.expect(lambda refresh: ledgers.reached(refresh=refresh))
    return QueueContext(
        root,
        stored,
        messages,
        ledgers,
        history=history,
        clock=clock,
        storage_options=options,
        open_dead_letters=_open_dead_letters,
        reopen=open_context,
    )


def _completed(root: str, messages: MessageTable, ledgers: LedgerTable) -> TableState | None:
    """Complete a queue whose creator crashed or is slow, and return ``leases/``."""
    if ObjectStore(root, messages.files.options).exists(DROP_MARK):
        raise NotAQueue(f"the queue at {root} is being dropped", path=root)
    _complete(ledgers, messages.table_id, own=True)
    return ledgers.open()


def _check_complete(root: str, messages: TableState, ledgers: TableState | None) -> None:
    if ledgers is None:
        raise NotAQueue(
            f"leases/ of the queue at {root} is missing. Restore it from a backup. Without one, "
            f"run {_create_command(root)} again with the same settings: new groups then get all "
            "messages that were not trimmed, also those that were settled",
            path=root,
        )
    if ledgers.description != leases_description(messages.table_id):
        raise NotAQueue(
            f"leases/ at {root} belongs to another messages/ table: one of them was created again. "
            "Remove both and create the queue again, or restore the one that was replaced",
            path=root,
        )


def _open_dead_letters(context: QueueContext, *, create: bool) -> QueueContext | None:
    path = dead_letter_place(context.path, context.settings, context.storage_options)
    options = context.storage_options
    try:
        return open_context(path, options, context.clock)
    except QueueNotFound:
        if not create:
            return None
    except NotAQueue:
        if not create:
            raise
    settings = QueueSettings.for_dead_letters(context.settings.durable)
    create_queue_tables(path, settings, options, exist_ok=True)
    return open_context(path, options, context.clock)


def rehome(context: QueueContext, *, copy: bool, place: str | None) -> QueueContext:
    """Note that a queue was moved or copied, and reopen it. A copy gets a new id."""
    root, options = context.path, context.storage_options

    def described() -> str:
        settings = context.settings
        if not copy:
            return replace(settings, home=canonical_path(root, options)).to_json()
        target = settings.dead_letter_path
        former: tuple[str, ...] = (*settings.former_ids, settings.queue_id)
        if place is not None or not is_own_place(settings):
            target, former = relative_place(root, place, options), ()
        copied = identified(settings, root, options)
        return replace(copied, dead_letter_path=target, former_ids=former).to_json()

    context.messages.describe(described)
    return open_context(root, options, context.clock)


def leases_description(messages_id: str) -> str:
    """Return the description of ``leases/``, which names its ``messages/``."""
    return json.dumps({"format": "spark_mq leases", "messages": messages_id})


def refuse_foreign_files(root: str) -> None:
    """Raise NotAQueue for a folder with other files, as nobody could separate them later."""
    if "://" in root or not os.path.isdir(root):  # a store has no folders
        return
    others = sorted(
        name for name in os.listdir(root) if name not in _OWN and not name.startswith(".")
    )
    if others:
        raise NotAQueue(
            f"{root} is a folder with other files in it ({show_some(others, 3)}). Give a "
            f"queue a folder of its own, new or empty",
            path=root,
        )


def is_delta_table(root: str, options: Mapping[str, str]) -> bool:
    """Return whether a path is itself a Delta table, which no queue is."""
    with wrap_store_errors(root, "opening"):
        return bool(ObjectStore(root, options).list("_delta_log"))


def refuse_delta_table(root: str, options: Mapping[str, str]) -> None:
    if is_delta_table(root, options):
        raise NotAQueue(
            f"{root} is itself a Delta table; a queue is a directory of tables. Use a path of "
            f"its own",
            path=root,
        )


def identified(settings: QueueSettings, root: str, options: Mapping[str, str]) -> QueueSettings:
    return replace(settings, queue_id=uuid.uuid4().hex, home=canonical_path(root, options))


def settings_at(root: str, given: CreateOptions, options: Mapping[str, str]) -> QueueSettings:
    """Return the settings of a new queue at a path. Dead letters below it have a relative path."""
    place = given.get("dead_letter_path")
    if place is None:
        return new_settings(given)
    path = relative_place(root, absolute_path(place, "dead_letter_path"), options)
    return new_settings({**given, "dead_letter_path": path})


def relative_place(root: str, place: str | None, options: Mapping[str, str]) -> str | None:
    """Return a place below a queue as a relative path. Raise InvalidOption for the queue itself."""
    if place is None:
        return None
    own, other = canonical_path(root, options), canonical_path(place, options)
    if own == other:
        why = "is the queue itself: give another queue, or leave it out"
        raise invalid("dead_letter_path", place, why)
    if other.startswith(own + "/"):
        return f".{other[len(own) :]}"
    if not is_queue_at(place, options):
        refuse_nested(place, options)
    return place


def is_own_place(settings: QueueSettings) -> bool:
    """Return whether the dead letters stay below the queue, so that a copy has its own."""
    return (settings.dead_letter_path or ITSELF).startswith(".")


def check_home(
    root: str, settings: QueueSettings, options: Mapping[str, str], consequence: str
) -> None:
    """Raise CopiedQueue if the queue is not where it was created, so another one may exist."""
    home = settings.home
    if home is not None and canonical_uri(home, options) != canonical_path(root, options):
        raise CopiedQueue(
            f"the queue at {root} is a copy, or was moved: it was created at {settings.home}. Its "
            f"{consequence}, and the other queue may use the same place. Call "
            "Queue.rehome(copy=True) if it is a copy, or Queue.rehome(copy=False) if it was moved",
            path=root,
            home=settings.home,
        )


def dead_letter_place(root: str, settings: QueueSettings, options: Mapping[str, str]) -> str:
    """Return the path of the dead letters. Raise CopiedQueue if another queue may use it, too."""
    place = settings.dead_letter_path or OWN_DEAD_LETTERS
    if settings.is_dead_letter_queue:
        return root
    if place.startswith("./"):
        return join(root, place[2:])
    check_home(root, settings, options, f"dead letters go to {place}")
    return place


def configure_queue(context: QueueContext, changes: Mapping[str, Any]) -> QueueSettings:
    """Change settings of a queue, and note it in ``leases/``. Return all. Raise InvalidOption."""
    for name, value in changes.items():
        _check_name(name, value)
    seen: list[QueueSettings] = []  # before and after, of the last try

    def described() -> str:
        before = context.settings
        seen[:] = before, before.changed(**changes)
        return seen[1].to_json()

    context.messages.describe(described, "configure")
    if seen[0] != seen[1]:
        note_change(context, seen[0].changes(seen[1]))
    return context.settings


def note_change(context: QueueContext, detail: str) -> None:
    """Note a change of the queue in ``leases/``, from which ``history/`` gets it."""
    context.group(HORIZON).run(NoteChange(detail))


def _check_name(name: str, value: Any) -> None:
    own = settings_of(QueueSettings)
    changeable = [setting.name for setting in own.values() if setting.fixed is None]
    if name in changeable:
        return
    if name in own:
        why = f"it is fixed when the queue is created: {own[name].fixed}"
    elif name == "group" or name in settings_of(GroupSettings):
        command = shell_command("group", "configure", "GROUP", "-q", "PATH")
        why = f"it belongs to each group. Use group.configure or {command}"
    else:
        hint = suggest(name, changeable)
        meant = f"Did you mean {hint!r}?" if hint else f"Use {', '.join(changeable)}."
        why = f"the name is unknown. {meant}"
    raise InvalidOption(
        f"queue.configure cannot change {short_repr(name)}: {why}",
        option=name,
        value=value,
    )


def place_of(to: Any) -> str:
    """Return the path of a queue, or of a path that a user gives. Raise InvalidOption."""
    if (path := getattr(to, "path", None)) is not None:
        return str(path)
    if not isinstance(to, str | os.PathLike) or not os.fspath(to):
        raise InvalidOption(
            f"to={short_repr(to)} is not a queue: give a queue, or its path", option="to", value=to
        )
    return absolute_path(to, "to")
