"""Tables that are not of one time: nobody goes on as if they were, and a recovery loses nothing."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.byte_store import ByteStore
from support.handles import Killed, clean_messages, history, index_commits, lease, take_all, until
from support.marks import slow_but
from support.queues import Make
from support.tables import add_values, messages_of, put_back

from spark_mq import Queue, RecoveryReport
from spark_mq.errors import NotAQueue, TablesDisagree
from spark_mq.testing import ManualClock

TABLES = ("messages", "leases", "commits", "history", "dead_letters")
SUBSETS = [old for count in range(1, len(TABLES)) for old in itertools.combinations(TABLES, count)]
"""The tables put back. With all of them, each pair is seen in both directions."""


class Past:
    """A queue at two times, the later one with more of everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settled: dict[str, set[str]] = {}
        """Values that were acked, by time."""
        self.rejected: dict[str, set[str]] = {}
        queue = Queue.create(root / "queue", durable=False)
        acked, rejected = set[str](), set[str]()
        for time in ("old", "new"):
            for n in range(12):
                queue.publish([f"{time}-{n}-{k}" for k in range(3)])
                taken = lease(queue, 4 if n % 3 else 1)
                values = {m.sequence: m.value.decode() for m in taken.messages}
                bad = taken.messages[0].sequence if n % 4 == 1 else None
                if bad is not None:
                    taken.reject([bad], error="bad")
                    rejected.add(values.pop(bad))
                if n < 11:  # the last one is held
                    taken.ack(list(values))
                    acked |= set(values.values())
            queue.sweep()
            if time == "new":
                queue.redrive(limit=2)
            shutil.copytree(root / "queue", root / time)
            self.settled[time], self.rejected[time] = set(acked), set(rejected)

    def with_old(self, path: Path, tables: tuple[str, ...]) -> Path:
        """The queue as it was later, but for some tables."""
        shutil.copytree(self.root / "new", path)
        for table in tables:
            shutil.rmtree(path / table)
            shutil.copytree(self.root / "old" / table, path / table)
        return path


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("past"))


def late(path: Path | str) -> Queue:
    """A handle whose clock is past all deadlines, so that leases have expired."""
    clock = ManualClock()
    clock.advance(3600)
    return Queue.open(path, clock=clock)


def late_values(path: Path | str) -> list[str]:
    """All that such a handle leases and acks."""
    return take_all(late(path).group())


def stored(queue: Queue) -> set[str]:
    """The values in the log."""
    return {message.value.decode() for message in queue.peek(10_000)}


@pytest.mark.parametrize("old", slow_but({(name,) for name in TABLES}, SUBSETS), ids="+".join)
def test_no_message_is_lost_whichever_tables_are_put_back(
    past: Past, tmp_path: Path, old: tuple[str, ...]
) -> None:
    path = past.with_old(tmp_path / "queue", old)
    queue = late(path)
    expected = queue.recover(dry_run=True)
    assert queue.recover(dry_run=True) == expected, "a dry run changes nothing"
    files = set(DeltaTable(path / "commits").file_uris())
    assert late(path).recover() == expected
    assert files & set(DeltaTable(path / "commits").file_uris()), "those that lose no rows stay"
    assert not late(path).recover(dry_run=True).needed
    is_ahead = "messages" in old and "leases" not in old
    assert (expected.forgotten, expected.unread) == ((45, 9) if is_ahead else (0, 0))
    assert expected.commits == (12 if "messages" in old and "commits" not in old else 0)
    assert expected.history == (27 if "leases" in old and "history" not in old else 0)

    queue = late(path)
    time = "old" if "leases" in old else "new"
    there, done = stored(queue), past.settled[time] | past.rejected[time]
    added = {f"after-{n}" for n in range(30)}
    sequences = [queue.publish([value]).sequences[0] for value in sorted(added)]
    got = set(take_all(queue.group()))
    assert added <= got, "no new message takes the place of one that was settled"
    assert there - done <= got, "what was not settled is delivered"
    for sequence in sequences[:3]:
        events = [e.event for e in queue.trace(sequence).events]
        assert events == ["leased", "acked"], "not what happened to a message that is gone"
    ended = queue.finished(first=sequences[0])["sequence"].to_pylist()
    assert sorted(ended) == sequences
    queue.sweep()
    assert past.rejected[time] & there <= stored(queue.dead_letters) | got
    assert queue.group().stats().ready == queue.group().stats().dead == 0
    assert late(path).recover(dry_run=True) == RecoveryReport()


@pytest.mark.parametrize("old", [("messages",), ("messages", "commits")], ids="+".join)
def test_a_log_that_went_back_is_refused_by_all_that_would_lose_messages(
    past: Past, tmp_path: Path, old: tuple[str, ...]
) -> None:
    path = past.with_old(tmp_path / "queue", old)
    for use in (
        lambda queue: queue.publish(["x"]),
        lambda queue: queue.publish(["x"], producer_id="p", producer_sequence=1),
        lambda queue: queue.group().lease("w"),
        lambda queue: queue.group("another").lease("w"),
        lambda queue: queue.group().stats(),
        lambda queue: queue.stats(),
        lambda queue: queue.sweep(),
        lambda queue: queue.group().seek("latest"),
        lambda queue: queue.trace(0),
    ):
        before = content(path)
        with pytest.raises(TablesDisagree, match=r"Queue\.recover"):
            use(late(path))
        assert content(path) == before, "nothing was written"
    with pytest.raises(TablesDisagree), late(path).publisher() as publisher:
        publisher.publish("x").result()


def test_a_sweep_changes_no_dead_letter_queue_whose_tables_disagree(delta_queue: Make) -> None:
    queue = delta_queue()

    def route_redrive_and_ack_a_letter() -> None:
        queue.publish("x")
        lease(queue).reject()
        queue.sweep()
        queue.redrive()
        lease(queue.dead_letters).ack()

    route_redrive_and_ack_a_letter()
    with put_back(queue.dead_letters, "messages", "commits"):
        route_redrive_and_ack_a_letter()
    before = content(Path(queue.dead_letters.path))
    with pytest.raises(TablesDisagree, match=r"Queue\.recover"):
        late(queue.path).sweep()
    assert content(Path(queue.dead_letters.path)) == before, "nothing was written"
    recovered = RecoveryReport(dead_letters=2, dead_letter_queue={"forgotten": 2})
    assert late(queue.path).recover() == recovered
    assert RecoveryReport(dead_letter_queue={"forgotten": 2}).needed


def content(path: Path) -> list[Path]:
    """The files of a queue's tables."""
    return sorted(found for table in TABLES for found in (path / table).rglob("*"))


@pytest.mark.parametrize(
    ("old", "grown", "counts"),
    [(("messages",), 1, (45, 10, 12)), (("messages", "commits"), 30, (45, 21, 0))],
)
def test_a_log_that_went_back_and_grew_again_is_refused(
    past: Past, tmp_path: Path, old: tuple[str, ...], grown: int, counts: tuple[int, ...]
) -> None:
    """Any Delta writer may append to it, and none of them knows leases/."""
    path = past.with_old(tmp_path / "queue", old)
    foreign = late(path)
    messages_of(foreign).expect(lambda look: -1)
    again = [f"again-{n}" for n in range(grown)]
    for value in again:
        foreign.publish([value])
    before = content(path)
    for use in (
        lambda queue: queue.group().lease("w"),
        lambda queue: queue.stats(),
        lambda queue: queue.sweep(),
    ):
        with pytest.raises(TablesDisagree):
            use(late(path))
    assert content(path) == before
    report = late(path).recover()
    assert (report.forgotten, report.unread, report.commits) == counts
    assert set(again) <= set(late_values(path))


@pytest.mark.parametrize(
    ("old", "skipped", "versions"), [(["leases"], 0, 8), (["leases", "commits"], 3, 9)]
)
def test_a_ledger_of_before_a_trim_delivers_no_message_without_its_payload(
    delta_queue: Make, clock: ManualClock, old: list[str], skipped: int, versions: int
) -> None:
    """If commits/ has forgotten what the trim dropped, it is not counted."""
    queue = delta_queue(retention=0)
    for n in range(5):
        queue.publish([str(n)])
    taken = lease(queue)
    taken.ack([taken.messages[4].sequence])
    taken.release()
    with put_back(queue, *old):
        lease(queue, 3).ack()
        clock.advance(1)
        assert queue.sweep().trimmed_files == 3
    with pytest.raises(TablesDisagree, match="trimmed"):
        late(queue.path).group().lease("w")
    with pytest.raises(TablesDisagree, match="history/ has commits of leases/"):
        late(queue.path).finished()
    restored = late(queue.path)
    assert restored.recover(dry_run=True).skipped == restored.recover().skipped == skipped
    notes = str(DeltaTable(Path(queue.path, "leases")).history())
    assert f'"operation": "recover", "messages": {skipped}}}' in notes
    assert not restored.recover().needed
    assert late_values(queue.path) == ["3"]
    assert history(restored)["version"].to_pylist() == [*range(1, versions)]
    assert late(queue.path).sweep().routed == 0


def test_a_ledger_that_went_back_and_grew_again_has_another_history(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish("a")
    queue.group().ensure()
    with put_back(queue, "leases"):
        lease(queue)
        queue.sweep()
    lease(late(queue.path)).release()
    with pytest.raises(TablesDisagree, match="commits of leases/ after version 1 that it lacks"):
        late(queue.path).sweep()


def test_a_log_of_before_a_trim_keeps_what_commits_has_forgotten(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = delta_queue(retention=0)
    queue.publish("a")
    with put_back(queue, "messages", "leases"):
        queue.publish("b")
        DeltaTable(messages_of(queue).path).optimize.compact()
        for value in "cd":
            lease(queue, 1).ack()
            clock.advance(1)
            queue.sweep()
            queue.publish(value)
            assert not late(queue.path).recover(dry_run=True).needed
    assert late(queue.path).recover() == RecoveryReport(commits=5, history=7)
    assert not late(queue.path).recover(dry_run=True).needed
    assert late_values(queue.path) == ["a"]


def test_a_lost_dead_letter_of_the_last_message_comes_back(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish("bad")
    with put_back(queue, "messages", "commits", "dead_letters"):
        lease(queue).reject()
        queue.sweep()
        letters = queue.list_dead_letters()
        queue.publish("gone")
        lease(queue).ack()
    assert late(queue.path).recover().dead_letters == 1
    assert late(queue.path).list_dead_letters().to_pylist() == letters.to_pylist()
    shutil.rmtree(Path(queue.dead_letters.path, "leases"))
    with pytest.raises(NotAQueue, match=r"leases/ .* missing"):
        late(queue.path).list_dead_letters()
    assert late(queue.path).sweep().routed == 0, "which makes them again"


def test_commits_of_before_a_cleaning_lose_no_message(
    delta_queue: Make, byte_store: ByteStore
) -> None:
    """Nobody knows the sequences of what lies between, so it is published again, in order."""
    queue = delta_queue()
    queue.publish("a")
    index_commits(queue)
    with put_back(queue, "commits"):
        add_values(queue, b"foreign")
        for n in range(20):
            byte_store.advance(n)
            queue.publish([f"b{n}"])
        DeltaTable(messages_of(queue).path).create_checkpoint()  # which names the last file first
        queue.publish("b20")
        lease(queue, 3)  # the last before the cleaned ones, and the first of them
        lease(queue, 19).ack()  # up to the first of those that the log still has
        index_commits(queue)
        assert clean_messages(queue, 1) > 20, "all before the checkpoint"
    report = late(queue.path).recover(dry_run=True)
    assert report == RecoveryReport(forgotten=20, republished=20)
    assert late(queue.path).recover() == report
    assert not late(queue.path).recover(dry_run=True).needed
    assert late_values(queue.path) == ["a", "b20", "foreign", *(f"b{n}" for n in range(19))]
    assert late(queue.path).sweep().routed == 0


def test_a_recovery_that_was_killed_is_completed_by_the_next(
    past: Past, tmp_path: Path, byte_store: ByteStore
) -> None:
    tables = ("messages", "history")
    for at in itertools.count(1):
        path = past.with_old(tmp_path / f"queue-{at}", tables)
        byte_store.inject("create", fail=Killed(), at=at)
        try:
            late(path).recover()
            break
        except Killed:
            byte_store.clear()
        late(path).recover()
        late(path).publish(["last"])
        assert "last" in late_values(path)
        assert not late(path).recover(dry_run=True).needed
    assert at > 2


# -- leases/ alone is gone


def test_a_queue_without_its_leases_starts_above_what_was_trimmed(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = delta_queue(retention=0)
    for n in range(4):
        queue.publish([str(n)])
    lease(queue, 3).ack()
    clock.advance(1)
    assert queue.sweep().trimmed_files == 3
    horizon = queue.horizon()
    shutil.rmtree(Path(queue.path, "leases"))
    with pytest.raises(NotAQueue, match=r"leases/ .* missing. Restore it from a backup"):
        late(queue.path)
    made = delta_queue(retention=0)
    assert made.horizon() == horizon
    assert take_all(made.group()) == ["3"]
    made.group("second").seek("earliest")
    assert made.group("second").stats().ready == 1
    assert made.sweep().routed == 0
    assert not made.recover(dry_run=True).skipped


# -- a backup while the queue is in use

COPIED = ("leases/_delta_log", "leases", "messages/_delta_log", "messages")
"""The order of docs/howto/backup.md. It has no other tables yet."""
IGNORED = shutil.ignore_patterns("_delta_log", ".spark_mq-*")


def test_a_backup_in_order_under_load_loses_nothing(tmp_path: Path) -> None:
    """What was published before the copy is delivered."""
    queue = Queue.create(tmp_path / "queue", durable=False)
    own = Queue.open(tmp_path / "queue").group().ensure()
    published, stop, copies = list[str](), threading.Event(), 4

    def publish() -> None:
        while not stop.is_set():
            value = str(len(published))
            Queue.open(tmp_path / "queue").publish([value])
            published.append(value)

    def work() -> None:
        while not stop.is_set():
            taken = own.lease("w", max_messages=3)
            if taken is not None:
                taken.ack()

    # One worker, which acks in order, so that their number names the settled messages.
    threads = [threading.Thread(target=target) for target in (publish, work)]
    before = list[int]()
    try:
        for thread in threads:
            thread.start()
        for n in range(copies):
            before.append(len(published))
            for part in COPIED:
                goal = len(published) + 2
                until(lambda goal=goal: len(published) >= goal)  # type: ignore[misc]
                source, target = tmp_path / "queue" / part, tmp_path / f"copy-{n}" / part
                shutil.copytree(source, target, ignore=IGNORED, dirs_exist_ok=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert queue.group().stats().dead == 0
    for n, count in enumerate(before):
        copied = late(tmp_path / f"copy-{n}")
        assert not copied.recover(dry_run=True).needed
        settled = copied.group().stats().acked
        got = take_all(copied.group())
        assert len(set(got)) == len(got)
        assert set(published[settled:count]) <= set(got)
        assert copied.group().stats().dead == 0
