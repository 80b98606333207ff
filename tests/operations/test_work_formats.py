"""Workers that are given a format: decoded values, dead letters, and failures of the format."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from support.formats import ORDER, ORDER_VALUE
from support.handles import once
from support.having import having
from support.tables import ledgers_of, on_commands
from support.working import drain, fail

from spark_mq import Lease, Message, Queue, ReceivedMessage, WorkSummary
from spark_mq.errors import InvalidPayload, StorageError
from spark_mq.integrations.formats import Avro, Json, Pydantic


class Order(BaseModel):
    id: int


BAD = b"\xff\xfe secret"


def batches(queue: Queue, handler: Callable[[Lease], Any], count: int) -> WorkSummary:
    """Handle batches of JSON."""
    return drain(queue, handler, mode="batch", format=Json(), max_messages=count)


def letters(queue: Queue) -> list[tuple[bytes, str]]:
    queue.sweep()
    table = queue.redrive(dry_run=True).table
    return list(zip(table["value"].to_pylist(), table["error"].to_pylist(), strict=True))


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_handler_gets_values_and_others_become_dead_letters(queue: Queue, mode: str) -> None:
    orders, format = [Order(id=1), Order(id=2)], Pydantic(Order)
    first, second = (Message.encode(order, format) for order in orders)
    queue.publish([BAD, first, b"", second, BAD])
    seen: list[Any] = []

    def handle(given: Any) -> None:
        messages = given.messages if isinstance(given, Lease) else [given]
        seen.extend(message.data for message in messages)

    done = drain(queue, handle, mode=mode, format=format, max_messages=5)
    assert seen == orders
    assert done == having(acked=2, rejected=3, failed=0)
    dead = letters(queue)
    assert sorted(value for value, _ in dead) == [b"", BAD, BAD]
    for _, error in dead:
        assert error.startswith("not a valid Order: ")
        assert "secret" not in error


def test_a_slow_format_does_not_stop_other_coroutines(queue: Queue) -> None:
    handled, seen = threading.Event(), list[Any]()

    class Slow(Json):
        def decode(self, payload: bytes) -> Any:
            value = super().decode(payload)
            if value == "slow":
                assert handled.wait(60), "the handler of the other message did not run"
            return value

    queue.publish([Message.json("slow"), Message.json("quick"), "no JSON"])

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.data)
        handled.set()

    done = drain(queue, handle, format=Slow(), concurrency=2, max_messages=3)
    assert done == having(acked=2, rejected=1, failed=0)
    assert seen == ["quick", "slow"]


def test_a_lease_has_only_what_was_decoded_and_an_empty_one_has_no_handler(queue: Queue) -> None:
    queue.publish([BAD, Message.json(1), BAD, Message.json(2), BAD])
    seen: list[Any] = []

    def handle(lease: Lease) -> Any:
        seen.append((len(lease), lease.table().num_rows, [m.data for m in lease.messages]))
        return lease.ack()  # of what is left

    assert batches(queue, handle, 4) == having(acked=2, rejected=3, failed=0)
    assert seen == [(2, 2, [1, 2])]


def test_a_failing_handler_keeps_the_rejected_ones_dead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose reply was lost, which nobody is to blame for."""
    queue.publish([BAD, Message.json(1), Message.json(2)])
    queue.group().configure(retry_delay="15m")
    losing = once(at=2, fail=StorageError("reset", path="p"))
    on_commands(monkeypatch, lambda run, _: losing(run))
    assert batches(queue, fail, 3) == having(leases=2, acked=0, nacked=2, failed=1)
    assert letters(queue) == [(BAD, "not JSON: byte 0 is not UTF-8")]


def test_many_reasons_cost_one_commit(queue: Queue) -> None:
    queue.publish([b"[" * n + b"x" for n in range(1, 60)] + [Message.json(1)])
    queue.group().ensure()
    before = ledgers_of(queue).version()
    assert batches(queue, lambda _: None, 60) == having(acked=1, rejected=59, leases=1)
    assert ledgers_of(queue).version() == before + 3, "the lease, the rejects and the ack"


@pytest.mark.parametrize("mode", ["batch", "message"])
def test_a_schema_that_is_not_known_yet_is_a_failure_and_no_dead_letter(
    queue: Queue, mode: str
) -> None:
    known = {8: ORDER}

    class Registered:
        """A format whose payloads begin with the id of their schema."""

        def encode(self, value: Any) -> bytes:
            return b"\x09" + Avro(ORDER).encode(value)

        def decode(self, payload: bytes) -> Any:
            if payload[0] not in known:
                raise LookupError(f"schema {payload[0]} is not among the given ones")
            return Avro(known[payload[0]]).decode(payload[1:])

    queue.publish(Message.encode(ORDER_VALUE, Registered()))
    group = queue.group()
    group.configure(retry_delay="15m")
    done = drain(queue, lambda _: None, mode=mode, format=Registered())
    assert done == having(failed=1, nacked=1, rejected=0)
    (error,) = group.last_errors()
    assert "LookupError: schema 9 is not among the given ones" in error.error
    known[9] = ORDER
    group.seek("earliest")
    assert drain(queue, lambda _: None, mode=mode, format=Registered()).acked == 1


def test_a_message_decodes_without_a_worker(queue: Queue) -> None:
    queue.publish([Message.encode(Order(id=1), Pydantic(Order)), "secret"])
    lease = queue.group().lease("w", max_messages=2)
    good, bad = lease.messages
    assert good.decode(Pydantic(Order)) == Order(id=1)
    assert good.data is None
    reason = rf"^message {bad.sequence}: not a valid Order: "
    with pytest.raises(InvalidPayload, match=reason) as caught:
        bad.decode(Pydantic(Order))
    assert caught.value.sequence == bad.sequence
    assert "secret" not in str(caught.value)
