"""Find messages and dead letters, show one with its whole life, and change one without a lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from spark_mq.errors import InvalidOption
from spark_mq.inspect import STATE_NAMES, Failure, PeekedMessage
from spark_mq.inspect.leases import MessagePosition
from spark_mq.inspect.letters import OTHERS
from spark_mq.interfaces.web.view import LETTER_FIELDS, View, href, render
from spark_mq.maintenance.condition import LetterFilter
from spark_mq.message import to_headers
from spark_mq.operations.trace import TraceEvent
from spark_mq.util.show import show_sequence
from spark_mq.util.validation import invalid

_Fields: TypeAlias = Mapping[str, str | int | None]  # parameters that choose letters
ROWS: Final = 50
MAX_EVENTS: Final = 500
MAX_GROUPS: Final = 200
MAX_CHOICES: Final = 50  # groups that the form offers. With more, the name is typed
COUNTED: Final = 10_000  # the newest letters, which the page groups by failure
MAX_FAILURES: Final = 100
MAX_REDRIVE: Final = 10_000  # letters that one redrive from the page publishes
DEFAULT_REDRIVE: Final = 1_000
_CHANGES: Final = (
    ("retry-message", "Retry now", False),
    ("discard-message", "Discard", True),
    ("dead_letter-message", "Dead-letter", False),
)


def messages_page(view: View) -> str:
    """Show messages by sequence, id, key or state."""
    given = {name: view.text(name) for name in ("id", "key", "group", "state")}
    if given["state"] is not None and given["group"] is None:
        raise invalid("state", given["state"], "has no group: give the group whose state it is")
    if (sequence := view.sequence("sequence")) is not None:
        messages = _at(view, sequence)
    else:
        messages = _peek(view)
    following = None
    if sequence is None and len(messages) >= ROWS:
        following = href("messages", view.name, **given, after=messages[-1].sequence)
    return render(
        "messages.html",
        view,
        title="Messages",
        tab="messages",
        messages=messages,
        following=following,
        **messages_form(view),
    )


def _peek(view: View) -> list[PeekedMessage]:
    key, message_id, after = view.text("key"), view.text("id"), view.number("after")
    if view.text("group") is None:
        return view.queue.peek(ROWS, key=key, message_id=message_id, after=after)
    group, state = view.group()[0], view.text("state")
    return group.peek(ROWS, state=state, key=key, message_id=message_id, after=after)


def _at(view: View, sequence: int) -> list[PeekedMessage]:
    """Return the message of a sequence in a list, which is empty without it."""
    messages = view.queue.peek(1, after=sequence - 1) if sequence else view.queue.peek(1)
    return [message for message in messages if message.sequence == sequence]


def messages_form(view: View) -> dict[str, Any]:
    names, given = list(view.overview.groups), view.text("group")
    offered = len(names) <= MAX_CHOICES and given in (None, *names)
    return {"groups": ("", *names) if offered else (), "states": ("", *STATE_NAMES)}


def message_page(view: View) -> str:
    """Show one message, or its life."""
    sequence = sequence_of(view)
    if view.text("part") == "life":
        return _life(view, sequence)
    return render(
        "message.html",
        view,
        title=f"Message {show_sequence(sequence)}",
        tab="messages",
        crumbs=[("Messages", href("messages", view.name))],
        sequence=sequence,
        changed=view.number("changed"),
        message=next(iter(_at(view, sequence)), None),
    )


def _life(view: View, sequence: int) -> str:
    trace = view.queue.trace(sequence)
    positions = view.queue._locate_traced(trace)
    linked = [("Redriven from", trace.earlier), *(("Redriven as", later) for later in trace.later)]
    return render(
        "message_life.html",
        view,
        trace=trace,
        events=[(event, _cause(event), _failure(event)) for event in trace.events[:MAX_EVENTS]],
        positions=[
            (position, changes_for(position) if view.allow_changes else [])
            for position in positions[:MAX_GROUPS]
        ],
        groups=len(positions),
        redrives=[(how, redrive) for how, redrive in linked if redrive is not None],
        blocked=trace.blocked[:MAX_GROUPS],
    )


def _cause(event: TraceEvent) -> str:
    """Return who caused an event, without "by", which the heading has."""
    user = event.user and f"user {event.user}"
    return ", ".join(filter(None, (event.shown_worker.removeprefix("by "), user)))


def _failure(event: TraceEvent) -> str:
    return ": ".join(filter(None, (event.reason, event.shown_error)))


class Trial(NamedTuple):
    """The letters that a redrive would publish."""

    number: int
    limit: int
    rows: list[dict[str, Any]]  # the first of them
    fields: _Fields  # that choose them
    destination: str  # how many messages go to which group; empty if all groups get them
    staying: str  # the letters whose group does not exist


def letters_page(view: View) -> str:
    """Show dead letters, one of them, or those that fields choose."""
    if (sequence := view.number("letter")) is not None:
        return _letter(view, sequence)
    chosen = view.letters()
    return render(
        "letters.html",
        view,
        title="Dead letters",
        tab="letters",
        trial=trial(view, chosen, limit_of(view)) if chosen else None,
        discarded=view.number("discarded"),
        **letters_form(view),
        **({} if chosen else _letters(view)),
    )


def limit_of(view: View) -> int:
    return view.number("limit", least=1, most=MAX_REDRIVE) or DEFAULT_REDRIVE


def letters_form(view: View) -> dict[str, Any]:
    """Return what the form that chooses letters shows, which may be invalid input."""
    return {"limit": view.text("limit") or DEFAULT_REDRIVE, "all_groups": view.text("all_groups")}


def _letters(view: View) -> dict[str, Any]:
    letters = view.queue._remaining_letters()
    result = letters.failures(None if view.text("count") == "all" else COUNTED)
    newest = letters.newest(ROWS, view.number("before")).to_pylist()
    last = newest[-1]["dead_letter_sequence"] if len(newest) >= ROWS else None
    return {
        "total": view.overview.dead_letters,
        "unrouted": view.overview.unrouted,
        "found": result,
        "failures": [(failure, _fields_of(failure)) for failure in result.failures[:MAX_FAILURES]],
        "max_redrive": MAX_REDRIVE,
        "newest": newest,
        "ticked": view.text("tick") == "all",
        "tick_all": href("letters", view.name, before=view.number("before"), tick="all"),
        "older": last and href("letters", view.name, before=last),
    }


def _fields_of(failure: Failure) -> _Fields | None:
    """Return what chooses the letters of a failure, or None if nothing does."""
    if failure.shape == OTHERS:
        return None
    fields = {"died_in": failure.group, "reason": failure.reason, "shape": failure.shape}
    missing = [name for name, value in fields.items() if value is None]
    return {"find": 1, **fields, "without": ",".join(missing) or None}


def trial(view: View, chosen: LetterFilter, limit: int) -> Trial:
    """Return the letters that a redrive would publish, without publishing any."""
    all_groups = bool(view.text("all_groups"))
    result = view.queue.redrive(where=chosen, limit=limit, dry_run=True, to_all_groups=all_groups)
    rows = [] if result.table is None else result.table.slice(0, ROWS).to_pylist()
    fields: _Fields = {name: view.query.get(name) or None for name in LETTER_FIELDS}
    return Trial(result.messages, limit, rows, fields, result.destination, result.staying)


def _letter(view: View, sequence: int) -> str:
    rows = view.queue.newest_dead_letters(1, before=sequence + 1).to_pylist()
    letter = rows[0] if rows and rows[0]["dead_letter_sequence"] == sequence else {}
    columns = {name: cell for name, cell in letter.items() if name not in ("value", "headers")}
    if letter:
        columns["dead_letter_sequence"] = str(sequence)
    return render(
        "letter.html",
        view,
        title=f"Dead letter {show_sequence(sequence)}",
        tab="letters",
        crumbs=[("Dead letters", href("letters", view.name))],
        columns=columns,
        value=letter.get("value"),
        letter_headers=to_headers(letter.get("headers")),
        number=sequence,
    )


def changes_for(position: MessagePosition) -> list[tuple[str, str, bool]]:
    """Return the changes that fit a message, with the text of each button, and if it is red."""
    if position.state in ("transferring", "settled"):
        return []
    useless = {"ready": "retry-message", "dead": "dead_letter-message"}.get(position.state)
    return [change for change in _CHANGES if change[0] != useless]


def sequence_of(view: View) -> int:
    """Return the sequence that the parameters name. Raise InvalidOption."""
    if (sequence := view.sequence("sequence")) is None:
        raise InvalidOption(
            "sequence is missing: give version:row, or a number", option="sequence", value=None
        )
    return sequence
