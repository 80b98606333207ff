"""Data files that no commit names go, and none that a slow publish still commits."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import ByteStore, Call
from support.handles import Killed, again, die, killed, lease, on_commit
from support.limits import Limits
from support.queues import Make
from support.tables import messages_of

from spark_mq import Queue, errors
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.publishes import PendingPublish
from spark_mq.testing import ManualClock

pytestmark = pytest.mark.on_both_storages

HOUR = 3600.0
SECRET = "a value that nobody may keep"


@pytest.fixture(autouse=True)
def _always(limits: Limits) -> None:
    limits(leftover_look=0.0)


def data_files(queue: Queue) -> list[str]:
    files = messages_of(queue).files.list("")
    return [file.path for file in files if file.path.endswith("parquet")]


def lists(queue: Queue) -> list[str]:
    files = messages_of(queue).files.list("_leftovers")
    return [file.path for file in files if file.path.endswith("json")]


def age(queue: Queue, clock: ManualClock, hours: float) -> None:
    """Let data files and lists be so many hours older than the next write, by the store's clock."""
    if not Path(queue.path).exists():  # it is in memory
        clock.advance(hours * HOUR)
        return
    for path in [*data_files(queue), *lists(queue)]:
        file = Path(messages_of(queue).path, path)
        then = file.stat().st_mtime - hours * HOUR
        os.utime(file, (then, then))


def die_in_a_publish(queue: Queue) -> None:
    with killed("messages"):
        again(queue).publish([SECRET])


def files_of_tasks(queue: Queue) -> list[WrittenFile]:
    """Write a file of messages, as a task of Spark does."""
    return [write_file(messages_of(queue).files, pa.table({"value": [b"late"]}))]


def commit(queue: Queue, files: list[WrittenFile]) -> None:
    messages_of(queue).commit(PendingPublish(messages_of(queue).files, files))


def check_values(queue: Queue, *values: bytes) -> None:
    """See that a new handle leases these values, and misses none."""
    fresh = again(queue)
    assert [message.value for message in lease(fresh, 100).messages] == [*values]
    assert "unreadable" not in [problem.check for problem in fresh.health().problems]


def test_the_file_of_a_dead_publish_goes_after_a_day(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["kept"])
    kept = data_files(queue)
    die_in_a_publish(queue)
    assert len(data_files(queue)) == 2
    age(queue, clock, 23)
    queue.sweep()
    assert len(data_files(queue)) == 2, "a publish may take that long"
    age(queue, clock, 2)
    assert queue.sweep().cleaned_files >= 1
    assert data_files(queue) == kept
    check_values(queue, b"kept")


def test_a_file_that_a_killed_process_was_writing_goes_too(delta_queue: Make) -> None:
    queue = delta_queue()
    half = Path(messages_of(queue).path, f".spark_mq-{'0' * 32}.tmp")
    for hours, left in [(23, True), (25, False)]:
        half.write_text(SECRET)
        then = half.stat().st_mtime - hours * HOUR
        os.utime(half, (then, then))
        queue.sweep()
        assert half.exists() is left
    half.write_text(SECRET)
    queue.drop("queue")
    assert not Path(queue.path).exists()


def test_a_file_of_another_writer_stays_for_a_week(delta_queue: Make, clock: ManualClock) -> None:
    """As long as Delta's own VACUUM keeps it by default, because the writer may be that slow."""
    queue = delta_queue()
    foreign = Path(messages_of(queue).path, "part-00000-6f0c3f4e-c000.snappy.parquet")
    foreign.write_bytes(b"")
    foreign.with_name("notes.txt").write_text("its owner deletes it")
    for days, stays in [(6, True), (2, False)]:
        age(queue, clock, days * 24)
        queue.sweep()
        assert foreign.exists() is stays


@pytest.mark.parametrize("ids", [False, True])
def test_a_publish_that_froze_before_its_commit_writes_its_file_again(
    make: Make, clock: ManualClock, ids: bool
) -> None:
    """It wakes up after its file is gone, in the middle of its commit."""
    queue = make(dedup_window="30d") if ids else make()
    queue.publish(["first"])
    other = again(queue)
    gone = list[bool]()

    def freeze() -> None:
        before = set(data_files(queue))
        age(queue, clock, 25)
        other.sweep()
        gone.append(set(data_files(queue)) < before)

    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, "messages", before=freeze)
        message = {"value": "late", "dedup_id": "1"} if ids else {"value": "late"}
        receipt = queue.publish(pa.Table.from_pylist([message]))
    assert gone == [True]
    check_values(queue, b"first", b"late")
    assert len(receipt.sequences) == 1


@pytest.mark.parametrize("newest", ["has them", "has others", "is gone"])
def test_files_that_a_sweep_has_listed_are_not_committed(
    queue: Queue, clock: ManualClock, byte_store: ByteStore, newest: str
) -> None:
    """Those of Spark tasks cannot be written again, so the whole write fails."""
    queue.publish(["first"])
    files = files_of_tasks(queue)
    age(queue, clock, 25)
    if newest == "has them":  # the sweep is slower than the publish
        byte_store.on("delete_many", act=lambda call: None, of="messages")
    again(queue).sweep()
    if newest == "has others":
        messages_of(queue).files.write(*lists(queue), b"[]")
    if newest == "is gone":
        messages_of(queue).files.delete_many(lists(queue))
    with pytest.raises(errors.StorageError, match="nothing was changed") as raised:
        commit(queue, files)
    assert raised.value.landed is False
    byte_store.clear()
    check_values(queue, b"first")


def test_files_of_tasks_are_committed_after_the_sweep_of_others(
    queue: Queue, clock: ManualClock
) -> None:
    die_in_a_publish(queue)
    age(queue, clock, 25)
    files = files_of_tasks(queue)
    queue.sweep()
    commit(queue, files)
    assert len(data_files(queue)) == 1
    check_values(queue, b"late")


@pytest.mark.parametrize("verb", ["iterate", "write", "create", "delete_many"])
def test_a_file_whose_commit_lands_during_the_look_stays(
    queue: Queue, clock: ManualClock, byte_store: ByteStore, verb: str
) -> None:
    publisher, files = again(queue), files_of_tasks(queue)
    age(queue, clock, 25)
    landed = list[bool]()

    def land(call: Call) -> Any:
        result = call.run()
        if not landed and (verb != "write" or "looked" not in call.path):
            landed.append(True)
            with suppress(errors.StorageError):
                commit(publisher, files)
        return result

    byte_store.on(verb, act=land, of=messages_of(queue).files)
    queue.sweep()
    queue.sweep()
    byte_store.clear()
    assert landed == [True]
    fresh = again(queue)
    named = messages_of(fresh).published().index.files
    assert data_files(fresh) == [file.path for file in named]
    assert len(named) == (verb in ("iterate", "write")), "else it is listed already"


@pytest.mark.parametrize(
    ("verb", "at"), [("write", 1), ("write", 2), ("create", 1), ("delete_many", 1), ("stat", 2)]
)
def test_a_sweep_killed_anywhere_leaves_the_rest_to_the_next(
    queue: Queue, clock: ManualClock, byte_store: ByteStore, verb: str, at: int
) -> None:
    queue.publish(["kept"])
    for _ in range(3):
        die_in_a_publish(queue)
    age(queue, clock, 25)
    byte_store.inject(verb, of=messages_of(queue).files, after=die, at=at)
    with pytest.raises(Killed):
        messages_of(queue).clean_leftovers()
    byte_store.clear()
    again(queue).sweep()
    assert len(data_files(queue)) == 1
    again(queue).publish(["more"])
    check_values(queue, b"kept", b"more")


def test_two_sweeps_at_once_delete_only_leftovers(
    queue: Queue, clock: ManualClock, byte_store: ByteStore
) -> None:
    queue.publish(["kept"])
    die_in_a_publish(queue)
    age(queue, clock, 25)
    one, two = again(queue), again(queue)
    byte_store.inject("create", of=messages_of(one).files, before=two.sweep)
    one.sweep()
    assert len(data_files(queue)) == len(lists(queue)) == 1
    check_values(queue, b"kept")


def test_a_full_list_keeps_what_a_slower_sweep_is_about_to_delete(
    delta_queue: Make, clock: ManualClock, byte_store: ByteStore, limits: Limits
) -> None:
    limits(leftovers=1)
    queue = delta_queue()
    frozen, publisher = again(queue), again(queue)

    def write(digit: str) -> WrittenFile:
        """Write a file whose name begins with a digit, so that it has a place in the list."""
        (file,) = files_of_tasks(queue)
        path = f"part-{digit}{file.path[6:]}"
        Path(messages_of(queue).path, file.path).rename(Path(messages_of(queue).path, path))
        return replace(file, path=path)

    late = write("f")
    age(queue, clock, 25)

    def go_on() -> None:
        write("0")
        age(queue, clock, 25)
        again(queue).sweep()
        with suppress(errors.StorageError):
            commit(publisher, [late])

    byte_store.inject("delete_many", of=messages_of(frozen).files, before=go_on)
    messages_of(frozen).clean_leftovers()
    named = messages_of(again(queue)).published().index.files
    assert {file.path for file in named} <= set(data_files(queue))


def test_a_list_stays_for_a_day(queue: Queue, clock: ManualClock, limits: Limits) -> None:
    """A publish may still read it. The newest one stays for longer."""
    limits(leftovers=1)
    die_in_a_publish(queue)
    die_in_a_publish(queue)
    for hours, kept in [(25, 1), (0, 2), (25, 1)]:
        age(queue, clock, hours)
        queue.sweep()
        assert len(lists(queue)) == kept
    assert lists(queue) == [f"_leftovers/{messages_of(queue).fence:016x}.json"]


def test_letters_move_although_the_list_of_leftovers_is_gone(
    queue: Queue, clock: ManualClock
) -> None:
    """Such as after a restore of the tables alone."""
    queue.publish(["bad"])
    lease(queue, 1).reject()
    for one in (queue, queue.dead_letters):
        die_in_a_publish(one)
        age(one, clock, 25)
        queue.sweep()
        assert len(data_files(one)) == 1
        messages_of(one).files.delete_many(lists(one))
    restored = again(queue)
    restored.publish(["worse"])
    lease(restored, 1).reject()
    assert restored.sweep().routed == 1
    assert again(restored).redrive().messages == 2


def test_a_look_comes_once_an_hour_by_the_stores_clock(
    make: Make, clock: ManualClock, byte_store: ByteStore, limits: Limits
) -> None:
    """It lists the whole folder."""
    limits(leftover_look=HOUR)
    queue = make()
    queue.sweep()
    later = again(queue)
    seen = byte_store.paths("iterate", of=messages_of(later).files)
    later.sweep()
    assert "" not in seen
    clock.advance("25h")
    byte_store.advance(25 * HOUR)
    later.sweep()
    assert "" in seen
