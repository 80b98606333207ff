"""Find messages, and show one with its whole life."""

from __future__ import annotations

from typing import Final

from spark_mq.errors import InvalidOption
from spark_mq.inspect import STATE_NAMES, MessagePosition, PeekedMessage
from spark_mq.operations.trace import Trace, TraceEvent
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_moment, show_value
from spark_mq.web.layout import facts, field, href, lazy, page, payload, table, when
from spark_mq.web.view import View

__all__ = ["message_page", "messages_form", "messages_page"]

ROWS: Final = 50
MAX_EVENTS: Final = 500
MAX_GROUPS: Final = 200
MAX_CHOICES: Final = 50  # groups that the form offers. With more, the name is typed


def messages_page(view: View) -> Html:
    key, message_id = view.text("key"), view.text("id")
    group, state = view.text("group"), view.text("state")
    after = view.number("after")
    if state is not None and group is None:
        raise InvalidOption(
            f"state={state!r} has no group: give the group whose state it is",
            option="state",
            value=state,
        )
    if (sequence := view.number("sequence")) is not None:
        found = _at(view, sequence)
    elif group is not None:
        own, _ = view.group()
        found = own.peek(ROWS, state=state, key=key, message_id=message_id, after=after)
    else:
        found = view.queue.peek(ROWS, key=key, message_id=message_id, after=after)
    return page(
        "Messages",
        messages_form(view),
        _table(view, found),
        _more(view, found) if sequence is None else None,
        queue=view.name,
        view="messages",
    )


def _at(view: View, sequence: int) -> list[PeekedMessage]:
    """Return the message of a sequence in a list, which is empty without it."""
    found = view.queue.peek(1, after=sequence - 1) if sequence else view.queue.peek(1)
    return [one for one in found if one.sequence == sequence]


def messages_form(view: View) -> Html:
    """Return the form for a search, which may hold invalid input."""
    names = list(view.overview.groups)
    given = view.text("group")
    offered = ("", *names) if len(names) <= MAX_CHOICES and given in (None, *names) else ()
    return el(
        "form",
        field("Sequence", "sequence", view.text("sequence")),
        field("Message id", "id", view.text("id")),
        field("Key", "key", view.text("key")),
        field("Group", "group", given, options=offered),
        field("State", "state", view.text("state"), options=("", *STATE_NAMES)),
        el("button", "Find"),
        action=href("messages", view.name),
        class_="row",
    )


def _table(view: View, found: list[PeekedMessage]) -> Html:
    rows: list[list[Child]] = [
        [
            _link(view, one.sequence), one.message_id or "", one.key or "",
            one.state or "", when(one.published_at),
            el("bdi", show_value(one.value)) if one.unreadable is None
            else el("span", one.unreadable, class_="bad"),
            one.error or "",
        ]
        for one in found
    ]  # fmt: skip
    headings = ("Sequence", "Id", "Key", "State", "Published", "Value", "Error")
    return table(headings, rows, empty="No message.")


def _link(view: View, sequence: int) -> Html:
    return el("a", str(sequence), href=href("message", view.name, sequence=sequence))


def _more(view: View, found: list[PeekedMessage]) -> Child:
    if len(found) < ROWS:
        return None
    given = {name: view.text(name) for name in ("id", "key", "group", "state")}
    address = href("messages", view.name, **given, after=found[-1].sequence)
    return el("p", el("a", "Next", href=address), class_="turn")


def message_page(view: View) -> Html:
    sequence = view.number("sequence")
    if sequence is None:
        raise InvalidOption("sequence is missing: give a number", option="sequence", value=None)
    if view.text("part") == "life":
        return _life(view, sequence)
    found = _at(view, sequence)
    note = "The message is not in the queue. It may have been trimmed."
    return page(
        f"Message {sequence}",
        _message(found[0]) if found else el("p", note, class_="note"),
        el("h2", "Life"),
        lazy(href("message", view.name, sequence=sequence, part="life"),
             text="Reading the history and the ledgers…"),
        queue=view.name,
        view="messages",
    )  # fmt: skip


def _message(one: PeekedMessage) -> Html:
    pairs = [
        ("Id", one.message_id or ""),
        ("Key", one.key or ""),
        ("Lane", "none" if one.lane is None else one.lane),
        ("Priority", one.priority),
        ("Published", when(one.published_at)),
        ("Not before", when(one.deliver_at)),
        ("Expires", when(one.expires_at)),
    ]
    headers = table(("Header", "Value"), [[*pair] for pair in sorted(one.headers.items())])
    return join(
        facts(pairs),
        el("p", one.unreadable, class_="bad") if one.unreadable else None,
        el("h2", "Value"),
        payload(one.value),
        el("h2", "Headers") if one.headers else None,
        headers if one.headers else None,
    )


def _life(view: View, sequence: int) -> Html:
    """Return a message's events, and its state in each group."""
    trace = view.queue.trace(sequence)
    positions = view.queue._locate_traced(trace)
    published = f"Published by version {trace.version} of messages/."
    events = trace.events[:MAX_EVENTS]
    headings = ("At", "Group", "What", "State", "Deliveries", "Failures", "By", "Lease", "Error")
    return join(
        el("h3", "Now"),
        table(("Group", "State", "Worker", "Until", "Deliveries", "Failures", "Reason", "Error"),
              [_position(view, one) for one in positions[:MAX_GROUPS]],
              empty="No group knows it yet."),
        _cut(len(positions), MAX_GROUPS, "groups"),
        [el("p", f"Group {group} leases nothing: {why}", class_="warn")
         for group, why in trace.blocked[:MAX_GROUPS]],
        _redrives(view, trace),
        el("h3", "Events"),
        el("p", published, class_="note"),
        table(headings, [_event(one) for one in events], empty="No event."),
        _cut(len(trace.events), MAX_EVENTS, "events"),
    )  # fmt: skip


def _redrives(view: View, trace: Trace) -> list[Html]:
    """Return links to the messages before and after a redrive."""
    linked = [("Redriven from", trace.earlier), *(("Redriven as", one) for one in trace.later)]
    return [
        el("p", f"{how} ", _link(view, one.sequence), ".") for how, one in linked if one is not None
    ]


def _position(view: View, one: MessagePosition) -> list[Child]:
    at = one.leased_until or one.available_at
    return [
        el("a", one.group, href=href("group", view.name, group=one.group)),
        one.outcome or one.state, one.worker_id or "", when(at, view.now) if at else None,
        one.delivery_count, one.failure_count, one.reason or "", one.error or "",
    ]  # fmt: skip


def _event(one: TraceEvent) -> list[Child]:
    who = ", ".join(filter(None, (_worker(one), one.user and f"user {one.user}")))
    error = ": ".join(filter(None, (one.reason, one.shown_error)))
    return [
        show_moment(one.at), one.group, one.event, one.outcome or one.state, one.delivery_count,
        one.failure_count, who, el("code", (one.lease_id or "")[:8], title=one.lease_id), error,
    ]  # fmt: skip


def _worker(one: TraceEvent) -> str:
    """Return the worker without "by", which the heading has."""
    return one.shown_worker.removeprefix("by ")


def _cut(there: int, shown: int, what: str) -> Child:
    return el("p", f"{shown} of {there:,} {what}.", class_="note") if there > shown else None
