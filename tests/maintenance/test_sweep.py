"""The chores: routing to the dead letters, trimming, housekeeping.

What kills and rivals of the chores do to the queue is in test_chores. Here are their rules.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.byte_store import VERBS, ByteStore, Call, Injected
from support.handles import (
    Killed,
    again,
    archive,
    die,
    history,
    housekeep,
    lease,
    notes,
    on_commit,
    trim,
    trimmable,
)
from support.having import having
from support.limits import Limits, keeping
from support.marks import slow_but
from support.queues import Make
from support.tables import (
    add_values,
    checkpoint,
    context_of,
    fresh_log,
    group_ledger_of,
    last_checkpoint,
    ledgers_of,
    messages_of,
    removes_of,
)

from spark_mq import Message, Queue, SweepReport
from spark_mq.testing import ManualClock


def dead_values(queue: Queue) -> list[bytes | None]:
    """What lies in the dead letters, in order."""
    taken = queue.dead_letters.group("look", start="earliest").lease("w", max_messages=1000)
    return [] if taken is None else [m.value for m in taken.messages]


def with_dead(queue: Queue, count: int = 3) -> Queue:
    queue.publish([str(n) for n in range(count)])
    lease(queue, count).reject()
    return queue


# -- routing


def test_dead_letters_tell_what_they_were_and_why(make: Make, clock: ManualClock) -> None:
    queue = make(max_delivery_attempts=2)
    headers = {"own": "1", "spark_mq.reason": "forged", "spark_mq.redriven_from": "7"}
    message = Message(b"\x00payload", key="k", headers=headers, message_id="id-1", expires_at="1h")
    receipt = queue.publish([message, "other"])
    started = clock()
    first = lease(queue)
    first.ack([receipt.sequences[1]])
    first.nack([receipt.sequences[0]], delay=0, error="boom 1")
    clock.advance("5s")
    lease(queue).nack(delay=0, error="boom 2")
    assert queue.sweep().routed == 1
    (dead,) = lease(queue.dead_letters).messages
    assert dead == having(message_id="id-1", key="k", value=b"\x00payload", published_at=started)
    assert dead.expires_at is None
    assert dead.headers == {
        "own": "1",
        "spark_mq.queue_id": queue.settings.queue_id,
        "spark_mq.queue": queue.path,
        "spark_mq.group": "default",
        "spark_mq.delivery_count": "2",
        "spark_mq.failure_count": "2",
        "spark_mq.reason": "max_delivery_attempts",
        "spark_mq.error": "boom 2",
        "spark_mq.first_leased_at": started.isoformat(),
        "spark_mq.last_leased_at": (started + timedelta(seconds=5)).isoformat(),
        "spark_mq.sequence": str(receipt.sequences[0]),
    }
    stats = queue.group().stats()
    assert stats == having(dead_lettered=1, start_sequence=stats.latest_sequence)


def test_a_letter_of_a_lowered_limit_has_its_last_delivery(
    queue: Queue, clock: ManualClock
) -> None:
    group = queue.group()
    queue.publish(["a"])
    lease(queue).nack(delay=0, error="boom 1")
    clock.advance("5s")
    lease(queue).nack(delay=0, error="boom 2")
    leased = clock()
    clock.advance("1h")
    group.configure(max_delivery_attempts=2)
    assert queue.sweep().routed == 1
    (letter,) = queue.list_dead_letters().to_pylist()
    assert (letter["reason"], letter["last_leased_at"]) == ("max_delivery_attempts", leased)
    (failure,) = queue.failures()
    assert failure.last_at == leased


def test_routing_nothing_makes_no_commit(queue: Queue) -> None:
    queue.publish("a")
    lease(queue)
    revision = group_ledger_of(queue.group()).current().head.revision
    for _ in range(2):
        assert replace(queue.sweep(), indexed_commits=0, archived_commits=0) == SweepReport()
    assert group_ledger_of(queue.group()).current().head.revision == revision


def test_many_dead_messages_are_routed_in_rounds(queue: Queue, limits: Limits) -> None:
    limits(route_ranges=3, route_messages=4)
    receipt = queue.publish([str(n) for n in range(12)])
    dead = 0, 1, 2, 4, 5, 7, 9, 11
    lease(queue, 12).reject([receipt.sequences[n] for n in dead])
    assert queue.sweep().routed == 8
    rounds = [note["messages"] for note in notes(queue) if note["operation"] == "freeze dead"]
    assert rounds == [4, 3, 1]
    assert dead_values(queue) == [str(n).encode() for n in dead]


def test_unreadable_messages_arrive_all_the_same(queue: Queue, limits: Limits) -> None:
    limits(route_ranges=1)
    receipts = [queue.publish([value] * 2) for value in ("bad", "good", "gone")]
    lease(queue, 4).reject(error="no")
    lease(queue).reject(error="never")
    bad, _, gone = (file.path for file in messages_of(queue).index().files)
    messages_of(queue).files.delete(bad)
    messages_of(queue).files.write(bad, b"garbage")
    messages_of(queue).files.delete(gone)
    assert queue.sweep().routed == 6
    found = lease(queue.dead_letters).messages
    assert [m.value for m in found] == [None, None, b"good", b"good", None, None]
    assert [m.headers["spark_mq.error"] for m in found] == ["no"] * 4 + ["never"] * 2
    sequences = [str(sequence) for receipt in receipts for sequence in receipt.sequences]
    assert [m.headers["spark_mq.sequence"] for m in found] == sequences
    for n in (1, 5):
        assert found[n].message_id == sequences[n]
    assert "not readable" in found[0].headers["spark_mq.payload"]
    assert "missing" in found[5].headers["spark_mq.payload"]
    assert "spark_mq.payload" not in found[2].headers


@pytest.mark.parametrize("sweeper", ["queue", "dead letters"])
def test_a_dead_message_of_the_dead_letter_queue_is_dropped_and_never_copied(
    make: Make, sweeper: str
) -> None:
    """A reader of the dead letters rejects one, and rejects all that follows."""
    queue = with_dead(make(), 2)
    queue.sweep()
    letters = queue.dead_letters
    swept = queue if sweeper == "queue" else letters
    group = letters.group("fixer")
    lease(letters, 1, group="fixer").reject(error="not mine")
    for _ in range(5):
        assert swept.sweep().routed == 0
        if (more := group.lease("w", max_messages=1)) is not None:
            more.reject(error="not mine")
    assert letters.stats()["published"] == 2
    assert group.stats() == having(dropped=2, dead=0, transferring=0)
    finished = letters.finished("fixer").select(["outcome", "error"]).to_pylist()
    assert finished == [{"outcome": "dropped", "error": "not mine"}] * 2
    assert dead_values(queue) == [b"0", b"1"], "other groups still read them"
    assert queue.redrive().messages == 2
    swept.sweep()
    assert letters.stats()["published"] == 2


def test_a_sweep_expires_the_leases_of_each_group(queue: Queue, clock: ManualClock) -> None:
    for each in (queue, queue.dead_letters):
        each.publish(["a", "b"])
        lease(each, group="one")
        lease(each, 1, group="two")
    clock.advance("1h")
    assert [queue.sweep().expired for _ in range(2)] == [3, 0]
    assert [note["operation"] for note in notes(queue.dead_letters)[-2:]] == ["expire"] * 2


# -- trim


def files_on_disk(queue: Queue) -> int:
    return len(messages_of(queue).files.list(""))


def test_a_queue_without_groups_has_settled_nothing(make: Make, clock: ManualClock) -> None:
    queue = make(retention=0)
    queue.publish("a")
    clock.advance("1000d")
    assert trim(queue) == 0
    assert [m.value for m in lease(queue).messages] == [b"a"]


def test_dead_and_waiting_messages_hold_the_trim(make: Make, clock: ManualClock) -> None:
    queue = make(retention=0)
    queue.publish("a")
    lease(queue).reject()
    clock.advance("1m")
    assert trim(queue) == 0
    assert queue.sweep().routed == 1
    assert trim(queue) in (0, 1)  # the sweep that routed it has trimmed it
    assert queue.horizon() == queue.stats()["latest_sequence"]
    assert dead_values(queue) == [b"a"]


def test_a_file_goes_when_its_last_message_may(make: Make, clock: ManualClock) -> None:
    queue = make(retention=0)
    queue.publish(["a", "b"])
    first = lease(queue, 1)
    first.ack()
    clock.advance("1m")
    assert trim(queue) == 0
    assert queue.horizon() == first.messages[0].sequence
    lease(queue).ack()
    assert trim(queue) == 1


def test_a_trim_killed_after_its_first_delete_and_repeated_leaves_nothing(
    delta_queue: Make, clock: ManualClock, byte_store: ByteStore
) -> None:
    queue = trimmable(delta_queue, clock)
    add_values(queue, b"foreign", folder="x/")
    lease(queue).ack()
    byte_store.inject("delete", of=messages_of(queue).files, after=die)
    with pytest.raises(Killed):
        trim(queue)
    byte_store.clear()
    assert DeltaTable(messages_of(queue).path).to_pyarrow_table().num_rows == 0
    survivor = again(queue)
    assert trim(survivor) == 0
    assert files_on_disk(survivor) == len(messages_of(survivor).files.list("x")) == 0


def test_after_a_trim_messages_is_an_ordinary_append_only_table(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = trimmable(delta_queue, clock)
    trim(queue)
    for value in "de":
        queue.publish(value)
    DeltaTable(messages_of(queue).path).optimize.compact()
    assert trim(again(queue)) == 0
    table = DeltaTable(messages_of(queue).path)
    assert sorted(table.to_pyarrow_table()["value"].to_pylist()) == [b"d", b"e"]
    assert [remove["dataChange"] for remove in removes_of(queue, "messages")] == [False] * 5
    with pytest.raises(Exception, match=r"(?i)append"):
        table.delete()


def test_a_compacted_file_is_trimmed_as_its_newest_source(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = delta_queue(retention=0)
    for value in "abc":
        queue.publish(value)
        DeltaTable(messages_of(queue).path).optimize.compact()
    clock.advance("1m")
    lease(queue, 2).ack()
    assert trim(queue) == 0  # the sources are out of the table already
    assert files_on_disk(queue) == 2  # that of c, and the compacted one
    assert [m.value for m in lease(queue).messages] == [b"c"]
    queue.group().seek("latest")
    assert trim(again(queue)) == 1
    assert files_on_disk(queue) == 0


# -- housekeeping


def cycle(queue: Queue, times: int, group: str = "default") -> None:
    for _ in range(times):
        lease(queue, 1, group).release()


def clean(queue: Queue, keep_versions: int, keep_seconds: float | None) -> int:
    """Clean the ledgers' table alone. All of it may go, archived or not."""
    with keeping(keep_versions, keep_seconds):
        return ledgers_of(queue).clean(2**62)


def loadable(queue: Queue) -> list[int]:
    """The versions of the ledger that can be read, data and all."""
    path, found = ledgers_of(queue).path, []
    for version in range(DeltaTable(path).version() + 1):
        try:
            assert DeltaTable(path, version=version).to_pyarrow_table().num_rows >= 0
            found.append(version)
        except Exception:
            continue
    return found


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("at", slow_but(range(1, 86, 6), range(1, 86, 2)))
def test_a_sweeper_stops_at_any_call_and_another_one_cleans_all_that_it_has_seen(
    delta_queue: Make, byte_store: ByteStore, at: int, dies: bool
) -> None:
    """It was frozen for longer than logs are kept, or it died; the queue went on."""
    queue = delta_queue()
    queue.publish("a")
    for _ in range(2):
        cycle(queue, 4)
        checkpoint(ledgers_of(queue))
    cycle(queue, 2)
    make_old(*files_of(queue, "leases"))
    one, two = again(queue), again(queue)
    seen = ledgers_of(queue).version()

    def meanwhile() -> None:
        byte_store.clear()
        cycle(queue, 3)
        clean(two, 0, 0)
        if dies:
            die()

    stop = Injected(Call.run, before=meanwhile, at=at)
    byte_store.on(*VERBS, act=stop, of=ledgers_of(one).files)
    with contextlib.suppress(Killed):
        clean(one, 2, 0)
    assert stop.calls == at
    assert clean(again(queue), 2, 0) == 0
    assert min(loadable(queue)) == seen + 6
    assert again(queue).group().stats().ready == 1
    assert lease(queue).ack().settled == 1


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize(
    ("step", "at"),
    [("exists", 1), ("exists", 2), ("open", 1), ("read", 1), ("read", 2), ("read", 3)],
)
def test_a_log_cleaned_while_it_is_opened_is_opened_again(
    delta_queue: Make, byte_store: ByteStore, has_checkpoint: bool, step: str, at: int
) -> None:
    """The checkpoint that its hint names goes, if it has one, and all commits after it."""
    queue = delta_queue()
    queue.publish("a")
    cycle(queue, 2)
    if has_checkpoint:
        checkpoint(ledgers_of(queue))
    cycle(queue, 3)

    def meanwhile() -> None:
        byte_store.clear()
        cycle(queue, 3)
        clean(queue, 0, 0)

    injected = byte_store.inject(step, of="leases", before=meanwhile, at=at)
    assert fresh_log(queue, "leases").refresh().version == ledgers_of(queue).version()
    assert injected.calls >= (step != "open" or has_checkpoint)
    assert lease(queue).ack().settled == 1


def make_old(*paths: Path) -> None:
    """Let the files seem two hours old, as those of a clock that stepped back do."""
    then = time.time() - 7_200
    for path in paths:
        os.utime(path, (then, then))


def files_of(queue: Queue, table: str) -> set[Path]:
    """The data files of a table that are on the disk."""
    paths = Path(queue.path, table).rglob("*.parquet")
    return {path for path in paths if "_delta_log" not in path.parts}


def test_a_ledger_that_lands_while_a_sweep_lists_stays_whatever_its_time(
    delta_queue: Make, byte_store: ByteStore, limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only their files have
    queue = delta_queue()
    queue.publish([str(n) for n in range(10)])
    cycle(queue, 5)
    checkpoint(ledgers_of(queue))
    cycle(queue, 5)
    make_old(*files_of(queue, "leases"))
    sweeper = again(queue)

    def land() -> None:
        before = files_of(queue, "leases")
        lease(queue, 1)
        make_old(*files_of(queue, "leases") - before)

    listing = byte_store.inject("iterate_all", of=ledgers_of(sweeper).files, before=land)
    for _ in range(3):
        clean(sweeper, keep_versions=0, keep_seconds=0)
    assert listing.calls > 0
    assert again(queue).group().stats().leased == 1
    assert lease(queue, 9).ack().settled == 9


@pytest.mark.parametrize("table", ["leases", "commits", "history"])
def test_what_a_sweep_took_for_an_orphan_is_never_committed(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch, limits: Limits, table: str
) -> None:
    """Its writer froze before its commit. It wakes up after the file is gone."""
    limits(archive_versions=0, archive_seconds=0.0)
    queue = delta_queue()
    queue.publish([str(n) for n in range(10)])
    cycle(queue, 5)
    housekeep(queue, keep_versions=0, keep_seconds=0)
    messages_of(queue).index_commits()
    checkpoint(messages_of(queue).commits)
    cycle(queue, 3)
    queue.publish(["last"])
    write = {
        "leases": lambda: lease(queue, 1),
        "commits": messages_of(queue).index_commits,
        "history": lambda: archive(queue),
    }[table]
    before, other = files_of(queue, table), again(queue)
    gone = []

    def freeze() -> None:
        (mine,) = files_of(queue, table) - before
        make_old(mine)
        housekeep(other, keep_versions=0, keep_seconds=0)
        gone.append(not mine.exists())

    with monkeypatch.context() as patch:
        on_commit(patch, table, before=freeze)
        write()
    assert gone == [True]
    fresh = again(queue)
    assert fresh.group().stats().leased == (table == "leases")
    assert history(fresh).num_rows > 0
    assert fresh.sweep() is not None
    found = DeltaTable(f"{queue.path}/{table}").file_uris()
    assert found
    assert all(Path(uri.removeprefix("file://")).exists() for uri in found)


def test_what_a_restore_brought_back_is_not_deleted(delta_queue: Make, limits: Limits) -> None:
    """Nobody should restore the ledger.

    But if somebody does, cleaning must not take it away under them.
    """
    limits(tag_bytes=0)  # as of large ledgers, which only their files have
    queue = delta_queue()
    queue.publish(["a", "b"])
    lease(queue, 1)
    then = DeltaTable(ledgers_of(queue).path).version()
    cycle(queue, 3)
    DeltaTable(ledgers_of(queue).path).restore(then)
    make_old(*files_of(queue, "leases"))
    checkpoint(ledgers_of(queue))
    housekeep(queue, keep_versions=0, keep_seconds=0)
    assert again(queue).group().stats().leased == 1


def test_a_sweep_of_an_empty_queue_does_nothing(queue: Queue) -> None:
    assert queue.sweep() == SweepReport()
    assert context_of(queue).history.open() is None
    assert str(SweepReport(1, 2, 3, 4, 5, 6, 7, 8, (*"abcdef",))) == (
        "expired: 1, routed: 2, trimmed files: 3, cleaned files: 4, indexed commits: 5, archived "
        "commits: 6, scheduled: 7, completed batches: 8, trim blocked by: a, b, c, d, e and 1 more"
    )


def test_a_sweep_keeps_the_dead_letter_queues_tables_small_too(delta_queue: Make) -> None:
    queue = with_dead(delta_queue())
    queue.sweep()
    for _ in range(30):
        lease(queue.dead_letters).release()
    leases = ledgers_of(queue.dead_letters)
    for _ in range(2):
        queue.sweep()
    assert Path(queue.dead_letters.path, "history", "_delta_log").exists()
    assert Path(queue.dead_letters.path, "commits", "_delta_log").exists()
    assert any(".checkpoint." in name for name in os.listdir(Path(leases.path, "_delta_log")))


def test_a_sweep_writes_a_checkpoint_only_after_enough_commits(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish([str(n) for n in range(30)])
    cycle(queue, 3)
    ledgers = ledgers_of(queue)
    queue.sweep()
    assert last_checkpoint(ledgers) == -1, "few commits are read as fast as a checkpoint"
    cycle(queue, 10)
    queue.sweep()
    written = last_checkpoint(ledgers)
    assert written >= 16
    queue.sweep()
    assert last_checkpoint(ledgers) == written


def test_a_sweep_takes_no_lease_of_new_messages_for_a_restored_table(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published and leased between the sweep's looks at messages/ and at leases/."""
    queue = delta_queue()
    queue.publish("old")
    lease(queue)
    context = context_of(again(queue))

    def late() -> None:
        queue.publish("new")
        lease(queue)

    monkeypatch.setattr(context, "groups", Injected(context.groups, before=late))
    context.check_tables()
