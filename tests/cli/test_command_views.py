"""What each command that only reads shows: JSON has the API's record, a table an approved text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.approved import assert_approved, without_what_varies
from support.commands import Run
from support.stocked_queue import stocked_queue
from support.working import leave_heartbeat

from spark_mq import Message, Queue
from spark_mq.util.show import json_line

SECONDS = 120
"""How far an age may be from that of a look a moment later."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stocked queue, `orders`, and one with lanes, `keyed`."""
    monkeypatch.chdir(tmp_path)

    def message(name: str) -> Message:
        return Message(name, key=f"key-{name}", message_id=f"id-{name}", headers={"a": "b"})

    orders = stocked_queue(tmp_path / "orders", message, "bad")
    orders.sweep()
    orders.group("audit").pause("repairs")
    leave_heartbeat(orders, "audit", "idle-1", interval=3_600_000_000)
    orders.group("new", start="latest").ensure()
    orders.publish(["x", "y"], batch_id="day")
    orders.group("new").lease("worker-9").reject(error="worse")
    orders.close_batch("day", to=orders, groups=["billing"])
    orders.schedule(
        "nightly", message="run", cron="0 2 * * *", timezone="Europe/Berlin", jitter="5m"
    )
    keyed = Queue.create(tmp_path / "keyed", durable=False, lanes=8, order="key")
    keyed.publish([Message("a", key="hot", priority=9)])
    keyed.publish([Message("b", key="hot" if n % 2 else f"key-{n}") for n in range(12)])
    keyed.group("billing").lease("worker-7", max_messages=1, visibility_timeout="1h")
    return tmp_path


def billing(queue: str = "orders") -> Any:
    return Queue.open(queue).group("billing")


def described() -> dict[str, Any]:
    group = billing("keyed")
    return {
        "group": "billing", **asdict(group.stats()), "leases": 1,
        "settings": asdict(group.settings), "priorities": group.priorities(),
        "lanes": group.lanes(10), "errors": group.last_errors(), "blockers": [],
    }  # fmt: skip


def failures() -> list[dict[str, Any]]:
    return [
        {**asdict(failure), "where": failure.where} for failure in Queue.open("orders").failures()
    ]


RECORDS: dict[str, Callable[[Queue], Any]] = {
    "queue describe orders": lambda q: [q.describe()],
    "queue describe orders groups": lambda q: [
        {"group": name, **asdict(q.group(name).stats())} for name in ("new", "billing", "audit")
    ],
    "queue describe orders workers": lambda q: [
        {"group": name, **asdict(worker)}
        for name in ("audit", "billing")
        for worker in q.group(name).workers()
    ],
    "queue describe orders batches": lambda q: q.batches(),
    "queue configure orders": lambda q: [{"queue": q.path, **asdict(q.settings)}],
    "group describe billing -q keyed": lambda q: [described()],
    "group describe billing leases -q orders": lambda q: q.group("billing").leases(),
    "group describe billing lanes -q keyed": lambda q: billing("keyed").lanes(10),
    "group describe billing lanes --by age -n 2 -q keyed": lambda q: billing("keyed").lanes(
        2, by="age"
    ),
    "peek -q orders": lambda q: q.peek(10),
    "peek -q orders --key key-bad": lambda q: q.peek(10, key="key-bad"),
    "peek -q orders -n 2 --after 1:0": lambda q: q.peek(2, after=1 << 32),
    "peek -q orders -g billing --state leased": lambda q: billing().peek(10, state="leased"),
    "trace --now --message-id id-leased -q orders": lambda q: q.locate(message_id="id-leased"),
    "dlq list -q orders": lambda q: [
        {**row, "headers": {"a": "b"}, "priority": 0} for row in q.list_dead_letters().to_pylist()
    ],
    "dlq failures -q orders": lambda q: failures(),
    "throughput -q orders --every 365d": lambda q: q.throughput(every="365d").to_pylist(),
    "changes -q orders": lambda q: q.changes(),
    "changes -q orders -g audit": lambda q: q.changes(group="audit"),
    "schedule list -q orders": lambda q: q.schedules(),
    "sql SELECT/**/consumer_group,state/**/FROM/**/ranges -q orders": lambda q: (
        q.sql("SELECT consumer_group, state FROM ranges").to_arrow().to_pylist()
    ),
}
TEXTS = (
    *(words for words in RECORDS if not words.startswith(("sql", "throughput"))),
    "queue list .", "queue describe keyed", "group describe audit -q orders",
    "group describe audit workers -q orders", "peek -q orders -g billing",
    *(f"peek -q orders -g billing --state {state}" for state in ("unread", "delayed", "settled")),
    "trace 1:1 -q orders", "trace 1:2 -q orders", "trace --now 1:2 -q orders",
    "trace --key key-leased -q orders", "dlq list --message-id id-bad -q orders",
    "top -q orders --count 2 --interval 1ms", "top -q keyed --interval 1ms",
    "check -q orders", "check -q orders --max-dead 0", "dlq redrive -q orders --dry-run",
    "dlq discard -q orders --where true --dry-run", "group seek billing -q orders --to latest",
    "sweep -q keyed",
)  # fmt: skip


def alike(shown: Any, record: Any, name: str = "") -> bool:
    """Compare values, of which ages and rates may be those of a moment later."""
    if isinstance(shown, dict) and isinstance(record, dict):
        same = shown.keys() == record.keys()
        return same and all(alike(shown[own], record[own], own) for own in shown)
    if isinstance(shown, list) and isinstance(record, list):
        return len(shown) == len(record) and all(map(alike, shown, record))
    if name.endswith(("age", "per_second")) and None not in (shown, record):
        return bool(shown == pytest.approx(record, abs=SECONDS if name.endswith("age") else 1e-9))
    return type(shown) is type(record) and bool(shown == record)


@pytest.mark.parametrize("words", RECORDS)
def test_json_has_the_record_of_the_api(shop: Path, run: Run, words: str) -> None:
    shown = run(*words.split(), "-o", "json").rows
    record = [json.loads(json_line(one)) for one in RECORDS[words](Queue.open("orders"))]
    assert shown
    assert alike(shown, record), (shown, record)


def test_tables_are_as_they_were_approved(shop: Path, run: Run) -> None:
    texts = {}
    for words in TEXTS:
        done = run(*words.split(), expect=int(words.startswith("check")))
        texts[words] = without_what_varies(done.out + done.err, shop)
    assert_approved(Path(__file__).parent / "views.txt", texts.items())
    # An interval may end during the test, so that there are rows of two.
    heads = run("throughput", "-q", "orders").out.splitlines()[0].split()
    assert (heads[:5], heads[-2:]) == (
        ["AT", "GROUP", "PUBLISHED", "LEASED", "FAILED"],
        ["PUBLISHED/S", "SETTLED/S"],
    )
