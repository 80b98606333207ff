"""Dead letters are repaired and redriven, each once, also if a process crashes in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from letters import back, with_dead
from support.arrow_memory import at_most
from support.handles import again, lease, once
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import on_publish

from spark_mq import Message, Queue, ReceivedMessage
from spark_mq.integrations.formats import Pydantic
from spark_mq.testing import ManualClock, memory_queue

SQL = 'json_merge_patch(value, \'{"currency": "EUR"}\')'


def with_letters(queue: Queue, values: list[str | bytes]) -> Queue:
    """A queue with a letter for each value."""
    return with_dead(queue, ["bad"] * len(values), values)


def orders(number: int) -> list[str | bytes]:
    return [json.dumps({"id": n, "currency": "EURO"}) for n in range(number)]


def test_a_repaired_message_keeps_all_but_its_value(queue: Queue) -> None:
    with_letters(queue, orders(1))
    (letter,) = queue.list_dead_letters()["dead_letter_sequence"].to_pylist()
    done = queue.redrive(transform=SQL)
    assert (done.to_arrow().to_pylist(), done.failures) == ([{"messages": 1, "failed": 0}], {})
    (message,) = lease(queue).messages
    assert message.value == b'{"id":0,"currency":"EUR"}'
    assert (message.message_id, message.key, message.priority) == ("id-0", "k0", 0)
    assert message.headers == {
        "own": "1",
        "spark_mq.group": "default",
        "spark_mq.reason": "rejected",
        "spark_mq.redriven_from": str(letter),
        "spark_mq.repaired": "true",
    }
    assert queue.redrive(transform=SQL).messages == 0


def test_a_trace_follows_a_repair_both_ways_and_names_the_transform(queue: Queue) -> None:
    with_letters(queue, orders(1))
    (first,) = [message.sequence for message in queue.peek()]
    queue.redrive(where="error = 'bad'", transform=SQL)
    (message,) = lease(queue).messages
    (later,) = queue.trace(first).later
    assert later.sequence == message.sequence
    trace = queue.trace(message.sequence)
    assert trace.earlier == having(sequence=first)
    assert trace.events[0] == having(event="repaired", detail=f"error = 'bad' by {SQL}")


def test_a_letter_for_which_the_transform_fails_stays(queue: Queue, limits: Limits) -> None:
    with_letters(queue, ["1", "x", "3", "0", b"\xff", "6"])
    limits(redrive_chunk=4)
    sql = "CAST(CAST(6 / nullif(CAST(value AS INT), 0) AS INT) AS TEXT)"
    trial = queue.redrive(transform=sql, dry_run=True)
    done = queue.redrive(transform=sql)
    assert done == having(messages=3, failed=3, failures=trial.failures, staying="")
    assert any("DuckDB raised ConversionException" in text for text in done.failures)
    assert back(queue) == ["6", "2", "1"]
    assert queue.list_dead_letters()["message_id"].to_pylist() == ["id-1", "id-3", "id-4"]
    assert queue.redrive(transform="'none'") == having(messages=3, failed=0)


def test_sql_makes_nothing_of_a_value_that_is_no_text(queue: Queue) -> None:
    """json_merge_patch takes null for an empty object, so it would replace such a value."""
    with_letters(queue, [b"\xff", *orders(1)])
    done = queue.redrive(transform=SQL)
    assert (done.messages, done.failures) == (1, {"the transform gives no value": 1})
    assert queue.redrive(transform="bytes").messages == 1
    values = {message.value for message in lease(queue, 9).messages}
    assert values == {b'{"id":0,"currency":"EUR"}', b"\xff"}


def test_a_dry_run_shows_letters_before_and_after(queue: Queue) -> None:
    with_letters(queue, [*orders(1), "no JSON"])
    trial = queue.redrive(transform=SQL, dry_run=True)
    assert (trial.messages, trial.failed) == (1, 1)
    reason = "the transform fails or gives no value (DuckDB raised ConversionException)"
    assert trial.failures == {reason: 1}
    shown = trial.table.select(["value", "new_value", "new_key", "transform_error"]).to_pylist()
    assert [tuple(row.values()) for row in shown] == [
        (b'{"id": 0, "currency": "EURO"}', b'{"id":0,"currency":"EUR"}', "k0", None),
        (b"no JSON", None, None, reason),
    ]
    assert back(queue) == []
    empty = queue.redrive(where="error = 'none'", transform=SQL, dry_run=True)
    assert empty.table.schema == trial.table.schema
    assert "failed" in str(queue.redrive(transform=SQL)._repr_html_())


def repair(message: ReceivedMessage) -> ReceivedMessage | bytes | str | None:
    """One kind of result for each id."""
    if message.message_id == "id-0":
        return f"{message.value!r} {message.key} {dict(message.headers)} {message.priority}"
    if message.message_id == "id-1":
        return b"bytes"
    if message.message_id == "id-2":
        return replace(message, value="new", key="other", headers={"a": "b"}, priority=9)
    return None


def test_a_function_repairs_value_key_headers_and_priority(queue: Queue) -> None:
    with_letters(queue, ["a", "b", "c", "d"])
    done = queue.redrive(transform=repair)
    assert (done.messages, done.failures) == (3, {"the transform gives no value": 1})
    found = {message.message_id: message for message in lease(queue, 9).messages}
    assert found["id-0"].value == b"b'a' k0 {'own': '1'} 0"
    assert (found["id-1"].value, found["id-1"].key) == (b"bytes", "k1")
    last = found["id-2"]
    assert (last.value, last.key, last.headers["a"], last.priority) == (b"new", "other", "b", 9)
    assert "own" not in last.headers
    (change,) = [change for change in queue.changes() if change.operation == "redriven"]
    assert change.detail == f"by {__name__}:repair"


def test_a_function_reads_the_message_as_its_handler_does(queue: Queue) -> None:
    with_letters(queue, orders(1))
    seen: list[ReceivedMessage] = []

    def euro(message: ReceivedMessage) -> str:
        seen.append(message)
        return json.dumps({**message.json(), "text": message.text})

    trial = queue.redrive(transform=euro, dry_run=True)
    assert (trial.messages, trial.failures) == (1, {})
    (value,) = trial.table["new_value"].to_pylist()
    assert json.loads(value) == {"id": 0, "currency": "EURO", "text": seen[0].text}
    (first,) = queue.peek(message_id="id-0")
    (message,) = seen
    assert (message.message_id, message.key, message.headers) == ("id-0", "k0", {"own": "1"})
    assert (message.sequence, message.published_at) == (first.sequence, first.published_at)
    assert message.delivery_count == 1
    assert message.first_leased_at is not None


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m: m.nope, "AttributeError: <text> object has no attribute <text>"),
        (lambda m: {}, "the transform returns dict: return the new value as bytes or str, "),
        (lambda m: Message(m.value), "the transform returns Message: return the new value"),
        (lambda m: replace(m, message_id="x"), "may change only key, value, headers, priority"),
        (
            lambda m: replace(m, headers={"spark_mq.x": ""}),
            "sets a header that begins with spark_mq.",
        ),
        (lambda m: replace(m, key=7), "has a key of type int"),
        (lambda m: m.json(), "InvalidPayload: message <n> is not JSON"),
        (lambda m: "\ud800", "text that has no UTF<n> form"),
    ],
)
def test_what_a_function_may_not_do_leaves_the_letter(
    queue: Queue, function: Any, reason: str
) -> None:
    with_letters(queue, ["a"])
    done = queue.redrive(transform=function)
    assert (done.messages, done.failed) == (0, 1)
    ((text, number),) = done.failures.items()
    assert (reason.replace("UTF<n>", "UTF-<n>") in text, number) == (True, 1), text
    assert queue.redrive(transform=lambda m: "good").messages == 1
    assert back(queue) == ["good"]


def test_a_slow_repair_is_fenced_by_the_next_redrive(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has frozen its letters, and hangs before its publish."""
    queue = with_letters(make(), orders(3))
    other, to_usd = again(queue), SQL.replace("EUR", "USD")
    on_publish(monkeypatch, queue, once(before=lambda: other.redrive(transform=to_usd)))
    assert queue.redrive(transform=SQL).messages == 0
    assert [json.loads(one)["currency"] for one in back(queue)] == ["USD"] * 3
    assert again(queue).redrive().messages == 0


def test_letters_of_many_sweeps_are_repaired_in_one_round(queue: Queue) -> None:
    """Their sequences lie 2**32 apart, and their ranges have become one."""
    for _ in range(3):
        with_letters(queue, orders(2))
    with at_most(50 * 2**20):
        assert queue.redrive(transform=SQL).messages == 6
    assert [json.loads(one)["currency"] for one in back(queue)] == ["EUR"] * 6


def test_repaired_letters_go_to_another_queue() -> None:
    clock = ManualClock()
    queue, other = with_letters(memory_queue(clock), orders(2)), memory_queue(clock)
    assert queue.redrive(transform=SQL, to=other).messages == 2
    first, _ = lease(other, 5).messages
    assert json.loads(first.value)["currency"] == "EUR"
    assert first.headers["spark_mq.repaired"] == "true"
    assert first.headers["spark_mq.queue"] == queue.path
    assert queue.redrive().messages == 0


def test_a_limit_counts_the_letters_that_the_transform_gets(queue: Queue) -> None:
    with_letters(queue, ["x", *orders(3)])
    assert queue.redrive(transform=SQL, limit=2) == having(messages=1, failed=1)
    assert queue.list_dead_letters().num_rows == 3


def test_a_format_says_which_new_values_are_accepted(queue: Queue) -> None:
    order = Pydantic(dict[str, int])
    with_letters(queue, ['{"id": 1}', '{"id": "x"}', "no JSON"])
    trial = queue.redrive(transform="value", format=order, dry_run=True)
    assert (trial.messages, trial.failed) == (1, 2)
    assert trial.table["transform_error"].to_pylist() == [
        None,
        "the format refuses it: not a valid dict: $.*: int_parsing",
        "the format refuses it: not a valid dict: $: json_invalid",
    ]
    assert trial.table["new_value"].to_pylist()[1:] == [None, None]
    done = queue.redrive(
        where="message_id <> 'id-2'",
        transform="json_merge_patch(value, '{\"id\": 7}')",
        format=order,
    )
    assert (done.messages, done.failed) == (2, 0)
    assert queue.redrive(transform=lambda m: None, format=order).failures == {
        "the transform gives no value": 1
    }
    assert back(queue) == ['{"id":7}', '{"id":7}']
