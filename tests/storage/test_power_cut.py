"""Power cuts: nothing that was reported is gone, wherever the power fails, and the queue works
on.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.byte_store import DISK, ByteStore, Call
from support.handles import end_checkpoints, index_commits, take
from support.limits import Limits
from support.power_cut import Effects, disk_after, left_after
from support.tables import messages_of

from spark_mq import Message, Queue, errors


@dataclass
class Run:
    """A run of a queue on a recorded disk, and what it reported after how many effects."""

    root: Path
    effects: Effects = field(default_factory=Effects)
    reported: list[tuple[int, str, str, int]] = field(default_factory=list)

    def report(self, kind: str, *values: str, number: int = 0) -> None:
        self.reported += [(len(self.effects.done), kind, value, number) for value in values]

    def known(self, count: int, kind: str) -> dict[str, int]:
        return {
            value: number
            for at, what, value, number in self.reported
            if what == kind and at <= count
        }


@contextmanager
def recorded(run: Run) -> Iterator[ByteStore]:
    with pytest.MonkeyPatch.context() as patch:
        disk = ByteStore(patch)
        disk.on(*DISK, act=run.effects.record)
        try:
            yield disk
        finally:
            end_checkpoints()


def story(run: Run) -> None:
    """Create, publish, lease, settle each way, sweep with routing, redrive, and sweep again."""
    queue = Queue.create(run.root / "q", retry_delay=0, retention=0)
    run.report("created", "queue")
    queue.publish(["a", "b", "c", "d"])
    run.report("published", "a", "b", "c", "d")
    group = queue.group()
    lease = group.lease("w", max_messages=4)
    for message in lease.messages:
        run.report("counted", message.text, number=message.delivery_count)
    sequences = {message.text: message.sequence for message in lease.messages}
    run.report("settling", "a")
    lease.ack([sequences["a"]])
    run.report("acked", "a")
    lease.nack([sequences["b"]], delay=0, error="later")
    run.report("dying", "c")
    lease.reject([sequences["c"]], error="no")
    run.report("rejected", "c")
    lease.extend("2m")
    queue.publish(["e"], producer_id="p", producer_sequence=1)
    run.report("published", "e")
    run.report("numbered", "p")
    queue.sweep()
    run.report("redriving", "c")
    queue.redrive()
    second = group.lease("w", max_messages=10)
    rest = [message.text for message in second.messages]
    run.report("settling", *rest)
    second.ack()
    run.report("acked", *rest)
    queue.sweep()
    queue.publish(["f"])
    run.report("published", "f")


def check(run: Run, count: int, root: Path) -> None:
    """Everything that was reported before the cut is there, and the queue works."""
    path = root / "q"
    if not run.known(count, "created"):
        queue = Queue.create(path, retry_delay=0, retention=0, exist_ok=True)
    queue = Queue.open(path, clock=lambda: datetime.now(UTC) + timedelta(days=1))
    if run.known(count, "numbered"):
        assert queue.last_producer_sequence("p") == 1
    delivered: dict[str, int] = {}
    while (lease := queue.group().lease("after", max_messages=100)) is not None:
        for message in lease.messages:
            assert message.text not in delivered, f"{message.text} came twice"
            delivered[message.text] = message.delivery_count
        lease.ack()
    acked, settling = run.known(count, "acked"), run.known(count, "settling")
    dying = run.known(count, "dying")
    dead = _dead(queue) if dying else set()
    for value in run.known(count, "published"):
        assert value in delivered or value in dead or value in settling, f"{value} is lost"
    redriving = run.known(count, "redriving")
    for value in acked:
        assert value not in delivered, f"{value} was acked and came again"
    for value in run.known(count, "rejected"):
        assert value in dead or value in redriving, f"{value} was rejected and is not dead"
    for value in dead:
        assert value in dying, f"{value} is dead"
    for value, number in run.known(count, "counted").items():
        if value in delivered and value not in redriving:
            assert delivered[value] > number, f"the delivery of {value} was not counted"
    queue.publish(["new"])
    assert take(queue.group(), 1) == ["new"]
    queue.sweep()
    for ledgers in (path / "leases", path / "dead_letters" / "leases"):
        if ledgers.exists():
            DeltaTable(str(ledgers)).to_pyarrow_table()  # SQL finds every file again


def _dead(queue: Queue) -> set[str]:
    queue.sweep()
    return set(take(queue.dead_letters.group("looker")))


def cuts(run: Run, keeps_names: bool) -> Iterator[int]:
    """The numbers of effects after which a cut leaves something new."""
    last: object = None
    for count in range(len(run.effects.done) + 1):
        left = left_after(run.effects, count, keeps_names=keeps_names)
        reported = sum(at <= count for at, *_ in run.reported)
        if (left, reported) != last:
            yield count
        last = (left, reported)


def every_cut(run: Run, *, keeps_names: bool, step: int = 1) -> int:
    """Check the disk after each cut, or each step-th one. Return how many cuts there are."""
    counts = list(cuts(run, keeps_names))
    for count in counts[::step]:
        shutil.rmtree(run.root)
        disk_after(run.effects, count, run.root, run.root, keeps_names=keeps_names)
        try:
            check(run, count, run.root)
        except Exception as error:
            raise AssertionError(
                f"a cut after {count} effects, {run.effects.done[max(0, count - 1)]}: {error!r}"
            ) from error
    return len(counts)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "disk")
    made.root.mkdir()
    return made


@pytest.mark.parametrize(
    "step",
    [pytest.param(29, id="some cuts"), pytest.param(1, id="every cut", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("keeps_names", [False, True], ids=["names-are-lost", "contents-are-lost"])
def test_no_power_cut_loses_what_was_reported(run: Run, keeps_names: bool, step: int) -> None:
    with recorded(run):
        story(run)
    assert every_cut(run, keeps_names=keeps_names, step=step) > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skipped", "keeps_names"),
    [
        ("sync_file:log", True),
        ("sync_file:data", True),
        ("sync_folder:log", False),
        ("sync_folder:data", False),
    ],
)
def test_each_kind_of_sync_is_needed(run: Run, skipped: str, keeps_names: bool) -> None:
    run.effects.skip_sync = skipped
    with recorded(run):
        story(run)
    with pytest.raises(AssertionError, match="a cut after"):
        every_cut(run, keeps_names=keeps_names)


def left_of(run: Run, *, keeps_names: bool = False) -> Queue:
    """Cut the power now, and open what is left of the queue."""
    shutil.rmtree(run.root)
    disk_after(run.effects, len(run.effects.done), run.root, run.root, keeps_names=keeps_names)
    return Queue.open(run.root / "q")


@pytest.mark.parametrize(("durable", "syncs"), [(False, 0), (True, 18)])
def test_only_a_durable_queue_syncs_and_once(run: Run, durable: bool, syncs: int) -> None:
    with recorded(run):
        queue = Queue.create(run.root / "q", durable=durable, dedup_window="1h")
        before = len([e for e in run.effects.done if e.verb.startswith("sync")])
        opened = Queue.open(run.root / "q")
        opened.publish(Message("a", dedup_id="1"))
        opened.group().lease("w").ack()
    assert queue.settings.durable is durable
    assert any("/part-" in e.path for e in run.effects.done if e.verb == "sync_file") == durable
    assert len([e for e in run.effects.done if e.verb.startswith("sync")]) == before + syncs


@pytest.mark.parametrize("keeps_names", [False, True], ids=["names-are-lost", "contents-are-lost"])
def test_a_ledger_whose_file_the_power_cut_took_is_in_the_log(run: Run, keeps_names: bool) -> None:
    with recorded(run):
        queue = Queue.create(run.root / "q")
        queue.publish(["a", "b", "c"])
        queue.group().lease("w", max_messages=2)
    left = left_of(run, keeps_names=keeps_names)
    table = str(run.root / "q" / "leases")
    with pytest.raises(Exception):  # noqa: B017, PT011 -- delta-rs has several for it
        DeltaTable(table).to_pyarrow_table()
    stats = left.group().stats()
    assert (stats.leased, stats.unread) == (2, 1)
    left.sweep()
    rows = DeltaTable(table).to_pyarrow_table()
    assert "leased" in rows["state"].to_pylist()


def test_the_files_that_a_checkpoint_names_are_durable_before_it_is_there(
    run: Run, limits: Limits
) -> None:
    limits(checkpoint_interval=5)
    with recorded(run):
        queue = Queue.create(run.root / "q")
        queue.publish(["a", "b", "c"])
        assert queue.group("idle").lease("w", max_messages=1) is not None
        lease = queue.group().lease("w", max_messages=2)
        for _ in range(8):
            lease.extend()
            end_checkpoints()
    tables = run.root / "q" / "leases"
    seen = 0
    for count, effect in enumerate(run.effects.done, 1):
        if effect.verb == "replace" and effect.target.endswith(".checkpoint.parquet"):
            left = left_after(run.effects, count, keeps_names=False)
            named = pq.read_table(effect.target)["add"].to_pylist()
            paths = [str(tables / unquote(row["path"])) for row in named if row is not None]
            assert len(paths) == 2
            assert all(left.get(path) for path in paths)
            seen += 1
    assert seen == 2


# -- a disk that fails to sync


def fail_syncs(disk: ByteStore, folder: str, times: int) -> list[OSError]:
    """Let the next syncs of some folder fail. Return the errors to come."""
    to_come = [OSError(errno.EIO, "Input/output error", folder) for _ in range(times)]

    def sync(call: Call) -> None:
        if to_come and call.path.endswith(folder):
            raise to_come.pop()
        call.run()

    disk.on("sync_folder", act=sync)
    return to_come


def test_a_failed_sync_of_the_logs_folder_is_repeated_before_the_commit_is_reported(
    run: Run,
) -> None:
    with recorded(run) as disk:
        queue = Queue.create(run.root / "q")
        to_come = fail_syncs(disk, "messages/_delta_log", 1)
        queue.publish("a")
    assert not to_come
    assert left_of(run).stats()["published"] == 1


def test_a_commit_whose_folder_cannot_be_synced_is_not_reported_as_durable(run: Run) -> None:
    with recorded(run) as disk:
        queue = Queue.create(run.root / "q")
        fail_syncs(disk, "messages/_delta_log", 100)
        with pytest.raises(errors.StorageError, match="it is unknown if") as caught:
            queue.publish("a")
        assert [m.value for m in queue.peek()] == [b"a"], "without a power cut"
    assert caught.value.landed is None
    assert left_of(run).stats()["published"] == 0


def test_the_file_of_a_ledger_stays_if_its_commit_may_have_landed(run: Run) -> None:
    with recorded(run) as disk:
        queue = Queue.create(run.root / "q")
        fail_syncs(disk, "leases/_delta_log", 100)
        with pytest.raises(errors.StorageError, match="it is unknown if"):
            queue.group().ensure()
        table = DeltaTable(str(run.root / "q" / "leases")).to_pyarrow_table()
    assert table["state"].to_pylist() == ["header"]


def test_a_table_whose_folder_cannot_be_synced_is_not_reported_as_created(run: Run) -> None:
    with recorded(run) as disk:
        fail_syncs(disk, "leases/_delta_log", 100)
        with pytest.raises(errors.StorageError, match="it is unknown if"):
            Queue.create(run.root / "q")


def test_a_checkpoint_of_another_engine_is_durable_before_the_commits_below_it_go(
    run: Run, limits: Limits
) -> None:
    limits(message_versions=0, message_seconds=0.0)
    with recorded(run):
        queue = Queue.create(run.root / "q")
        for value in ("one", "two"):
            queue.publish(value)
        index_commits(queue)
        DeltaTable(f"{queue.path}/messages").create_checkpoint()
        assert messages_of(queue).clean() == 2
        queue.publish("three")
    left = left_of(run)
    assert left.stats()["published"] == 3
