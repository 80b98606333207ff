"""Let a process die at a given step of an operation, by handlers around the queue's writes.

Nothing in spark_mq knows of this. :func:`child` counts before and after each system call that
changes a queue, and at the chosen count the process kills itself with SIGKILL. Without a chosen
count it reports the names of the points.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import DISK, ByteStore, Call
from support.drivers import Checkpoint, Runner, sequences
from support.handles import archive, end_checkpoints, expire, housekeep, index_commits, route, trim
from support.handles import lease as take
from support.tables import group_ledger_of, ledgers_of

from spark_mq import Message, Queue
from spark_mq.delta.log import CHECKPOINT_INTERVAL

# Forked from a server that has imported all and started nothing: 20 ms a process.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "pytest",
        "spark_mq.queue",
        "spark_mq.delta.memory_files",
        "spark_mq.maintenance.sweep",
        "spark_mq.operations.history",
        "spark_mq.operations.trace",
        "spark_mq.streaming.source",
        "spark_mq.worker.run",
    ]
)

Report = Callable[[Any], None]
TABLES = ("messages", "leases", "commits", "history")


# -- operations


@dataclass(frozen=True)
class Case:
    """An operation to die in: ``prepare`` makes the queue, and ``act`` is what dies.

    If it is ``repeated``, it runs again after its death.

    ``ahead``: seconds by which the clock of ``act`` is ahead, for what needs time to pass.
    """

    name: str
    act: Callable[[Queue, Report], Any]
    prepare: Callable[[Queue], Any] = lambda queue: None
    repeated: bool = False
    settings: dict[str, Any] | None = None
    ahead: float = 0.0

    def opened(self, path: Path | str, later: float = 0.0) -> Queue:
        """The queue as `act` gets it, or so many seconds later."""
        ahead = timedelta(seconds=self.ahead + later)
        return Queue.open(path, clock=lambda: datetime.now(UTC) + ahead)


def publish(queue: Queue, count: int = 12) -> None:
    queue.publish([Message(f"m{n}", message_id=f"m{n}") for n in range(count)])


def numbered(queue: Queue, report: Report) -> None:
    for number in range(3):
        receipt = queue.publish(
            [f"p{number}"] * 4, producer_id="p", producer_sequence=number, on_duplicate="skip"
        )
        report(list(receipt.sequences))


def plain(queue: Queue, report: Report) -> None:
    report(list(queue.publish(["plain"] * 5).sequences))


def buffered(queue: Queue, report: Report) -> None:
    with queue.publisher(max_messages=4, linger="1h") as publisher:
        for _ in range(3):
            waiting = [publisher.publish("x") for _ in range(4)]
            publisher.flush()
            report([one.result(30) for one in waiting])


def settle(queue: Queue, report: Report) -> None:
    """Every verb, also on parts of a lease."""
    lease = take(queue, 6)
    one = [m.sequence for m in lease.messages]
    lease.ack(one[:1])
    lease.nack(one[1:2], delay=0)
    lease.reject(one[2:3], error="bad")
    lease.ack()
    take(queue, 3).release()
    take(queue, 3).nack(delay=0)


def work(queue: Queue, report: Report) -> None:
    """A worker that is asked to stop with a lease in hand."""
    queue.group().work(lambda lease: None, mode="batch", max_messages=5, until="empty")


def nearly_a_checkpoint(queue: Queue) -> None:
    publish(queue)
    while ledgers_of(queue).version() < CHECKPOINT_INTERVAL - 2:
        take(queue, 1).release()


def across_a_checkpoint(queue: Queue, report: Report) -> None:
    """Commit version 100 and its checkpoint one after the other, so that each run is alike."""
    for _ in range(2):
        lease = take(queue, 3)
        end_checkpoints()
        lease.ack()
        end_checkpoints()


def route_all(queue: Queue, report: Report = lambda _: None) -> None:
    for name in queue.groups():
        route(queue.group(name))


def some_dead(queue: Queue) -> None:
    publish(queue)
    for group in ("default", "other"):
        take(queue, 4, group).reject(error="bad")


def dead_letters(queue: Queue) -> None:
    some_dead(queue)
    route_all(queue)


def settled(queue: Queue) -> None:
    for _ in range(3):
        publish(queue, 4)
    while (lease := queue.group().lease("w", max_messages=4)) is not None:
        lease.ack()


def blocked(queue: Queue) -> None:
    publish(queue)
    lease = take(queue, 2)
    lease.nack([m.sequence for m in lease.messages])


def unblock(queue: Queue, report: Report = lambda _: None) -> None:
    queue.group().unblock("drop")


def left_alone(queue: Queue) -> None:
    publish(queue)
    take(queue, 4)


# -- a stream, as Spark drives it


@dataclass
class StoredCheckpoint(Checkpoint):
    """A checkpoint and an idempotent sink, in a file. Each write of it is a point to die at."""

    sink: dict[str, list[int]] = field(default_factory=dict)
    path: str = ""

    @classmethod
    def of(cls, queue: Queue) -> StoredCheckpoint:
        path = Path(queue.path, "_driver.json")
        return cls(**json.loads(path.read_text())) if path.exists() else cls(path=str(path))

    def save(self, what: str) -> None:
        new = Path(f"{self.path}.new")
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, self.path)


def stream(queue: Queue, report: Report = lambda _: None, *, ordered: bool = False) -> None:
    """Run a query with an idempotent sink until the queue is empty, as a restart does.

    If it is `ordered`, the first row of each second batch fails before the sink is written, which
    gets what the lease still holds. A replay of a written batch fails nothing.
    """
    stored, group = StoredCheckpoint.of(queue), queue.group()
    runner = Runner(queue, stored, group=group.name, max_messages=5)
    while runner.replays or runner.offer():
        plan, number = runner.plan(), len(stored.offsets) - 1
        rows = sequences(plan)
        if str(number) not in stored.sink:  # as Delta skips a txnVersion that it has seen
            if ordered:
                if rows and number % 2:
                    group.nack({plan.lease_id: rows[:1]}, delay=0)
                held = group_ledger_of(group).current().held(plan.lease_id)
                rows = [seq for seq in rows if any(r.first <= seq <= r.last for r in held)]
            stored.sink[str(number)] = rows
            stored.save("sink")
        if rows and number % (3 if ordered else 2):  # the others are left to the source's own ack
            group.ack(plan.lease_id)
        runner.commit()
    runner.source.stop()


def publish_keys(queue: Queue) -> None:
    """Two commits of messages with two keys, of which some have a priority."""
    for commit in range(2):
        queue.publish(
            [
                Message(f"m{n}", key=f"k{n % 2}", message_id=f"m{n}", priority=n % 4 // 3 * 7)
                for n in range(commit * 4, commit * 4 + 4)
            ]
        )


CASES = [
    Case("publish", plain),
    Case("publish with a producer's number", numbered, repeated=True),
    Case("buffered publisher", buffered),
    Case("group", lambda queue, _: queue.group("late").ensure(), publish, repeated=True),
    Case("lease and extend", lambda queue, _: take(queue, 5).extend(), publish),
    Case("settle", settle, publish),
    Case("work", work, publish),
    Case("checkpoint", across_a_checkpoint, nearly_a_checkpoint),
    Case("seek", lambda queue, _: queue.group().seek("latest"), left_alone, repeated=True),
    Case("purge", lambda queue, _: queue.purge(queue.name), left_alone, repeated=True),
    Case("configure", lambda queue, _: queue.group().configure(max_in_flight=3), left_alone),
    Case("drop", lambda queue, _: queue.drop_group("other"), some_dead),
    Case(
        "unblock", unblock, blocked, repeated=True,
        settings={"on_max_deliveries": "block", "max_failures": 1},
    ),
    Case("expire", lambda queue, _: expire(queue), left_alone, ahead=3600),
    Case("route", route_all, some_dead, repeated=True),
    Case("redrive", lambda queue, _: queue.redrive(), dead_letters, repeated=True),
    Case(
        "trim", lambda queue, _: trim(queue), settled, repeated=True,
        settings={"retention": "1s"}, ahead=3600,
    ),
    Case("index", lambda queue, _: index_commits(queue), settled, repeated=True),
    Case("archive", lambda queue, _: archive(queue), settled, repeated=True),
    Case("housekeeping", lambda queue, _: housekeep(queue, 0, 0), settled, repeated=True),
    Case("sweep", lambda queue, _: queue.sweep(), some_dead, repeated=True),
    Case("stream", stream, publish, repeated=True),
    Case(
        "ordered stream", partial(stream, ordered=True), publish_keys, repeated=True,
        settings={"lanes": 8, "order": "key"},
    ),
]  # fmt: skip


# -- the process that dies


def run_case(name: str | None, path: str, report: Report) -> None:
    """Run a case, or create a queue if no case is named. Report what it confirms."""
    try:
        if name is None:
            Queue.create(path)
        else:
            case = next(case for case in CASES if case.name == name)
            case.act(case.opened(path), report)
    finally:
        end_checkpoints()


def run(target: Callable[..., None], *args: Any) -> tuple[int | None, dict[str, list[Any]]]:
    """Run a function in a process of its own, which gets a pipe. Its exit code, and what it said.

    What it says are pairs of a kind and a list.
    """
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=target, args=(*args, theirs))
    process.start()
    theirs.close()
    said = defaultdict[str, list[Any]](list)
    with contextlib.suppress(EOFError):  # its end
        while True:
            kind, what = ours.recv()
            said[kind] += what
    process.join(60)
    return process.exitcode, said


def child(name: str | None, path: str, die_at: int | None, pipe: Any) -> None:
    """Run a case by its name, and die at a point, or report the names of all points."""
    points: list[str] = []

    def step(point: str) -> None:
        points.append(point)
        if len(points) - 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(called: str, run: Callable[[], Any]) -> Any:
        step(f"before {called}")
        result = run()
        step(f"after {called}")
        return result

    patch, save = pytest.MonkeyPatch(), StoredCheckpoint.save
    changes = [verb for verb in DISK if not verb.startswith("sync")]
    ByteStore(patch).on(*changes, act=lambda call: around(name_of(call), call.run))
    patch.setattr(
        StoredCheckpoint, "save",
        lambda stored, what: around(f"checkpoint's {what}", lambda: save(stored, what)),
    )  # fmt: skip
    run_case(name, path, lambda reported: pipe.send(("reported", reported)))
    pipe.send(("points", points))
    pipe.close()


def name_of(call: Call) -> str:
    """Name a call by what it does to a table. A commit is linked, other files are renamed."""
    path = call.args[-1] if call.verb in ("link", "replace") else call.path
    table = next((f"{part}/" for part in reversed(path.split("/")) if part in TABLES), "")
    if call.verb == "link":
        info = json.loads(Path(call.path).read_bytes().split(b"\n")[0])["commitInfo"]
        if info["operation"] == "CREATE TABLE":
            return f"creation of {table}"
        return f"commit '{json.loads(info['userMetadata'])['operation']}' of {table}"
    kinds = {".tmp": "temporary", ".json": "commit", "_last_checkpoint": "hint",
             ".checkpoint.parquet": "checkpoint", ".parquet": "data file"}  # fmt: skip
    kind = next((kind for end, kind in kinds.items() if path.endswith(end)), "file")
    return f"{call.verb} of a {kind} of {table}"
