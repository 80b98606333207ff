"""The pytest plugin, as a user's tests use it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq import InvalidHandlerResult, InvalidOption, InvalidSchema, Queue
from spark_mq.testing import FakeBatchLease, ManualClock, memory_queue, run_batch

ROOT = Path(__file__).parents[2]
PASSING = """
import pytest
from spark_mq import Message

@pytest.fixture
def mq_settings():
    backoff = {"retry": "constant", "retry_delay": "10s", "retry_jitter": 0}
    return {**backoff, "max_delivery_attempts": 3}

def test_a_handler(mq_queue, drain, assert_settled, assert_published):
    mq_queue.publish(["1", "two", "3"])
    def handle(lease):
        return [{"sequence": m.sequence, "outcome": "reject", "error": "no digits"}
                for m in lease.messages if not m.value.isdigit()]
    assert [m.value for m in drain(handle, mode="batch")] == [b"1", b"two", b"3"]
    assert_settled(acked=2, dead=1)
    mq_queue.sweep()
    assert_published("two", headers={"spark_mq.error": "no digits"}, queue=mq_queue.dead_letters)

def test_retries_need_no_sleep(mq_queue, mq_clock, drain, assert_settled):
    mq_queue.publish("a")
    start = mq_clock()
    seen = []
    def flaky(lease):
        seen.append(lease.messages[0].delivery_count)
        if len(seen) < 3:
            raise ValueError("not yet")
    drain(flaky, mode="batch", on_error="nack")
    assert seen == [1, 2, 3]
    assert (mq_clock() - start).total_seconds() == 20
    assert_settled(acked=1)

def test_handlers_of_messages(mq_queue, drain, assert_settled):
    from spark_mq import Retry
    mq_queue.publish(["1", "2", "3"])
    seen = []
    async def handle(message):
        seen.append((message.value, message.delivery_count))
        early = message.value == b"2" and message.delivery_count == 1
        return Retry(error="later") if early else None
    assert len(drain(handle, mode="message", concurrency=2)) == 4
    assert sorted(seen) == [(b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
    assert_settled(acked=3)

def test_publishing(mq_queue, assert_published):
    mq_queue.publish([Message("a", key="k", headers={"x": "1", "y": "2"}), "b"])
    (one,) = assert_published(key="k", headers={"x": "1"}, count=1)
    assert one.value == b"a"
    assert_published(count=2)
    mq_queue.publish([Message.json({"id": 1, "b": [2]}), Message.json([1])])
    assert_published({"b": [2], "id": 1}, count=1)
    assert_published([1], count=1)
    assert_published({"id": 1}, count=0)

def test_a_batch(mq_queue, run_batch, assert_settled):
    mq_queue.publish(["good", "bad"])
    run_batch(lambda batch, lease: batch.slice(1), "billing", on_error="reject")
    assert_settled("billing", acked=1, dead=1)
"""
FAILING = """
from spark_mq import Message

def test_not_published(mq_queue, assert_published):
    mq_queue.publish("a")
    assert_published("b")

def test_another_key(mq_queue, assert_published):
    mq_queue.publish(Message("a", key="k", headers={"x": "1"}, message_id="i"))
    assert_published("a", key="other")

def test_too_many(mq_queue, assert_published):
    mq_queue.publish(["a", "a"])
    assert_published("a", count=1)

def test_left(mq_queue, assert_settled):
    mq_queue.publish("a")
    assert_settled()

def test_wrong_count(mq_queue, drain, assert_settled):
    mq_queue.publish("a")
    drain()
    assert_settled(acked=2)

def test_a_handler_with_a_bug(mq_queue, drain):
    mq_queue.publish("a")
    def handle(lease):
        return lease.mesages  # a misspelling
    drain(handle)

def test_a_bug_in_a_coroutine(mq_queue, drain):
    mq_queue.publish("a")
    async def handle(message):
        assert message.value == b"b", "in a coroutine"
    drain(handle, mode="message")

def test_raises(mq_queue, run_batch):
    mq_queue.publish("a")
    def process(batch, lease):
        assert False, "seen by the test"
    run_batch(process)
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    (folder / "test_user.py").write_text(text)
    installed = any(one.name == "spark_mq" for one in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "spark_mq.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_user.py"],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_fixtures_serve_a_users_tests(tmp_path: Path) -> None:
    code, output = run(tmp_path, PASSING)
    assert code == 0, output
    assert "5 passed" in output


@pytest.mark.slow
def test_the_assertions_fail_if_they_do_not_hold(tmp_path: Path) -> None:
    code, output = run(tmp_path, FAILING)
    assert code == 1
    assert "8 failed" in output
    for text in ("0 messages match, not one at least", "2 messages match, not 1",
                 "b'a' key='k' headers={'x': '1'} message_id='i'",
                 "has messages left: {'ready': 1}", "has {'acked': 1}, not {'acked': 2}",
                 "seen by the test", "lease.mesages  # a misspelling",
                 "in a coroutine"):  # fmt: skip
        assert text in output


def test_a_batch_settles_by_the_real_rules() -> None:
    clock = ManualClock()
    group = memory_queue(clock, max_delivery_attempts=1).group()
    assert run_batch(lambda batch, lease: None, group) is None
    queue = memory_queue(clock)
    queue.publish(["a", "b", "c", "d"])

    def process(batch: pa.Table, lease: object) -> pa.Table:
        rows = batch.to_pylist()
        lease.ack([rows[0]["sequence"]])
        lease.nack([{**rows[1], "delay": "1h"}, rows[2]], delay="2h", error="later")
        return batch.slice(3, 1)

    lease = run_batch(process, queue.group(), on_error="reject")
    assert lease.settled == 4
    now = clock()
    waits = {one.value: one.available_at - now for one in queue.group().peek(state="delayed")}
    assert {value: wait.total_seconds() for value, wait in waits.items()} == {
        b"b": 3600, b"c": 7200,
    }  # fmt: skip
    assert queue.group().stats().dead == 1
    assert lease.delta_options["txnVersion"] == "0"


def test_an_exception_settles_the_batch_as_the_policy_says() -> None:
    def process(batch: object, lease: object) -> None:
        raise ValueError("broken")

    queue = memory_queue(ManualClock())
    queue.publish(["a", "b"])
    with pytest.raises(ValueError, match="broken"):
        run_batch(process, queue.group("raise"))
    assert queue.group("raise").stats().leased == 2
    run_batch(process, queue.group("reject"), on_error="reject")
    assert [one.error for one in queue.group("reject").peek(state="dead")] == [
        "ValueError: broken"
    ] * 2


def test_a_fake_lease_publishes_each_part_once(tmp_path: Path) -> None:
    source, target, sink = memory_queue(), memory_queue(), Queue.create(tmp_path / "sink")
    source.publish("a")
    source.group().configure(sink=sink.path)
    fake = FakeBatchLease(source.group().lease("w"))
    assert set(fake.publish_options) == {"producerId", "producerSequence"}
    fake.publish(target, ["one"])
    fake.publish(target, ["two"], part="two")
    for other, why in ((target, "Give part= a name"), (sink, "is the sink of group")):
        with pytest.raises(InvalidOption, match=why):
            fake.publish(other, ["three"])
    assert target.group("look").ensure().stats().ready == 2


def test_rows_without_a_sequence_are_refused() -> None:
    queue = memory_queue(ManualClock())
    queue.publish("a")
    with pytest.raises(InvalidSchema, match="sequence"):
        run_batch(lambda batch, lease: lease.ack([{"value": b"a"}]), queue.group())


def test_a_batch_may_return_what_its_own_settles_return() -> None:
    queue = memory_queue(ManualClock())
    queue.publish(["a", "b"])
    lease = run_batch(lambda batch, lease: lease.ack(batch), queue.group(), on_error="raise")
    assert lease.settled == 2
    assert queue.group().stats().acked == 2


@pytest.mark.parametrize("returned", [7, "text", True, object()])
def test_a_batch_refuses_what_a_stream_refuses(returned: object) -> None:
    queue = memory_queue(ManualClock())
    queue.publish("a")
    with pytest.raises(InvalidHandlerResult, match=r"process returned .*: it must return None"):
        run_batch(lambda batch, lease: returned, queue.group())
    (other,) = (queue.publish("b"), queue.group("other"))[1:]
    with pytest.raises(InvalidOption, match="the rows cannot be settled: they are a"):
        run_batch(lambda batch, lease: lease.ack(returned), other)
