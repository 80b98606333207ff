"""Move a group and change its settings by forms, which show the effects first."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.ledger.settings import GroupSettings
from spark_mq.operations.public_settings import public_group_settings
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.setting_text import parse_setting
from spark_mq.util.show import show_position
from spark_mq.util.validation import validate_choice, validate_position
from spark_mq.web.layout import facts, field, href
from spark_mq.web.pages.group import show_setting
from spark_mq.web.view import View

__all__ = ["ask_for_position", "ask_for_setting", "configure", "new_setting", "seek", "seek_trial"]

_SETTINGS: Final = tuple(one.name for one in fields(GroupSettings))


def ask_for_position(view: View) -> Child:
    """Return the field of a seek, or None if the request has a position."""
    if view.text("to") is not None:
        return None
    note = (
        "earliest, latest, the sequence of a message, or an instant with a zone, such as "
        "2026-01-31T12:00:00Z."
    )
    return join(field("Move to", "to"), el("p", note, class_="note"))


def seek_trial(view: View) -> Html:
    """Return the effects of a seek without making it."""
    target = _position(view)
    found = view.group()[0].preview_seek(target)
    position = href("message", view.name, sequence=found.position)
    pairs: list[tuple[str, Child]] = [
        ("Move to", show_position(validate_position("to", target))),
        ("Ack floor now", str(found.floor)),
        ("First unread sequence then", el("a", str(found.position), href=position)),
        ("Unsettled messages skipped", found.skipped),
        ("Messages delivered again", found.delivered_again),
        ("Leases fenced", found.fenced_leases),
    ]
    note = (
        "All messages up to the ack floor are settled. A fenced lease can settle nothing. Messages "
        "that workers settle until you confirm change these numbers."
    )
    return join(facts(pairs), el("p", note, class_="note"))


def seek(view: View) -> None:
    view.group()[0].seek(_position(view))


def _position(view: View) -> str:
    return _required(view, "to", "give earliest, latest, a sequence or an instant")


def ask_for_setting(view: View) -> Child:
    """Return the fields of a change of a setting, or None if the request has them."""
    if view.text("setting") is not None and view.text("value") is not None:
        return None
    note = "A number, a duration such as 30s, a word such as linear, or none."
    return join(
        field("Setting", "setting", view.text("setting"), options=_SETTINGS),
        field("New value", "value", view.text("value")),
        el("p", note, class_="note"),
    )


def new_setting(view: View) -> Html:
    """Return a setting as it is and as it would be."""
    group, (name, value) = view.group()[0], _setting(view)
    after = public_group_settings(GroupSettings.validated(**{name: value}))
    pairs = [
        (f"{name} {when}", show_setting(getattr(settings, name)))
        for when, settings in (("now", group.settings), ("then", after))
    ]
    return facts(pairs)


def configure(view: View) -> None:
    name, value = _setting(view)
    view.group()[0].configure(**{name: value})


def _setting(view: View) -> tuple[str, Any]:
    name = validate_choice("setting", view.text("setting"), _SETTINGS)
    return name, parse_setting(_required(view, "value", 'give the new value, or "none"'))


def _required(view: View, name: str, hint: str) -> str:
    if (text := view.text(name)) is None:
        raise InvalidOption(f"{name} is missing: {hint}", option=name, value=None)
    return text
