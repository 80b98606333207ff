"""Change a queue after a confirmation, in the name of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_mq.errors import InvalidOption
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_some
from spark_mq.util.user import acting_as
from spark_mq.util.validation import validate_choice
from spark_mq.web.group_changes import (
    ask_for_position,
    ask_for_setting,
    configure,
    new_setting,
    seek,
    seek_trial,
)
from spark_mq.web.layout import button, field, href, page
from spark_mq.web.pages.letters import limit_of, trial
from spark_mq.web.view import Forbidden, View

__all__ = ["change", "confirmation"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Action:
    """A change, with the question that asks for it."""

    question: Callable[[View], str]
    run: Callable[[View], object]  # may return counts for the page `then`
    more: Callable[[View], Child] = lambda _: ""  # rest of the form, or None if nothing changes
    ask: Callable[[View], Child] = lambda _: None  # a form for missing input
    then: str = "changes"  # the page that shows the change


def _of_group(text: str) -> Callable[[View], str]:
    return lambda view: text.format(view.group()[0].name)


def _unblock(to: str) -> _Action:
    texts = {
        "retry": "Deliver the messages that block group {} again?",
        "dead_letter": "Dead-letter the messages that block group {}?",
        "drop": "Drop the messages that block group {}? They are lost.",
    }
    return _Action(_of_group(texts[to]), lambda view: view.group()[0].unblock(to))


def _redrive(view: View) -> Mapping[str, int]:
    found = view.queue.redrive(where=_where(view), limit=limit_of(view))
    return {"redriven": found.messages}


def _redrive_trial(view: View) -> Child:
    """Return the letters and the groups of a redrive, or None if no letter matches."""
    letters = trial(view, _where(view), limit_of(view), offer=False)
    if letters is None:
        return None
    groups = show_some(list(view.overview.groups), 10)
    text = f"Every group gets them again, as new messages: {groups}."
    return join(letters, el("p", text, class_="warn") if groups else None)


def _sweep(view: View) -> Mapping[str, int]:
    return {"routed": view.queue.sweep().routed}


def _where(view: View) -> str:
    if (where := view.condition()) is None:
        raise InvalidOption(
            "where is missing: give a condition, such as reason = 'rejected'",
            option="where",
            value=None,
        )
    return where


_ACTIONS: Final[Mapping[str, _Action]] = {
    "pause": _Action(
        _of_group("Stop new leases of group {}? Live leases can be settled."),
        lambda view: view.group()[0].pause(view.text("reason")),
        lambda _: field("Reason", "reason"),
    ),
    "resume": _Action(
        _of_group("Allow new leases of group {}? This closes its breaker, too."),
        lambda view: view.group()[0].resume(),
    ),
    "seek": _Action(
        _of_group("Move group {}? Workers lose their leases. Skipped messages are not delivered."),
        seek,
        seek_trial,
        ask_for_position,
    ),
    "configure": _Action(
        _of_group("Change a setting of group {}? Workers obey at once."),
        configure,
        new_setting,
        ask_for_setting,
    ),
    "unblock-retry": _unblock("retry"),
    "unblock-dead_letter": _unblock("dead_letter"),
    "unblock-drop": _unblock("drop"),
    "redrive": _Action(
        lambda view: f"Publish these dead letters of {view.name} again?",
        _redrive,
        _redrive_trial,
    ),
    "sweep": _Action(lambda view: f"Sweep {view.name} now?", _sweep, then="sweeps"),
}
# Parameters of its address that a form repeats.
_INPUTS: Final = ("do", "group", "where", "limit", "to", "setting", "value")
_PLACES: Final = {"redrive": "letters", "sweep": "sweeps"}  # pages that offer a change of no group


def _action(view: View) -> _Action:
    if not view.allow_changes:
        raise Forbidden("this page only looks. Start it with --allow-changes to change something")
    return _ACTIONS[validate_choice("do", view.text("do"), tuple(_ACTIONS))]


def confirmation(view: View) -> Html:
    action = _action(view)
    question, asked = action.question(view), action.ask(view)
    if asked is not None:
        return page("Change", _question(view, asked), queue=view.name)
    if (more := action.more(view)) is None:
        return page("Nothing to change", _nothing(view), queue=view.name)
    form = el(
        "form",
        _hidden(view, _INPUTS),
        el("input", type="hidden", name="csrf", value=view.csrf_token),
        el("p", question, class_="result"),
        more,
        el("p", f"The change is recorded under the name {view.user}.", class_="note"),
        _buttons(view, "Yes, do it", "danger"),
        method="post",
        action=href("change", view.name),
    )
    return page("Please confirm", form, queue=view.name)


def _nothing(view: View) -> Html:
    text = "No dead letter matches the condition. They may have been redriven already."
    return join(el("p", text, class_="result"), el("p", _back(view, "Back"), class_="buttons"))


def _question(view: View, asked: Child) -> Html:
    """Return the form for the missing input of a change."""
    return el(
        "form",
        _hidden(view, ("do", "group")),
        asked,
        _buttons(view, "Show what would happen"),
        method="get",
        action=href("change", view.name),
    )


def _hidden(view: View, names: Sequence[str]) -> list[Html]:
    given = ((name, view.text(name)) for name in names)
    return [
        el("input", type="hidden", name=name, value=text)
        for name, text in given
        if text is not None
    ]


def _buttons(view: View, text: str, kind: str | None = None) -> Html:
    return el("p", el("button", text, class_=kind), _back(view, "No"), class_="buttons")


def _back(view: View, text: str) -> Html:
    """Return a link to the page that offered the change."""
    if view.text("group"):
        address = href("group", view.name, group=view.text("group"))
    elif view.text("do") in _PLACES:
        address = href(_PLACES[view.text("do") or ""], view.name)
    else:
        address = href("queue", view.name)
    return button(text, address)


def change(view: View) -> str:
    """Make a change, and return the address of the page that shows it."""
    action = _action(view)
    view.check_form()
    action.question(view)  # refuses a group that does not exist
    with acting_as(view.user):
        made = action.run(view)
    view.looks.forget(view.name)
    _log.info("user %r: %s in %s", view.user, view.text("do"), view.name)
    counts = made if isinstance(made, Mapping) else {}
    return href(action.then, view.name, done=1, **counts)
