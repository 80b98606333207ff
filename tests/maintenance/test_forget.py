"""The index forgets what was trimmed and what no group needs. Everything else stays as it was."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import Injected
from support.handles import again, clean_messages, index_commits, lease, take, take_all, trim
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import add_file, context_of, ledgers_of, messages_of, removes_of

from spark_mq import Queue
from spark_mq.testing import ManualClock


def trimmable(delta_queue: Make, clock: ManualClock, old: int = 6) -> Queue:
    """Old commits that are settled and past the retention, and two young ones."""
    queue = delta_queue(retention="1d")
    for number in range(old):
        queue.publish([f"{number}", "second"])
    for _ in range(old):
        lease(queue, 2).ack()
    clock.advance("2d")
    for number in range(2):
        queue.publish(f"young {number}")
    return queue


def publishes_read(queue: Queue) -> list[str]:
    """The files that a handle reads from commits/ when it opens the queue."""
    found = messages_of(queue).commits.read_after()
    return [row["path"] for row in found[0].to_pylist() if row["kind"] == "publish"]


def publishes(queue: Queue) -> list[str]:
    """All files that commits/ has."""
    rows = messages_of(queue).commits.past(0, 2**62)
    return rows["path"].to_pylist()


@pytest.mark.parametrize("has_commits", [False, True])
def test_the_queue_goes_on_as_before(
    delta_queue: Make, clock: ManualClock, limits: Limits, has_commits: bool
) -> None:
    """Without commits/, the index is read from the log. It has the same sequences."""
    limits(unchecked_rows=0)
    queue = trimmable(delta_queue, clock)
    total, tail = queue.stats()["published"], queue.stats()["latest_sequence"]
    trim(queue)
    if not has_commits:
        shutil.rmtree(messages_of(queue).commits.path)
    for handle in (queue, again(queue)):
        assert (handle.stats()["published"], handle.stats()["latest_sequence"]) == (total, tail)
        assert handle.group().stats().ready == 2
    receipt = again(queue).publish("new")
    assert queue.stats()["latest_sequence"] == receipt.sequences[0]
    for group in ("default", "other"):
        assert take(again(queue).group(group)) == ["young 0", "young 1", "new"]


def test_a_group_that_lags_keeps_the_index(delta_queue: Make, clock: ManualClock) -> None:
    """A hard limit drops files that a group has not settled. It must be able to count them."""
    queue = delta_queue(retention="1h", hard_retention="1d")
    for number in range(4):
        queue.publish(f"{number}")
    held = lease(queue, 1, group="slow")
    lease(queue).ack()
    clock.advance("2d")
    assert trim(queue) == 4
    assert messages_of(queue).index().forgotten == 0
    assert not again(queue).recover(dry_run=True).needed
    queue.publish("young")
    held.ack()
    index_commits(queue)
    slow = queue.group("slow").lease("w", max_messages=9, fail_on_data_loss=False)
    assert [m.value for m in slow.messages] == [b"young"]
    slow.ack()
    # Commits have the machine's time, so this file is two days old as well.
    assert trim(queue) == 1
    assert messages_of(queue).index().forgotten == 4
    other = again(queue)
    assert other.stats()["published"] == 5
    assert messages_of(other).index().forgotten == 4, "it is written down at once"


def test_a_restore_of_forgotten_files_publishes_nothing(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = trimmable(delta_queue, clock)
    path = messages_of(queue).index().files[0].path
    file = Path(messages_of(queue).path) / path
    content = file.read_bytes()
    trim(queue)
    file.write_bytes(content)
    add_file(queue, path, len(content), json.dumps({"numRecords": 2}))
    commit = max(Path(messages_of(queue).path, "_delta_log").glob("*.json"))
    text, changed = re.subn(r'"operation":"\w+"', '"operation":"RESTORE"', commit.read_text())
    assert changed == 1
    commit.write_text(text)
    other = again(queue)
    assert other.stats()["published"] == 14
    assert [m.value for m in lease(other).messages] == [b"young 0", b"young 1"]
    other.publish("settle it, so that the next trim drops the file")
    trim(other)
    assert not file.exists()


def test_a_long_lived_handle_forgets_what_sweeps_forget(
    delta_queue: Make, clock: ManualClock, limits: Limits
) -> None:
    limits(forget_files=5)
    queue = delta_queue(retention="1d")
    reader = again(queue)
    for _ in range(20):
        queue.publish("x")
        lease(queue).ack()
        clock.advance("2d")
        queue.publish("y")
        trim(again(queue))
        assert reader.stats()["published"] == queue.stats()["published"]
        lease(queue).ack()
        index = messages_of(reader).index()
        assert len(index.files) < 5
    assert reader.group().discard(index.forgotten_to) == 0


def test_a_receipt_of_a_forgotten_publish_is_unknown(delta_queue: Make, clock: ManualClock) -> None:
    queue = delta_queue(retention="1d")
    queue.publish("a", producer_id="p", producer_sequence=1)
    queue.publish("b")
    lease(queue).ack()
    clock.advance("2d")
    queue.publish("young")
    trim(queue)
    same: dict[str, Any] = {"producer_id": "p", "producer_sequence": 1, "on_duplicate": "skip"}
    for handle in (queue, again(queue)):
        assert handle.publish("a", **same) == having(duplicate=True, version=None)


def test_a_trim_works_in_small_steps(delta_queue: Make, clock: ManualClock, limits: Limits) -> None:
    limits(trim_files=4, trim_commit_files=3)
    queue = trimmable(delta_queue, clock)
    version = messages_of(queue).log.refresh().version
    assert trim(queue) == 6
    assert messages_of(queue).log.refresh().version == version + 3, "3 and 1, then 2"
    assert len(messages_of(queue).files.list("")) == 2


def test_the_index_is_written_down_in_batches(
    delta_queue: Make, clock: ManualClock, limits: Limits
) -> None:
    queue = delta_queue()
    for number in range(9):
        queue.publish(f"{number}", producer_id="p", producer_sequence=number)
    whole = messages_of(again(queue)).index()
    limits(index_batch=4)
    assert index_commits(queue) == messages_of(queue).log.refresh().version + 1
    assert messages_of(queue).commits.log.refresh().version == 2
    assert clean_messages(queue) > 0
    found = again(queue)
    assert list(messages_of(found).index().files) == list(whole.files)
    assert found.last_producer_sequence("p") == 8


def test_a_trace_of_a_forgotten_message_is_what_it_was(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = trimmable(delta_queue, clock)
    queue.sweep()
    other = again(queue)
    last = messages_of(other).index().forgotten_to
    assert messages_of(other).full_index(last).total == other.stats()["published"]
    trace = other.trace(last)
    assert (trace.version, trace.message_id, trace.retained) == (last >> 32, None, False)
    assert "payload trimmed" in str(trace)
    assert [event.event for event in trace.events] == ["leased", "acked"]
    settled = other.finished()
    assert settled.num_rows == 12
    assert settled["published_at"].null_count == 0


def test_large_files_of_the_index_are_skipped_when_all_in_them_is_forgotten(
    delta_queue: Make, clock: ManualClock, limits: Limits
) -> None:
    limits(archive_file_bytes=1)
    queue = delta_queue(retention="1d", history_retention="10d")
    for number in range(30):
        queue.publish(f"{number}", producer_id="p", producer_sequence=number)
        index_commits(queue)
    take_all(queue.group())
    clock.advance("2d")
    queue.publish("young", producer_id="p", producer_sequence=30)
    trim(queue)
    assert len(publishes_read(queue)) == 1, "the others are skipped"
    assert len(publishes(queue)) == 31
    assert not removes_of(queue, "commits"), "they stay as long as their history"
    clock.advance("20d")
    lease(queue).ack()
    queue.publish("younger")
    trim(queue)
    assert len(publishes(queue)) == 1, "they are older than the history that is kept"
    assert {remove["dataChange"] for remove in removes_of(queue, "commits")} == {True}
    other = again(queue)
    assert other.stats()["published"] == 32
    duplicate = other.publish("x", producer_id="p", producer_sequence=30, on_duplicate="skip")
    assert duplicate.duplicate


# -- chores


@pytest.mark.parametrize("broken", ["clean", "drop", "index_commits", "forget", "archive"])
def test_a_chore_that_fails_stops_no_other(
    delta_queue: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Leases expire, and leases/ is still cleaned, unless its commits cannot be archived."""
    queue = trimmable(delta_queue, clock)
    lease(queue, 1)
    clock.advance("1h")
    cleans = Injected(ledgers_of(queue).clean)

    def fails(*_: object, **__: object) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr(ledgers_of(queue), "clean", cleans)
    archive = context_of(queue).history
    monkeypatch.setattr(archive if broken == "archive" else messages_of(queue), broken, fails)
    with pytest.raises(MemoryError, match="too large"):
        queue.sweep()
    assert queue.group().stats().ready == 2
    assert cleans.calls == (archive.read([])[0].num_rows > 0) == (broken != "archive")
