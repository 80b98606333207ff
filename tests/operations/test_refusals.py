"""What the API refuses, as one table: the call, the option that its error names, and the fix.

A refused call has changed nothing. What a kind of value allows stands beside its check, as in
tests/unit/util/test_validation.py: here each door has a few wrong values of each option.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from support.handles import again, contents, lease

from spark_mq import ConsumerGroup, Lease, Message, Queue, Reject, Retry
from spark_mq.errors import GroupNotFound, InvalidOption, InvalidSchema, QueueNotFound
from spark_mq.integrations.formats import Json
from spark_mq.testing import ManualClock, memory_queue

AWARE = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)
BEFORE_ALL = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
AFTER_ALL = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
SECRET = "4111-secret"


@dataclass(frozen=True)
class Stock:
    """Queues with a bit of everything. No row of the table changes them, so all rows share them."""

    folder: Path
    queue: Queue
    """A message is leased, others are unread, and two letters lie in its dead-letter queue."""
    ordered: Queue
    """It has lanes."""
    held: Lease
    group: ConsumerGroup
    new: ConsumerGroup
    """It isn't there."""
    ordered_group: ConsumerGroup
    new_ordered: ConsumerGroup


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    folder = tmp_path_factory.mktemp("refusals")
    clock = ManualClock()
    queue = Queue.create(folder / "orders", clock=clock, durable=False)
    queue.publish([Message(SECRET, key=SECRET), SECRET, SECRET, SECRET])
    bad = lease(queue, 2)
    bad.reject([bad.messages[0].sequence], error="7")
    bad.reject(error="seven")
    queue.sweep()
    ordered = Queue.create(folder / "ordered", clock=clock, durable=False, lanes=8)
    ordered.publish([Message("x", key="k", message_id="m")])
    ordered.group().configure(order="key")
    groups = [one.group(name) for one in (queue, ordered) for name in ("default", "new")]
    return Stock(folder, queue, ordered, lease(queue, 1), *groups)


@pytest.fixture(autouse=True)
def nothing_changes(stock: Stock) -> Iterator[None]:
    """A refused call writes nothing, and starts no publisher."""
    before, threads = contents(stock.folder), set(threading.enumerate())
    yield
    assert contents(stock.folder) == before
    started = {thread.name for thread in set(threading.enumerate()) - threads}
    assert "spark_mq publisher" not in started


def nothing(_: Any) -> None:
    pass


async def later(_: Any) -> None:
    raise AssertionError("never called")


OTHER = memory_queue().group("other")
BY_MESSAGE = {"until": "empty", "mode": "message"}
BY_LEASE = {"until": "empty", "mode": "batch"}

DOORS: dict[str, Callable[..., Any]] = {
    "Queue.create": lambda s, **given: Queue.create(s.folder / "new", **given),
    "memory_queue": lambda _, **given: memory_queue(**given),
    "Message.json": lambda _, value: Message.json(value),
    "Retry": lambda _, delay: Retry(delay),
    "Reject": lambda _, error: Reject(error),
    "queue.group": lambda s, group="g", **given: s.queue.group(group, **given),
    "queue.drop_group": lambda s, group: s.queue.drop_group(group),
    "queue.sql": lambda s, sql: s.queue.sql(sql),
    "publish": lambda s, messages="a", **given: s.queue.publish(messages, **given),
    "schedule": lambda s, **given: s.queue.schedule(
        **{"name": "s", "every": "1h", "message": "x", **given}
    ),
    "close_batch": lambda s, **given: s.queue.close_batch(
        **{"batch_id": "b", "to": s.ordered, **given}
    ),
    "keep_alive": lambda s, **given: s.held.keep_alive(**given).__enter__(),
    "group.extend": lambda s, timeout: s.group.extend(s.held, timeout),
    **{
        f"group.{verb}": lambda s, lease_id="held", verb=verb, **given: getattr(s.group, verb)(
            s.held.lease_id if lease_id == "held" else lease_id, **given
        )
        for verb in ("ack", "nack", "reject", "release")
    },
    "work": lambda s, handler=nothing, **given: s.new.work(handler, **{**BY_LEASE, **given}),
    "work by message": lambda s, handler=nothing, **given: s.new.work(
        handler, **{**BY_MESSAGE, **given}
    ),
    "replay": lambda s, handler=nothing, **given: s.queue.replay(
        handler, **{"mode": "batch", **given}
    ),
    "redrive": lambda s, **given: s.queue.redrive(**given),
    "plot.lanes": lambda s, **given: s.ordered.plot.lanes("default", **given),
}
"""The calls that need more than their name and what a row gives."""


def call(stock: Stock, door: str, given: dict[str, Any]) -> object:
    if door in DOORS:
        return DOORS[door](stock, **given)
    return attrgetter(door)(stock)(**given)


class Refusal(NamedTuple):
    door: str
    given: dict[str, Any]
    """The first is the one that is wrong."""
    words: tuple[str, ...]
    reported: tuple[str, Any] | None = None
    """The option and the value of the error, if they are not those of the first one given."""
    shown: bool = False
    """Whether the text has the value."""

    def __str__(self) -> str:
        return f"{self.door}: {next(iter(self.given.items()), '')}"[:80]


def of(
    doors: str, options: str, values: list[Any], *words: str, reported: Any = None, **more: Any
) -> list[Refusal]:
    """Several wrong values of an option. It may have other names, and other doors, after a bar."""
    return [
        Refusal(door, {option: value, **more}, words, reported, shown=reported is None)
        for door in doors.split("|")
        for option in options.split("|")
        for value in values
    ]


def each(doors: str, *words: str, **given: Any) -> list[Refusal]:
    """A wrong value of each of several options."""
    return [row for option, value in given.items() for row in of(doors, option, [value], *words)]


def row(doors: str, given: dict[str, Any], *words: str, reported: Any = None) -> list[Refusal]:
    """An option that the door does not have, or that does not go with the others."""
    return [Refusal(door, given, words, reported) for door in doors.split("|")]


NOT_DURATIONS = [-1, math.nan, True, "soon", timedelta(-1), "1" + "0" * 30]
NOT_COUNTS = [0, -1, 1.5, True, "many"]
NOT_NAMES = ["", "a b", "a'b", "x" * 129, "__horizon", 5]
BY_ID = "group.ack|group.nack|group.reject|group.release"
NAMING = "held.ack|held.nack|held.reject|group.ack|group.nack|new.lease"
CHANGES = "group.discard|group.retry_now|group.dead_letter"
TOO_SHORT = "is too short: give 1"
NOT_POSITIONS = ["first", "2026-01-31T12:00:00", -1, True, 1.5, None, AWARE.date()]

SETTINGS = [
    *of("Queue.create", "storage_options", ["x"], "give a mapping",
        reported=("storage_options", "str")),
    *of("Queue.create|memory_queue", "visibility_timeout", [*NOT_DURATIONS, None, 0, "0s"],
        "'30s'"),
    *of("Queue.create", "retention|clock_skew|retry_delay|max_retry_delay", [*NOT_DURATIONS, None],
        "zero or more"),
    *of("Queue.create", "max_delivery_attempts|max_in_flight|max_tracked_ranges", NOT_COUNTS,
        "whole number"),
    *row("Queue.create", {"max_inflight": 3}, "did you mean 'max_in_flight'"),
    *each("Queue.create", breaker_threshold=0, breaker_reset_timeout=0, breaker_max_wait=0,
          on_reject="no", dedup_window="soon", dedup_until="done", delivery_delay=0, lanes=1_025),
    *row("Queue.create", {"dedup_replaces": True}, "dedup_until='settled' or a dedup_window"),
    *of("Queue.create", "message_ttl", ["soon", -1]),
    *row("Queue.create", {"message_ttl": "1h", "delivery_delay": "1h"}),
    *row("Queue.create", {"sink": "/tmp/sink"}, "cannot be a default for new groups"),
    *row("Queue.create", {"order": "key"}, "lanes"),
    *row("Queue.create", {"weights": {"a": 2}, "lanes": 4}, "order='fair'"),
    *row("Queue.create|new.configure", {"retry_delay": "1h"}, "is longer than max_retry_delay="),
    *row("queue.configure", {"dead_letter_path": "/tmp/x"},
        "it is fixed when the queue is created"),
    *row("queue.configure", {"durable": False}, "each open handle chose how it writes"),
    *row("queue.configure", {"queue_id": "x"}, "rehome"),
    *row("queue.configure", {"home": "/x"}, "rehome"),
    *row("queue.configure", {"visibility_timeout": "5m"}, "group.configure"),
    *row("queue.configure", {"group": None}, "group.configure"),
    *row("queue.configure", {"retentoin": "1d"}, "Did you mean 'retention'"),
    *row("queue.configure", {"storage_options": {}}, "the name is unknown"),
    *row("queue.configure", {"dedup_replaces": "now"}, "not a flag"),
    *row("new.configure", {"retention": "1d"}, "is a setting of the queue: use queue.configure"),
    *row("new.configure", {"retry": "sometimes"}, "exponential, linear, constant, none"),
    *row("new.configure", {"on_max_deliveries": "explode"}, "dead_letter, drop, block"),
    *of("new.configure", "retry_jitter", [2], "from 0 to 1"),
    *each("new.configure", max_tracked_ranges=None, max_in_flight=-1, max_failures=0,
          max_retry_age="0s"),
    *row("new.configure", {"retry_dealy": "1s"}, "did you mean 'retry_delay'"),
    *each("new.configure", "needs lanes", order="fair", max_in_flight_per_key=1),
    *row("new.configure", {"sink_key": "x"}, "set by spark_mq itself"),
    *of("new.configure", "sink", [5, "", object], "is not a path: give the path"),
    *row("new_ordered.configure", {"weights": {"a": 2}}, "order='fair'"),
    *row("new_ordered.configure", {"max_in_flight_per_key": 2, "order": "key"}, "order='key'"),
    *row("new_ordered.configure", {"weights": {"a": 0}, "order": "fair"}, "0.01 to 100"),
]  # fmt: skip

NAMES_AND_POSITIONS = [
    *of("queue.group|queue.drop_group", "group", [*NOT_NAMES, None], "letters"),
    *of("queue.group", "start", NOT_POSITIONS, "earliest, latest"),
    *of("queue.group", "start", [2**63], str(2**63)),
    *of("queue.group", "start", [NAIVE], "time zone", "timezone.utc"),
    *of("queue.group", "start", [BEFORE_ALL, AFTER_ALL], "out of range in UTC"),
    *of("group.seek", "to", NOT_POSITIONS, "earliest, latest"),
    *of("group.pause", "until", ["0s", datetime(2020, 1, 1, tzinfo=UTC)], "is over"),
    *of("group.pause", "until", ["soon", datetime(2099, 1, 1)], "is not a datetime"),
    *of("group.pause", "reason", [3]),
    *of("queue.purge", "name", ["yes"], "orders"),
]

PUBLISHING = [
    *of("publish", "producer_id", [*NOT_NAMES, "schedule:s"], "letters", producer_sequence=1),
    *of("publish", "producer_sequence", [-1, True, 1.5, "x", 2**63], producer_id="p"),
    *row("publish", {"producer_sequence": None, "producer_id": "p"}, "go together"),
    *row("publish", {"producer_sequence": 1}, "go together"),
    *row("publish", {"on_duplicate": "skip"}, "producer_id"),
    *of("publish", "on_duplicate", ["skipp"], "did you mean 'skip'", producer_id="p",
        producer_sequence=1),
    *of("queue.last_producer_sequence", "producer_id", ["no such name!", ""]),
    *each("queue.publisher", producer_id="no spaces", linger="soon", retry_timeout=-1),
    *of("queue.publisher", "max_messages", [*NOT_COUNTS, 2**31], "1 to"),
    *of("queue.publisher", "max_bytes", ["4x", 0, True]),
    *of("Message.json", "value", [{"a": math.nan}, {("a", "b"): 1}], "has no JSON form",
        reported=("value", "dict")),
    *of("publish", "deliver_at", [BEFORE_ALL, AFTER_ALL], "out of range in UTC"),
    *of("schedule", "name", ["a b", "__s"]),
    *each("queue.pause_schedule|queue.remove_schedule", name="a b"),
    *row("queue.dead_letters.schedule", {"name": "s", "message": "x"}, "is a dead-letter queue",
        reported=("name", "s")),
    *row("schedule", {"cron": None, "every": None}),
    *row("schedule", {"cron": "0 2 * *", "every": None}),
    *row("schedule", {"timezone": "Berlin", "every": None, "cron": "0 2 * * *"}),
    *row("schedule", {"cron": "0 2 * * *"}),
    *each("schedule", every="10ms", timezone="Europe/Berlin", catch_up="some", jitter="2h"),
    *of("schedule", "starts_at", [datetime(2027, 1, 1), 5]),
    *of("schedule", "starts_at", ["2027-01-01", "5m"], "give one with a zone"),
    *[
        refusal
        for message, *reported in (
            (5, "message", "int"),
            ("x" * 70_000, "message", "str"),
            (Message("x", headers={"a": "x" * 70_000}), "message", "Message"),
            (Message("x", message_id="1"), "message_id", "1"),
            (Message("x", dedup_id="1"), "dedup_id", "1"),
            (Message("x", deliver_at=AWARE), "deliver_at", AWARE),
            (Message("x", expires_at=AWARE), "expires_at", AWARE),
            (Message("x", expires_at=0), "expires_at", timedelta(0)),
            (Message("x", deliver_at="10m", expires_at="10m"), "expires_at", "10m"),
        )
        for refusal in row("schedule", {"message": message}, reported=reported)
    ],
    *row("schedule", {"message": Message("x", deliver_at="5m", expires_at="15m"), "jitter": "10m"},
        reported=("expires_at", timedelta(minutes=15))),
    *of("close_batch", "batch_id", ["a/b", 7]),
    *of("close_batch", "groups", [[]]),
]  # fmt: skip

HANDLING = [
    *of("new.lease", "visibility_timeout", [*NOT_DURATIONS, 0], "'30s'"),
    *of("new.lease", "wait", NOT_DURATIONS),
    *of("new.lease", "max_messages", [*NOT_COUNTS, 2**31], "1 to"),
    *of("new.lease", "max_bytes", [0, -1, 1.5, True, "", "many"], "is not a size"),
    *of("new.lease|work", "worker_id", NOT_NAMES, "letters"),
    *of("new.lease", "sequences", [range(0, 4000, 2)], "several leases, or give a range",
        reported=("sequences", 2_000)),
    *of("held.extend|group.extend", "timeout", [*NOT_DURATIONS, 0]),
    *of("held.nack|held.release|group.release", "delay", NOT_DURATIONS),
    *of("held.nack|held.reject", "error", [5, b"bytes", ["x"], ValueError("x")]),
    *of(BY_ID, "lease_id", [None, 5, "\ud800"]),
    *of(BY_ID, "lease_id", [[""]], reported=("lease_id", "")),
    *of(BY_ID, "lease_id", [["a", "b"]], "messages of one lease: give {lease_id: sequences}",
        reported=("sequences", [1]), sequences=[1]),
    *of(NAMING, "sequences", ["5"], "not a list of sequences", reported=("sequences", "5")),
    *of(NAMING, "sequences", [["5"]], "'5' is not a sequence", reported=("sequences", "5")),
    *row(CHANGES, {}, "name messages by one of", reported=("sequences", None)),
    *row(CHANGES, {"sequences": 1, "key": "k"}, "name messages by one of"),
    *of(CHANGES, "sequences", ["1"], "'1' is not a sequence", reported=("sequences", "1")),
    *each(CHANGES, sequences=1 << 40, message_id="nobody", key=5),
    *of("Retry", "delay", ["busy", {"code": 5}], "not a duration", "Retry(error="),
    *of("Reject", "error", ["30s", " 5 minutes", 0, 0.5, timedelta(minutes=1)], "is a duration",
        "Use Retry(delay="),
    *of("work", "format", [Json()], "cannot be used with ack='on_receive'", ack="on_receive",
        reported=("format", "on_receive")),
    *of("work by message", "concurrency", ["4", 100_001], handler=later),
    *of("work by message", "concurrency", [4], "concurrency", handler=later, threads=4,
        reported=("threads", 4)),
    *of("work", "on_error", ["drop"], "nack", "reject", "ack", "raise"),
    *each("work", threads=1_001, ack="never", shutdown_timeout="soon", mode="lease", until="done"),
    *of("work", "heartbeat", ["29s", 1, "61m", "on", True, False, "", [30]]),
    *of("work", "handler", [lambda: None, lambda taken, more: None, "no function"], "lease)"),
    *of("work", "sweep", ["0.5s", "2h", 0, "often", True]),
    *row("work", {"settle_linger": "1s"}, "mode='message'"),
    *of("work", "format", [Json], "cannot encode and decode", reported=("format", "Json")),
    *row("work|replay", {"handler": later}, "needs mode='message'"),
    *of("work", "max_messages", ["7"]),
    *each("work by message", ack="manual", concurrency=5, threads="4", max_messages=0,
          settle_linger="soon", handler=lambda: None),
    *of("work by message", "more_groups", [["audit"]], reported=("more_groups", "audit")),
    *row("work", {"mode": "batch", "more_groups": [OTHER]}, "mode='message'",
        reported=("more_groups", ["other"])),
    *row("work by message", {"handler": nothing, "more_groups": {OTHER: later}},
        "call work once for each kind", reported=("handler", [nothing, later])),
    *of("work by message", "timeout", ["30m", "1h", 0, -1, "x"]),
    *each("work", TOO_SHORT, visibility_timeout=0.001, max_lease_duration="1ms"),
    *each("work by message|held.extend|group.extend", TOO_SHORT, timeout="1ms"),
    *each("keep_alive", TOO_SHORT, max_lease_duration="1ms"),
]  # fmt: skip

LOOKING = [
    *each("queue.peek|queue.find|queue.trace|group.peek", "is not text: give a str", key=7,
          message_id=7),
    *of("queue.locate", "message_id", [7], "is not text: give a str"),
    *of("group.peek", "state", ["lost"]),
    *of("queue.locate", "message_id", ["z"], "has this id"),
    *of("queue.locate", "n", [0], message_id="z"),
    *each("queue.trace", key="none", message_id="none"),
    *of("queue.trace", "sequence", [7, 2**40, -1, "x"]),
    *row("queue.trace", {}, "give a sequence, message_id=", reported=("sequence", None)),
    *row("queue.trace", {"key": "k", "message_id": "m"}, "give a sequence, message_id=",
        reported=("sequence", None)),
    *row("queue.locate", {"sequence": 1, "message_id": "x"}, "one kind of name"),
    *of("queue.finished", "outcome", ["dead-lettered"], "dead_lettered"),
    *of("queue.changes|queue.finished|queue.throughput", "group", [7, b"g", ["g"], "a group", ""],
        "is not a valid name"),
    *each("queue.newest_dead_letters", n=0),
    *each("ordered_group.lanes", by="name", top=0),
    *each("plot.lanes", top=1_000),
    *each("queue.plot.life", message_id="other"),
    *of("ordered.plot.ages", "since", ["1000d"], every="1s",
        reported=("since/every", 1000 * 86_400)),
    *of("queue.sql", "sql", [b"\xff", 7], "is not text: give a str"),
    *of("queue.sql", "sql", ["SELECT nope FROM messages"], '"nope" not found'),
    *of("queue.sql", "sql",
        ["SELECT 1; SELECT 2", "DROP VIEW messages", "COPY messages TO '/tmp/x.csv'"],
        "not one SELECT"),
    *of("queue.sql", "sql", ["SELECT * FROM read_text('/etc/passwd')"], "PermissionException"),
    *of("queue.sql", "sql", ["SELECT CAST(value AS INT) FROM messages"], "ConversionException"),
]  # fmt: skip

DEAD_LETTERS = [
    *of("redrive", "where", ["nope = 1"], "FROM clause. Give SQL", "The columns are dead_letter_"),
    *of("redrive", "where", ["Reasn = 1"], '"Reasn" not found',
        "(did you mean 'reason'?). Give SQL"),
    *of("redrive", "where", ["key = 7"], "ConversionException for a message, so put TRY(...)"),
    *of("redrive", "where", ["reason ="], "Parser Error: syntax error at end of input"),
    *of("redrive", "where", ["reason"], "its values are VARCHAR, and must be BOOLEAN"),
    *of("redrive", "where", ["unnest([true, false])"], "it gives several values for a message"),
    *of("redrive", "where", ["key = '\udc80'"], "it isn't valid Unicode"),
    *of("redrive", "where", ["1 = 1) UNION SELECT 1 --", "true; DROP TABLE x"], "cannot be run"),
    *of("redrive", "where", [7], "where=7 is not a condition: give SQL like"),
    *of("redrive", "limit|rate", [0, "fast", True]),
    *of("redrive", "limit", [2**63]),
    *of("redrive", "to", ["", 5], "is not a queue: give a queue, or its path"),
    *of("redrive", "transform", ["nope(value)"], "Scalar Function with name nope does not exist"),
    *of("redrive", "where|transform", ["", "  "], "it is empty"),
    *of("redrive", "transform", ["sequence"], "are BIGINT, and must be VARCHAR or JSON or BLOB"),
    *of("redrive", "transform", ["(SELECT value::INT::TEXT)"], "for a message, so put TRY(...)"),
    *of("redrive", "transform", [7, Message], "is not a repair"),
    *row("redrive", {"format": Json()}, "format goes with transform", reported=("format", "Json")),
    *of("redrive", "format", [Json], transform="value", reported=("format", "Json")),
    *of("queue.discard_dead_letters", "where", ["nope = 1"], '"nope" not found'),
    *row("queue.discard_dead_letters", {"where": None}, "where is missing"),
    *of("queue.discard_dead_letters", "before", [-1, 2**63], where="true"),
    *of("replay", "since|until", ["soon", "2026-01-31T12:00:00", True], "is neither a datetime"),
    *of("replay", "since", ["1h", "2h"], "is not before until='2h'", until="2h"),
    *each("replay", "is not valid", mode="single", threads=0, on_error="skip"),
    *of("replay", "limit", [0, 2**63], "is not valid"),
    *each("replay", "is not a valid name", group="a b"),
    *each("replay", "is not a duration", timeout="x"),
    *of("replay", "where", ["colour = 'red'"], '"colour" not found', "settled_at"),
    *of("replay", "concurrency", [3], "is for async handlers", mode="message"),
    *of("replay", "on_error", ["raise"], "would end the replay"),
    *of("replay", "handler", [lambda: None], "cannot be called as handler(lease)"),
]  # fmt: skip


@pytest.mark.parametrize(
    "refusal",
    [*SETTINGS, *NAMES_AND_POSITIONS, *PUBLISHING, *HANDLING, *LOOKING, *DEAD_LETTERS],
    ids=str,
)
def test_a_refusal_names_its_option_and_changes_nothing(stock: Stock, refusal: Refusal) -> None:
    with pytest.raises(InvalidOption) as caught:
        call(stock, refusal.door, refusal.given)
    error = caught.value
    option, value = refusal.reported or next(iter(refusal.given.items()))
    assert error.option == option
    assert error.value is value or error.value == value
    named = f"{option}={value!r}" if refusal.shown else "" if refusal.reported else option
    for part in (named, *refusal.words):
        assert part in str(error)
    assert len(str(error)) < 1_000, "a long value is not reported at length"
    shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown, "what a message has"
    assert "arrow_scan" not in shown, "the text of DuckDB's own query"


def publish_by_a_publisher(queue: Queue, messages: Any) -> None:
    with queue.publisher() as publisher:
        publisher.publish(messages)


PUBLISH: dict[str, Callable[[Queue, Any], Any]] = {
    "publish": Queue.publish,
    "publish once": lambda queue, messages: queue.publish(
        messages, producer_id="p", producer_sequence=1
    ),
    "publisher": publish_by_a_publisher,
}
MESSAGES = [
    (5, ["int", "bytes, str, Message", "queue.publish(str(value))"]),
    (None, ["NoneType", "bytes, str, Message", "queue.publish('text')"]),
    ({SECRET: 1}, ["dict", "bytes, str, Message", "queue.publish(Message.json(value))"]),
    ({SECRET: 1}.keys(), ["dict_keys", "queue.publish(sorted(values))"]),
    (bytearray(b"a"), ["bytearray", "queue.publish(bytes(value))"]),
    (memoryview(b"a"), ["memoryview", "queue.publish(bytes(value))"]),
    (pa.record_batch({"value": ["a"]}), ["RecordBatch", "queue.publish(pyarrow.table(value))"]),
    (["fine", {"card": SECRET}], ["message 1", "dict", "bytes or str", "Message.json(value)"]),
    (Message("a", key=5), ["message 0", "key", "int"]),
    (Message("a", headers={1: SECRET}), ["message 0", "headers", "from str to str: leave out"]),
    (Message("a", headers={"h": None}), ["message 0", "headers", "from str to str: leave out"]),
    (Message("a", headers=["a"]), ["message 0", "headers"]),
    (Message("a", message_id=7), ["message 0", "message_id", "int"]),
    (Message("a", dedup_id=5), ["message 0", "dedup_id", "int"]),
    (Message("a", dedup_id="\ud800"), ["message 0", "UTF-8"]),
    (Message("a", deliver_at="soon"), ["message 0", "deliver_at", "time zone", "timedelta"]),
    (Message("a", expires_at=timedelta(days=-1)), ["message 0", "expires_at", "from now"]),
    (Message("a", deliver_at=BEFORE_ALL), ["message 0", "deliver_at", "out of range in UTC"]),
    ("\ud800", ["message 0", "UTF-8"]),
    *[
        (Message("a", priority=wrong), ["priority"])
        for wrong in (-1, 10, 1.0, True, pa.scalar(True), "5", None)
    ],
]


@pytest.mark.parametrize(("messages", "words"), MESSAGES, ids=lambda value: repr(value)[:60])
@pytest.mark.parametrize("door", PUBLISH)
def test_a_refused_message_is_not_shown_and_uses_no_number_up(
    stock: Stock, door: str, messages: Any, words: list[str]
) -> None:
    """What people put into messages is theirs: an error says where, not what."""
    with pytest.raises(InvalidOption) as caught:
        PUBLISH[door](stock.queue, messages)
    assert caught.value.option == "messages"
    for part in words if door == "publish" else ():
        assert part in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value.data)
    assert stock.queue.last_producer_sequence("p") is None


@pytest.mark.parametrize(
    ("messages", "options", "which"),
    [
        (Message("a", deliver_at="5m", expires_at="5m"), {}, "message 0"),
        (["a", Message("b", expires_at="5m")], {"deliver_at": "10m"}, "message 1"),
        (pa.table({"value": ["a"], "deliver_at": [AWARE], "expires_at": [AWARE]}), {}, "message 0"),
    ],
    ids=repr,
)
def test_a_message_that_expires_before_it_is_due(
    stock: Stock, messages: Any, options: dict[str, Any], which: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        stock.queue.publish(messages, **options)
    assert (caught.value.option, caught.value.value is None) == ("expires_at", False)
    for part in (which, "expires_at", "deliver_at", "Give a later expires_at"):
        assert part in str(caught.value)
    if isinstance(messages, Message):
        with stock.queue.publisher() as publisher, pytest.raises(InvalidOption, match="expires_at"):
            publisher.publish(messages)


def test_a_clock_without_a_time_zone_is_refused(stock: Stock) -> None:
    with pytest.raises(InvalidOption, match="time zone"):
        again(stock.queue, clock=lambda: NAIVE).publish("a")
    with pytest.raises(InvalidOption, match="time zone"):
        ManualClock().set(NAIVE)


TABLES: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"body": ["a"]}, "value", ["no column 'value'"]),
    ({"values": ["a"]}, "value", ["no column 'value'", "rename 'values'"]),
    ({"value": [{"a": 1}]}, "value", ["struct", "to_json"]),
    ({"value": pa.nulls(1)}, "value", ["is null, not string"]),
    ({"value": ["a", None, None]}, "value", ["2 values are null"]),
    ({"value": ["a"], "keys": ["k"]}, "keys", ["'keys'", "did you mean 'key'"]),
    ({"value": ["a"], "zzz": ["k"]}, "zzz", ["'zzz'", "drop it"]),
    ({"value": ["a"], "key": [1]}, "key", ["int64", "string", "cast"]),
    ({"value": ["a"], "published_at": ["now"]}, "published_at", ["timestamp"]),
    ({"value": ["a"], "published_at": [NAIVE]}, "published_at", ["timestamp"]),
    ({"value": ["a"], "lane": [1]}, "lane", ["not one of a message"]),
    ({"value": ["a"], "sequence": [1]}, "sequence", ["'sequence'"]),
    *[
        ({"value": ["a"], column: pa.array([at], pa.int64()).cast(pa.timestamp(unit, "UTC"))},
         column, words)
        for column in ("published_at", "deliver_at", "expires_at")
        for at, unit, words in (
            (2**62, "us", ["years 1 to 9999"]), (-(2**62), "us", ["years 1 to 9999"]),
            (253_402_300_800_000_000, "us", ["years 1 to 9999"]), (2**62, "s", [column]),
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize(("columns", "column", "words"), TABLES, ids=lambda value: str(value)[:40])
def test_a_refused_table_names_its_column(
    stock: Stock, columns: dict[str, Any], column: str, words: list[str]
) -> None:
    with pytest.raises(InvalidSchema) as caught:
        stock.queue.publish(pa.table(columns))
    assert caught.value.column == column
    for part in words:
        assert part in str(caught.value)


MISSING: dict[str, tuple[Callable[[Stock], Any], str]] = {
    "lanes": (lambda s: s.queue.group("never").lanes(), "never"),
    "priorities": (lambda s: s.queue.group("never").priorities(), "never"),
    "plot.lanes": (lambda s: s.ordered.plot.lanes("defautl"), "Did you mean 'default'"),
    "plot.ages": (lambda s: s.ordered.plot.ages(group="defautl"), "Did you mean 'default'"),
    "close_batch": (lambda s: DOORS["close_batch"](s, groups=["defautl"]), "Did you mean"),
    "replay": (lambda s: DOORS["replay"](s, group="defautl"), "Did you mean 'default'"),
}


@pytest.mark.parametrize("call", MISSING)
def test_a_group_that_is_not_there_is_named_and_not_created(stock: Stock, call: str) -> None:
    with pytest.raises(GroupNotFound, match=MISSING[call][1]):
        MISSING[call][0](stock)


PLACES: dict[str, Callable[[Stock, str], Any]] = {
    "open": lambda _, path: Queue.open(path),
    "drop_at": lambda _, path: Queue.drop_at(path, "nowhere"),
    "close_batch": lambda s, path: DOORS["close_batch"](s, to=path),
    "redrive": lambda s, path: s.queue.redrive(to=path),
}


@pytest.mark.parametrize("call", PLACES)
def test_a_queue_that_is_not_there_is_named(stock: Stock, call: str) -> None:
    path = str(stock.folder / "nowhere")
    with pytest.raises(QueueNotFound, match=path) as caught:
        PLACES[call](stock, path)
    assert caught.value.path == path
