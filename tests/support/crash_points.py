"""Let a process die at a given step of an operation, by functions around the queue's writes.

Nothing in spark_mq knows of this. Every write goes through one of the functions in :func:`watch`.
They count before and after it, and at the chosen count the process kills itself with SIGKILL.
Without a chosen count it reports the names of the points.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_mq import Message, Queue
from spark_mq.delta.actions import LOG_FOLDER
from spark_mq.delta.local_files import LocalFiles
from spark_mq.delta.log import CHECKPOINT_INTERVAL
from spark_mq.delta.tables import wait_for_checkpoints
from spark_mq.streaming.source import StreamOptions, StreamSource
from support.handles import archive, expire, housekeep, index_commits, route, trim
from support.handles import lease as take
from support.tables import group_ledger_of, ledgers_of

Report = Callable[[Any], None]
NO_NAME = 70
"""The exit code of a process that came to a step without a name."""
TABLES = {"messages", "leases", "commits", "history"}


@dataclass(frozen=True)
class Clock:
    """The machine's time, and so many seconds more. Picklable."""

    ahead: float = 0.0

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


# -- points


class Points:
    """Counts the steps; dies at the chosen one."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at
        self.names: list[str] = []

    def step(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def named(self, name: Callable[..., str], *args: Any, **options: Any) -> str:
        """Return a step's name. One without a name ends the process, as spark_mq logs errors."""
        try:
            return name(*args, **options)
        except Exception:
            traceback.print_exc()
            os._exit(NO_NAME)

    def around(self, owner: Any, attribute: str, name: Callable[..., str]) -> None:
        """Puts a step before and after each call of a function."""
        real = getattr(owner, attribute)

        @functools.wraps(real)
        def wrapped(*args: Any, **options: Any) -> Any:
            called = self.named(name, *args, **options)
            self.step(f"before {called}")
            result = real(*args, **options)
            self.step(f"after {called}")
            return result

        setattr(owner, attribute, wrapped)


def watch(points: Points) -> None:
    """Wraps every function through which this process changes a queue: the system calls."""
    names: dict[str, str] = {}  # of each temporary file, what it becomes

    def written(_: LocalFiles, path: str, data: bytes | memoryview, sync: bool) -> str:
        names[path] = (
            _log_file(path, bytes(data)) if LOG_FOLDER in path else f"a data file of {_table(path)}"
        )
        return f"write of {names[path]}"

    def unlinked(_: LocalFiles, path: str) -> str:
        return (
            f"removal of the temporary of {names[path]}"
            if path in names
            else f"delete of {_kind(path)}"
        )

    for verb, name in {
        "write_new": written,
        "link": lambda _, source, target: names[source],
        "replace": lambda _, source, target: f"rename of {names[source]}",
        "unlink": unlinked,
        "makedir": lambda _, path: "creation of a folder",
    }.items():
        points.around(LocalFiles, verb, name)


def _log_file(path: str, data: bytes) -> str:
    """What a commit does, by its own account; or a checkpoint, or the hint that names the last."""
    if data[:4] == b"PAR1":
        return f"the checkpoint of {_table(path)}"
    first = json.loads(data.split(b"\n")[0])
    if "commitInfo" not in first:
        assert set(first) == {"version", "size"}
        return f"the hint of {_table(path)}"
    info = first["commitInfo"]
    if info["operation"] == "CREATE TABLE":
        return f"creation of {_table(path)}"
    return f"commit '{json.loads(info['userMetadata'])['operation']}' of {_table(path)}"


def _table(path: str) -> str:
    return next(part for part in reversed(path.split("/")) if part in TABLES) + "/"


def _kind(path: str) -> str:
    kind = (
        "a data file"
        if LOG_FOLDER not in path
        else "a checkpoint"
        if ".checkpoint." in path
        else "a commit"
    )
    return f"{kind} of {_table(path)}"


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

    def restart(self, queue: Queue) -> None:
        if self.repeated:
            self.act(queue, lambda _: None)


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


def lease_and_extend(queue: Queue, report: Report) -> None:
    lease = take(queue, 5)
    lease.extend()


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
        wait_for_checkpoints()
        lease.ack()
        wait_for_checkpoints()


def seek(queue: Queue, report: Report) -> None:
    queue.group().seek("latest")


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


def stream(queue: Queue, report: Report = lambda _: None) -> None:
    """Run a query with an idempotent sink until the queue is empty, as a restart does."""
    driver = Driver(queue)
    driver.run()


def rows_of(plan: Any) -> list[int]:
    return [seq for piece, _ in plan.slices for seq in range(piece.first, piece.first + piece.rows)]


class Driver:
    """Do what Spark does around the source. Each write of its checkpoint is a point to die at."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.group = queue.group()
        self.file = Path(queue.path, "_driver.json")
        self.state: dict[str, Any] = {"offsets": [], "committed": 0, "sink": {}}
        if self.file.exists():
            self.state = json.loads(self.file.read_text())

    def write(self, what: str) -> None:
        """Writes the state; ``what`` of it is new."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        os.replace(new, self.file)

    def run(self) -> None:
        source = StreamSource(group_ledger_of(self.group), StreamOptions(max_messages=5))
        offsets = self.state["offsets"]
        if not offsets:
            offsets.append(source.initial())
            self.state["committed"] = 1
            self.write("initial offset")
        while True:
            if self.state["committed"] == len(offsets):
                end = source.latest(offsets[-1])
                if end == offsets[-1]:
                    break
                offsets.append(end)
                self.write("offset")
            self.batch(source.plan(offsets[-2], offsets[-1]), len(offsets) - 1)
            self.state["committed"] = len(offsets)
            self.write("commit")
        source.stop()

    def batch(self, plan: Any, n: int) -> None:
        rows = rows_of(plan)
        if str(n) not in self.state["sink"]:  # as Delta skips a txnVersion that it has seen
            self.state["sink"][str(n)] = rows
            self.write("sink")
        if rows and n % 2:  # the others are left to the source's own ack
            self.group.ack(plan.lease_id)


def publish_keys(queue: Queue) -> None:
    """Two commits of messages with two keys, of which some have a priority."""
    for commit in range(2):
        queue.publish(
            [
                Message(f"m{n}", key=f"k{n % 2}", message_id=f"m{n}", priority=n % 4 // 3 * 7)
                for n in range(commit * 4, commit * 4 + 4)
            ]
        )


class OrderedDriver(Driver):
    """A stream of an ordered group, in which the first row of each second batch fails.

    It fails before the sink is written, which gets what the lease still holds. A replay of a
    written batch fails nothing.
    """

    def batch(self, plan: Any, n: int) -> None:
        rows = rows_of(plan)
        if str(n) not in self.state["sink"]:
            if rows and n % 2:
                self.group.nack({plan.lease_id: rows[:1]}, delay=0)
            held = group_ledger_of(self.group).current().held(plan.lease_id)
            rows = [seq for seq in rows if any(r.first <= seq <= r.last for r in held)]
            self.state["sink"][str(n)] = rows
            self.write("sink")
        if rows and n % 3:
            self.group.ack(plan.lease_id)


CASES = [
    Case("publish", plain),
    Case("publish with a producer's number", numbered, repeated=True),
    Case("buffered publisher", buffered),
    Case("group", lambda queue, _: queue.group("late").ensure(), publish, repeated=True),
    Case("lease and extend", lease_and_extend, publish),
    Case("settle", settle, publish),
    Case("work", work, publish),
    Case("checkpoint", across_a_checkpoint, nearly_a_checkpoint),
    Case("seek", seek, left_alone, repeated=True),
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
        "ordered stream", lambda queue, _: OrderedDriver(queue).run(), publish_keys, repeated=True,
        settings={"lanes": 8, "order": "key"},
    ),
]  # fmt: skip


# -- the process that dies


def child(name: str | None, path: str, die_at: int | None, pipe: Any) -> None:
    """Run a case by its name, and die at a point, or report the names of all points."""
    points = Points(die_at)
    watch(points)
    points.around(Driver, "write", lambda _, what: f"checkpoint's {what}")
    if name is None:
        Queue.create(path)
    else:
        case = next(case for case in CASES if case.name == name)
        case.act(
            Queue.open(path, clock=Clock(case.ahead)),
            lambda reported: pipe.send(("reported", reported)),
        )
    wait_for_checkpoints()
    pipe.send(("points", points.names))
    pipe.close()


def received(pipe: Any) -> Iterator[tuple[str, Any]]:
    """What the child said before its end."""
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return
