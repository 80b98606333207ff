"""Show dead letters by reason, by age, and by a condition."""

from __future__ import annotations

from typing import Any, Final

from spark_mq.inspect import DeadLetterReason
from spark_mq.util.markup import Child, Html, el, join
from spark_mq.util.show import show_value
from spark_mq.web.layout import (
    button,
    count,
    facts,
    field,
    href,
    number_of,
    page,
    payload,
    table,
    when,
)
from spark_mq.web.view import View

__all__ = ["MAX_REDRIVE", "letters_form", "letters_page", "limit_of", "trial"]

ROWS: Final = 50
COUNTED: Final = 10_000  # the newest letters, which the page counts by reason
MAX_REDRIVE: Final = 10_000  # letters that one redrive from the page publishes
DEFAULT_REDRIVE: Final = 1_000
_HEADINGS: Final = (
    "Letter", "Error", "Reason", "Message", "Id", "Key", "Group", "Deliveries", "Value",
    "Published",
)  # fmt: skip


def letters_page(view: View) -> Html:
    """Show dead letters, one of them, or those that a condition selects."""
    if (sequence := view.number("letter")) is not None:
        return _one(view, sequence)
    where = _picked(view) or view.condition()
    content = trial(view, where, limit_of(view)) if where else _all(view)
    form = letters_form(view, where)
    return page("Dead letters", form, content, queue=view.name, view="letters")


def _picked(view: View) -> str | None:
    """Return SQL that selects the ticked letters, or None without any."""
    picked = [view.number("pick", text=one) for one in view.several("pick")]
    return f"dead_letter_sequence IN ({', '.join(map(str, picked))})" if picked else None


def limit_of(view: View) -> int:
    return view.number("limit", least=1, most=MAX_REDRIVE) or DEFAULT_REDRIVE


def letters_form(view: View, where: str | None = None) -> Html:
    """Return the form for a condition, which may hold invalid input."""
    hint = "SQL over the columns, such as reason = 'rejected' AND error LIKE '%timeout%'."
    return el(
        "form",
        field("Condition", "where", where or view.text("where")),
        el("input", type="hidden", name="csrf", value=view.csrf_token),
        field("At most", "limit", view.text("limit") or DEFAULT_REDRIVE),
        el("button", "Dry run"),
        el("p", hint, class_="note"),
        action=href("letters", view.name),
        class_="row",
    )


def _all(view: View) -> Html:
    total, before = view.overview.dead_letters, view.number("before")
    everything = view.text("count") == "all"
    found = view.queue.dead_letter_reasons(None if everything else COUNTED)
    rows = [_reason(view, one) for one in found.reasons]
    newest = view.queue.newest_dead_letters(ROWS, before=before).to_pylist()
    return join(
        facts([("Not redriven", total)]),
        el("h2", "By reason"),
        table(("Reason", "Group", "Messages", "Newest", "Error of the newest"), rows),
        None if found.complete else _count_all(view, found.counted),
        el("h2", "Newest"),
        _choice(view, newest) if view.allow_changes and newest else _table(view, newest),
        _more(view, newest),
    )


def _choice(view: View, letters: list[dict[str, Any]]) -> Html:
    """Return the letters with boxes to tick for a dry run."""
    return el(
        "form",
        _table(view, letters, tick=True),
        el("p", el("button", "Dry run of the ticked letters"), class_="buttons"),
        action=href("letters", view.name),
    )


def _count_all(view: View, counted: int) -> Html:
    link = el("a", "Count all.", href=href("letters", view.name, count="all"))
    return el("p", f"Of the newest {count(counted)} letters. ", link, class_="note")


def _reason(view: View, one: DeadLetterReason) -> list[Child]:
    address = href("letters", view.name, where=_condition(one), csrf=view.csrf_token)
    return [
        el("a", one.reason or "unknown", href=address), one.group or "", one.messages,
        _letter(view, one.newest), one.error or "",
    ]  # fmt: skip


def _condition(one: DeadLetterReason) -> str:
    """Return SQL that selects the letters of a reason and a group."""
    pairs = (("reason", one.reason), ("consumer_group", one.group))
    return " AND ".join(
        f"{name} IS NULL" if value is None else f"{name} = {_quoted(value)}"
        for name, value in pairs
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _table(view: View, letters: list[dict[str, Any]], *, tick: bool = False) -> Html:
    rows: list[list[Child]] = [
        [
            _letter(view, one["dead_letter_sequence"], tick=tick), one["error"] or "",
            one["reason"] or "", _origin(view, one["sequence"]), one["message_id"] or "",
            one["key"] or "", one["consumer_group"] or "", one["delivery_count"],
            el("bdi", show_value(one["value"])), when(one["published_at"]),
        ]
        for one in letters
    ]  # fmt: skip
    return table(_HEADINGS, rows, empty="No dead letter.")


def _letter(view: View, sequence: int, *, tick: bool = False) -> Html:
    label = f"Letter {sequence}"
    box = el("input", type="checkbox", name="pick", value=sequence, aria_label=label)
    link = el("a", str(sequence), href=href("letters", view.name, letter=sequence))
    return join(box, " ", link) if tick else link


def _origin(view: View, sequence: int | None) -> Child:
    if sequence is None:
        return None
    return el("a", str(sequence), href=href("message", view.name, sequence=sequence))


def _more(view: View, letters: list[dict[str, Any]]) -> Child:
    if len(letters) < ROWS:
        return None
    address = href("letters", view.name, before=letters[-1]["dead_letter_sequence"])
    return el("p", el("a", "Older", href=address), class_="turn")


def trial(view: View, where: str, limit: int, *, offer: bool = True) -> Html | None:
    """Return the letters that a redrive would publish, without publishing any.

    Without ``offer`` there is no button, and the result is None if there is no letter.
    """
    found = view.queue.list_dead_letters(where=where, limit=limit)
    if not offer and not found.num_rows:
        return None
    text = f"{number_of(found.num_rows, 'letter')} would be redriven"
    text += f": the limit is {count(limit)}." if found.num_rows == limit else "."
    redrive = _redrive(view, where, limit)
    return join(
        el("p", text, class_="result"),
        _table(view, found.slice(0, ROWS).to_pylist()),
        el("p", f"The first {ROWS} are shown.", class_="note") if found.num_rows > ROWS else None,
        el("p", button("Redrive them", redrive), class_="buttons")
        if offer and view.allow_changes and found.num_rows
        else None,
    )


def _redrive(view: View, where: str, limit: int) -> str:
    """Return the address that asks whether to redrive letters."""
    token = view.csrf_token
    return href("change", view.name, do="redrive", where=where, limit=limit, csrf=token)


def _one(view: View, sequence: int) -> Html:
    rows = view.queue.newest_dead_letters(1, before=sequence + 1).to_pylist()
    if not rows or rows[0]["dead_letter_sequence"] != sequence:
        note = el("p", "The letter is not there. It may have been redriven.", class_="note")
        return page(f"Dead letter {sequence}", note, queue=view.name, view="letters")
    letter = rows[0]
    value, headers = letter.pop("value"), dict(letter.pop("headers") or ())
    letter["sequence"] = _origin(view, letter["sequence"])
    letter["dead_letter_sequence"] = str(sequence)
    pairs = [
        (name.replace("_", " "), when(shown) if hasattr(shown, "isoformat") else shown)
        for name, shown in letter.items()
    ]
    redrive = _redrive(view, f"dead_letter_sequence = {sequence}", 1)
    return page(
        f"Dead letter {sequence}",
        el("p", button("Redrive it", redrive), class_="buttons") if view.allow_changes else None,
        facts(pairs),
        el("h2", "Value"),
        payload(value),
        table(("Header", "Value"), [[*pair] for pair in sorted(headers.items())], empty=""),
        queue=view.name,
        view="letters",
    )
