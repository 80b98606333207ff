"""Change a queue after a confirmation, in the name of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.group import ConsumerGroup
from spark_mq.interfaces.web.message_pages import limit_of, sequence_of, trial
from spark_mq.interfaces.web.view import LETTER_FIELDS, TABS, Forbidden, View, href, render
from spark_mq.ledger.settings import GroupSettings
from spark_mq.maintenance.condition import LetterFilter
from spark_mq.util.setting_fields import settings_of
from spark_mq.util.show import number_in, show_sequence, show_some
from spark_mq.util.user import act_as
from spark_mq.util.validation import parse_until, validate_choice, validate_position

_log = logging.getLogger(__name__)
_SETTINGS: Final = settings_of(GroupSettings)
# The pages that offer a change of no group.
_PLACES: Final = {
    "redrive": "letters", "discard": "letters", "sweep": "sweeps", "pause-schedule": "schedules",
    "resume-schedule": "schedules", "remove-schedule": "schedules",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Action:
    """A change, with the question that asks for it."""

    question: str
    verb: str  # the text of the button that makes it
    run: Callable[[View], object]  # may return counts for the page `then`
    preview: Callable[[View], Mapping[str, Any]] = lambda _: {}  # its effects, for the template
    loses: Callable[[Mapping[str, Any]], bool] = lambda _: False  # by its effects
    needs: tuple[str, ...] = ()  # parameters that a form asks for
    then: str = "changes"  # the page that shows the change

    def ask(self, view: View) -> str:
        """Return the question. Raises an error if its group or schedule is not there."""
        group = view.group()[0].name if "{group}" in self.question else ""
        schedule = view.schedule().name if "{schedule}" in self.question else ""
        message = show_sequence(sequence_of(view)) if "{message}" in self.question else ""
        names = {"group": group, "schedule": schedule, "message": message}
        return self.question.format(queue=view.name, **names)


def _seek(view: View) -> None:
    view.group()[0].seek(_position(view))


def _seek_preview(view: View) -> Mapping[str, Any]:
    position = _position(view)
    preview = view.group()[0].preview_seek(position)
    return {"position": validate_position("to", position), "preview": preview}


def _position(view: View) -> str:
    return number_in(_required(view, "to", "give earliest, latest, a sequence or an instant"))


def _configure(view: View) -> None:
    name, value = _setting(view)
    view.group()[0].configure(**{name: value})


def _configure_preview(view: View) -> Mapping[str, Any]:
    group, (name, value) = view.group()[0], _setting(view)
    after = GroupSettings().changed(**{name: value})
    before = getattr(group.settings, name)
    return {"setting": name, "before": before, "after": getattr(after, name)}


def _offered(view: View) -> Mapping[str, Any]:
    """Return the settings with today's values, or what one of them may be."""
    group = view.group()[0]
    if (given := view.text("setting")) is None:
        return {"settings": asdict(group.settings), "setting": None}
    name = validate_choice("setting", given, _SETTINGS)
    setting, before = _SETTINGS[name], getattr(group.settings, name)
    words = setting.kind.words
    if words and setting.optional:
        words = (*words, "none")
    shown = "none" if before is None else setting.kind.show(before)
    return {
        "setting": name,
        "before": shown,
        "words": words,
        "field_doc": setting.doc.replace("`", ""),
        "field_values": setting.values.replace("`", ""),
        "field_default": setting.shown_default.lower(),
    }


def _setting(view: View) -> tuple[str, Any]:
    name = validate_choice("setting", view.text("setting"), _SETTINGS)
    return name, _SETTINGS[name].parse(_required(view, "value", 'give the new value, or "none"'))


def _redrive(view: View) -> Mapping[str, int]:
    result = view.queue.redrive(
        where=_letters(view), limit=limit_of(view), to_all_groups=bool(view.text("all_groups"))
    )
    return {"redriven": result.messages}


def _redrive_preview(view: View) -> Mapping[str, Any]:
    letters = trial(view, _letters(view), limit_of(view))
    return {"trial": letters, "groups": show_some(list(view.overview.groups), 10)}


def _discard(view: View) -> Mapping[str, int]:
    result = view.queue.discard_dead_letters(where=_letters(view), before=view.number("before"))
    return {"discarded": result.messages}


def _discard_preview(view: View) -> Mapping[str, Any]:
    chosen = _letters(view)
    result = view.queue.discard_dead_letters(where=chosen, dry_run=True)
    return {"found": result, "chosen": chosen.name}


def _letters(view: View) -> LetterFilter:
    if (chosen := view.letters()) is None:
        raise InvalidOption(
            "find is missing: choose letters on the page of dead letters", option="find", value=None
        )
    return chosen


def _required(view: View, name: str, hint: str) -> str:
    if (text := view.text(name)) is None:
        raise InvalidOption(f"{name} is missing: {hint}", option=name, value=None)
    return text


def _standing(view: View) -> Mapping[str, Any]:
    """Return how the message stands in the group, or None if the group does not know it."""
    group, positions = view.group()[0].name, view.queue.locate(sequence_of(view))
    return {"standing": next((position for position in positions if position.group == group), None)}


def _change_message(view: View, change: Callable[..., int], **given: Any) -> Mapping[str, int]:
    """Return the sequence, and the number of changed messages."""
    group, sequence = view.group()[0], sequence_of(view)
    changed = change(group, sequence, force=view.text("force") is not None, by=view.user, **given)
    return {"sequence": sequence, "changed": changed}


_ACTIONS: Final[Mapping[str, _Action]] = {
    "pause": _Action(
        "Stop new leases of group {group}? Live leases can be settled.",
        "Pause",
        lambda view: view.group()[0].pause(
            view.text("reason"), until=parse_until("until", view.text("until"))
        ),
    ),
    "resume": _Action(
        "Allow new leases of group {group}? This closes its breaker, too.",
        "Resume",
        lambda view: view.group()[0].resume(),
    ),
    "seek": _Action(
        "Move group {group}? Workers lose their leases. Skipped messages are not delivered.",
        "Move it",
        _seek,
        _seek_preview,
        loses=lambda effects: effects["preview"].skipped > 0,
        needs=("to",),
    ),
    "configure": _Action(
        "Change a setting of group {group}? Workers obey at once.",
        "Change it",
        _configure,
        _configure_preview,
        needs=("setting", "value"),
    ),
    "unblock-retry": _Action(
        "Deliver the messages that block group {group} again?",
        "Deliver them",
        lambda view: view.group()[0].unblock("retry"),
    ),
    "unblock-dead_letter": _Action(
        "Dead-letter the messages that block group {group}?",
        "Dead-letter them",
        lambda view: view.group()[0].unblock("dead_letter"),
    ),
    "unblock-drop": _Action(
        "Drop the messages that block group {group}? They are lost.",
        "Drop them",
        lambda view: view.group()[0].unblock("drop"),
        loses=lambda _: True,
    ),
    "retry-message": _Action(
        "Deliver message {message} to group {group} now?",
        "Retry now",
        lambda view: _change_message(view, ConsumerGroup.retry_now),
        _standing,
        then="message",
    ),
    "discard-message": _Action(
        "Discard message {message} in group {group}? No worker of the group gets it again.",
        "Discard",
        lambda view: _change_message(view, ConsumerGroup.discard, reason=view.text("reason")),
        _standing,
        loses=lambda _: True,
        then="message",
    ),
    "dead_letter-message": _Action(
        "Make message {message} dead in group {group}? The next sweep makes it a dead letter.",
        "Dead-letter",
        lambda view: _change_message(view, ConsumerGroup.dead_letter, reason=view.text("reason")),
        _standing,
        then="message",
    ),
    "pause-schedule": _Action(
        "Publish no message of schedule {schedule} until it is resumed? Its instants are skipped.",
        "Pause",
        lambda view: view.queue.pause_schedule(view.schedule().name, view.text("reason")),
        then="schedules",
    ),
    "resume-schedule": _Action(
        "Publish messages of schedule {schedule} again, from now on?",
        "Resume",
        lambda view: view.queue.resume_schedule(view.schedule().name),
        then="schedules",
    ),
    "remove-schedule": _Action(
        "Remove schedule {schedule}? Messages that it has published stay.",
        "Remove",
        lambda view: view.queue.remove_schedule(view.schedule().name),
        loses=lambda _: True,
        then="schedules",
    ),
    "redrive": _Action(
        "Publish these dead letters of {queue} again?", "Redrive them", _redrive, _redrive_preview
    ),
    "discard": _Action(
        "Discard these dead letters of {queue}? No redrive brings them back.",
        "Discard them",
        _discard,
        _discard_preview,
        loses=lambda _: True,
        then="letters",
    ),
    "sweep": _Action(
        "Sweep {queue} now?",
        "Sweep",
        lambda view: {"routed": view.queue.sweep().routed},
        then="sweeps",
    ),
}


def _action(view: View) -> tuple[str, _Action]:
    if not view.allow_changes:
        raise Forbidden("this page only looks. Start it with --allow-changes to change something")
    do = validate_choice("do", view.text("do"), tuple(_ACTIONS))
    return do, _ACTIONS[do]


def confirmation(view: View) -> str:
    """Ask for what a change needs, or whether to make it."""
    do, action = _action(view)
    known: dict[str, Any] = {
        "do": do,
        "question": action.ask(view),
        "names": _names(view),
        "letter_fields": LETTER_FIELDS,
        "verb": action.verb,
        "back": _place(view)[1],
        "crumbs": [_place(view)],
    }
    title = do.replace("-", " ").replace("_", "-").capitalize()
    if any(view.text(name) is None for name in action.needs):
        offered = _offered(view) if do == "configure" else {}
        return render("change.html", view, title=title, step="ask", **known, **offered)
    preview = action.preview(view)
    if (do == "redrive" and not preview["trial"].number) or (
        do == "discard" and not preview["found"].messages
    ):
        title = "Nothing to change"
        return render("change.html", view, title=title, step="nothing", **known, **preview)
    known["loses"] = action.loses(preview)
    return render("change.html", view, title=title, step="confirm", **known, **preview)


def _names(view: View) -> list[tuple[str, Any]]:
    names: list[tuple[str, Any]] = [("Queue", view.name)]
    if not view.text("group"):
        return names
    group, stats = view.group()
    names.append(("Group", group.name))
    if not view.text("sequence"):
        names += [("Lag", stats.unsettled), ("Leased", stats.leased), ("Blocked", stats.blocked)]
    return names


def _place(view: View) -> tuple[str, str]:
    if view.text("sequence"):
        sequence = sequence_of(view)
        return f"Message {show_sequence(sequence)}", href("message", view.name, sequence=sequence)
    if group := view.text("group"):
        return f"Group {group}", href("group", view.name, group=group)
    page = _PLACES.get(view.text("do") or "", "queue")
    return dict(TABS)[page], href(page, view.name)


def change(view: View) -> str:
    """Make a change, and return the address of the page that shows it."""
    do, action = _action(view)
    view.check_form()
    action.ask(view)  # refuses a group or schedule that does not exist
    made = act_as(view.user, lambda: action.run(view))
    view.monitor.forget(view.name)
    _log.info("user %r: %s in %s", view.user, do, view.name)
    counts = made if isinstance(made, Mapping) else {}
    return href(action.then, view.name, done=1, **counts)
