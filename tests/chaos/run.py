"""Publishers, workers, streams and sweepers under random SIGKILL, SIGSTOP and SIGINT and outages of
the storage, and a check of everything at the end.

    make fault                                # 200 kills
    make fault KILLS=1000 SPARK=2             # longer, with two Spark workers; SPARK=0 without
    # times without permissions, and full disks where one may be mounted
    make fault OUTAGES=30
    # eight workers of a group that keeps the order of keys
    make fault ORDER=key
    PYTHONPATH=tests .venv/bin/python -m chaos.run --kills 50 --spark 0 --seed 7

Exit code 1 if anything is wrong. The queue is left in --folder, if one is given, to be looked at.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_mq import Message, Queue

from . import actors
from .actors import GROUP, POISON, SPARK, Flag
from .outages import TABLES, Disk, Outages, obey_permissions, put_back
from .verdict import Expected, judge

# Forked from a server that has imported everything and started nothing: 20 ms a process.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["spark_mq.maintenance.sweep", "spark_mq.worker", "spark_mq.publisher"]
)
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT, SKEW, ATTEMPTS, POISONS = 2.0, 0.2, 6, 2
LANES = 16
STREAM_KILLS = 6
SHOWN = {"messages", "leases"}
"""Counts that are no events."""


@dataclass
class Slot:
    """A place for one process: when it has died, the next one starts.

    ``patience``: seconds that it gets between faults.
    """

    kind: str
    start: Callable[[], Any]
    patience: tuple[float, float] = (0.5, 6.0)
    process: Any = None
    next_fault: float = 0.0
    resume_at: float | None = None
    interrupted: bool = False

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def restart(self) -> None:
        self.process, self.resume_at, self.interrupted = self.start(), None, False
        self.spare()

    def spare(self) -> None:
        self.next_fault = time.monotonic() + random.uniform(*self.patience)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.signal(number)

    def freeze(self, seconds: float) -> None:
        self.signal(signal.SIGSTOP)
        self.resume_at = time.monotonic() + seconds

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self.resume_at = None
        self.spare()

    def kill(self, patience: float = 10.0) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(patience)


def end(slots: list[Slot]) -> None:
    """Let the processes end that were asked to, and kill the others."""
    for slot in slots:
        if slot.alive:
            slot.signal(signal.SIGCONT)
            if slot.kind == "stream":
                slot.signal(signal.SIGTERM)
    for slot in slots:
        if slot.process is not None:
            slot.process.wait(60 if slot.kind == "stream" else 30)
            if slot.alive:
                slot.signal(signal.SIGKILL)


def as_actor(target: Callable[..., None], *args: Any) -> None:
    """Run an actor that permissions bind. An interrupt between its calls ends it."""
    obey_permissions()
    with suppress(KeyboardInterrupt):
        target(*args)


class Forked:
    """An actor in a process of its own."""

    at_work = True

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._process = FORKS.Process(target=as_actor, args=(target, *args), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def signal(self, number: int) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def wait(self, seconds: float) -> None:
        self._process.join(seconds)


class Submitted:
    """A Spark worker (jobs/worker.py): Python, its JVM and the JVM's Python workers, one process
    group.
    """

    def __init__(self, path: str, folder: Path, number: int) -> None:
        self._alive, self._since = folder / f"alive-{number}", time.time()
        # Without the packages that conf/ names: they are looked up again at each start.
        conf = folder / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "spark-defaults.conf").write_text(
            "spark.master local[2]\nspark.ui.enabled false\nspark.log.level WARN\n"
        )
        command = [
            sys.executable, str(ROOT / "jobs" / "worker.py"), "--queue", path, "--group", SPARK,
            "--max-messages", "1000",
            "--handler", f"{ROOT / 'tests' / 'chaos' / 'stream_handler.py'}:process",
            "--checkpoint", str(folder / f"checkpoint-{number}"),
            "--visibility-timeout", f"{TIMEOUT * 5}s", "--ack", "on_success",
        ]  # fmt: skip
        own = {"FAULT_SINK": folder / "sink", "FAULT_ALIVE": self._alive, "SPARK_CONF_DIR": conf}
        self._log = (folder / "spark.log").open("a")
        self._process = subprocess.Popen(
            command, env=os.environ | {name: str(path) for name, path in own.items()},
            stdout=self._log, stderr=self._log, start_new_session=True, cwd=ROOT,
        )  # fmt: skip

    @property
    def at_work(self) -> bool:
        """Whether it has come to its first batch: until then there is nothing to interrupt but
        Spark's start.
        """
        late = time.time() > self._since + 120
        return late or (self._alive.exists() and self._alive.stat().st_mtime > self._since)

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None:  # its JVM goes by itself, but a stopped one would not
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return code

    def signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._log.close()


class Faults:
    """A queue on a disk that has outages, and slots whose processes are killed and frozen."""

    def __init__(self, folder: Path, timeout: float, **settings: Any) -> None:
        self.disk, self.timeout = Disk(folder / "disk"), timeout
        place = self.disk.path / "queue"
        self.outages = Outages(self.disk, place)
        self.folder, self.notes = folder, folder / "notes"
        times = {"visibility_timeout": timeout, "retry_delay": "200ms"}
        self.queue = Queue.create(place, **times, **settings)
        self.stop, self.enough = Flag(folder / "stop"), Flag(folder / "enough")
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []

    @property
    def slots(self) -> list[Slot]:
        raise NotImplementedError

    def slot(
        self, kind: str, target: Callable[..., None], stop: Flag, name: str, **more: Any
    ) -> Slot:
        start = lambda: Forked(target, self.queue.path, self.notes, stop, name)  # noqa: E731
        return Slot(kind, start, **more)

    def tick(self, slot: Slot, faults: bool) -> None:
        """One look at one process: started again if it is dead, let go on if it was frozen for long
        enough, or a new fault.
        """
        now = time.monotonic()
        if not slot.alive:
            if slot.process is not None:
                self.died(slot)
            slot.restart()
        elif slot.resume_at is not None:
            if now > slot.resume_at:
                slot.thaw()
                self.done["zombies"] += 1
        elif not slot.process.at_work:
            slot.spare()
        elif faults and now > slot.next_fault:
            if random.random() < 0.2:
                timeout = self.timeout * (5 if slot.kind == "stream" else 1)
                slot.freeze(random.uniform(0.5, 2.5) * timeout)
                self.done["freezes"] += 1
            elif slot.kind != "stream" and random.random() < 0.25:
                slot.signal(signal.SIGINT)
                slot.interrupted = True
                self.done["interrupts"] += 1
                slot.spare()
            else:
                slot.kill()
                self.done["kills"] += 1
                self.done[f"kills of a {slot.kind}"] += 1

    def died(self, slot: Slot) -> None:
        """By our hand or by poison, or asked to stop; anything else is a mistake of its own."""
        code = slot.process.poll()
        self.done[f"deaths of a {slot.kind}"] += 1
        # An interrupt while Python starts or ends gives 1. An error there would be printed.
        allowed = (0, -signal.SIGKILL, 1) if slot.interrupted else (0, -signal.SIGKILL)
        if slot.kind != "stream" and code not in allowed:
            self.failed.append(f"a {slot.kind} ended with exit code {code}: see its stderr")

    def end(self) -> None:
        self.enough.set()
        self.stop.set()
        end(self.slots)


class Run(Faults):
    """All slots, and the faults."""

    def __init__(self, folder: Path, spark: int, outages: int, order: str) -> None:
        super().__init__(
            folder, TIMEOUT, clock_skew=SKEW, max_delivery_attempts=ATTEMPTS, lanes=LANES
        )
        self.past, self.sink, self.planned = folder / "past", folder / "sink", outages
        self.started, self._told = time.monotonic(), 0.0
        self.queue.group(GROUP).configure(order=order)
        self.drained = Flag(folder / "drained")
        self.publishers = [
            self.slot("publisher", actors.publish, self.enough, "numbered-1"),
            self.slot("publisher", actors.publish, self.enough, "numbered-2"),
            self.slot("buffered publisher", actors.publish_buffered, self.enough, "buffered"),
        ]
        workers, settlers = (4, 4) if order == "key" else (3, 2)
        self.workers = [
            *self.several("worker", actors.work, self.drained, workers),
            *self.several("settler", actors.settle, self.drained, settlers),
        ]
        self.sweepers = self.several("sweeper", actors.chores, self.stop, 2)
        self.streams = [self.stream(number) for number in range(spark)]
        if spark:
            DeltaTable.create(str(self.sink), pa.schema([("sequence", pa.int64())]))
            self.queue.group(SPARK).ensure()

    def several(self, kind: str, target: Callable[..., None], stop: Flag, count: int) -> list[Slot]:
        return [self.slot(kind, target, stop, f"{kind}-{n}") for n in range(count)]

    def stream(self, number: int) -> Slot:
        return Slot("stream", lambda: Submitted(self.queue.path, self.folder, number))

    @property
    def slots(self) -> list[Slot]:
        return [*self.publishers, *self.workers, *self.sweepers, *self.streams]

    def fault(self, kills: int) -> None:
        """Until so many have been killed, and each stream a few times: they take a while to
        start.
        """
        poisons, streams = 0, STREAM_KILLS * len(self.streams)
        while self.done["kills"] < kills or self.done["kills of a stream"] < streams:
            enough = self.done["kills"] - self.done["kills of a stream"] >= kills
            for slot in self.slots:
                if slot.alive or not (enough and slot in self.publishers):
                    self.tick(slot, faults=slot.kind == "stream" or not enough)
            if enough:  # streams are slow to start: more messages would bury them meanwhile
                self.enough.set()
            due = poisons < POISONS and self.done["kills"] >= kills * (poisons + 1) // 5
            if due and not self.outages.on:
                self.queue.publish([Message(POISON, key=f"key-{poisons}")])
                poisons += 1
            self.trouble(kills)
            time.sleep(0.02)
        self.outages.end()
        if not self.past.exists():  # an outage lasted to the last kill
            self.remember()

    def trouble(self, kills: int) -> None:
        """One look at the storage: an outage begins or ends. In the middle, all is copied once."""
        done = self.done["outages"]
        if self.outages.on:
            self.outages.tick()
            return
        if done < self.planned and self.done["kills"] >= kills * (done + 1) // (self.planned + 1):
            self.done[self.outages.begin(done)] += 1
            self.done["outages"] += 1
            return
        if not self.past.exists() and self.done["kills"] >= kills // 2:
            self.remember()
        self.report()

    def remember(self) -> None:
        """Kill everybody, copy the queue, and publish a message that the copy lacks.

        In a short run no publisher may come to its first message later, and then an old table that
        is put back would be as good as the new one. These kills do not count.
        """
        for slot in self.slots:
            if slot.alive:
                slot.kill(30)
                self.done["kills for the copy"] += 1
        shutil.copytree(self.queue.path, self.past)
        self.queue.publish(["after the copy"])

    def drain(self, patience: float) -> None:
        """No more faults; until every group has settled everything."""
        self.enough.set()
        deadline = time.monotonic() + patience
        while any(slot.alive for slot in self.publishers):
            self._tend(self.publishers, restart=False)
        while not self.idle(GROUP, *([SPARK] if self.streams else [])):
            if self.idle(GROUP):  # its workers would keep the streams from their work
                self.drained.set()
            others = [slot for slot in self.workers if slot.alive or not self.drained.is_set()]
            self._tend([*others, *self.sweepers, *self.streams], restart=True)
            self.report()
            if time.monotonic() > deadline:
                raise SystemExit(f"not drained after {patience:.0f} s: {self.queue.stats()}")

    def report(self) -> None:
        """Every 15 seconds, how far it is."""
        if time.monotonic() - self._told > 15:
            self._told = time.monotonic()
            left = {name: stats.ready for name, stats in self.stats(GROUP, SPARK).items()}
            published, seconds = self.queue.stats()["published"], self._told - self.started
            print(
                f"{seconds:5.0f} s {dict(self.done)} {published} messages, left {left}", flush=True
            )

    def _tend(self, slots: list[Slot], restart: bool) -> None:
        for slot in slots:
            if restart or slot.alive:
                self.tick(slot, faults=False)
        time.sleep(0.05)

    def stats(self, *names: str) -> dict[str, Any]:
        groups = {name: self.queue.group(name) for name in names}
        return {name: group.stats() for name, group in groups.items() if group.exists()}

    def idle(self, *names: str) -> bool:
        known = self.stats(*names)
        return len(known) == len(names) and not any(stats.unsettled for stats in known.values())

    def end(self) -> None:
        self.drained.set()
        super().end()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--spark", type=int, default=1, help="how many Spark workers")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the faults; what they hit differs all the same"
    )
    parser.add_argument("--folder", type=Path, help="where to leave everything")
    parser.add_argument("--outages", type=int, default=8, help="how many outages of the storage")
    parser.add_argument(
        "--order", choices=("none", "key"), default="none", help="the order of the Python group"
    )
    args = parser.parse_args()
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = args.folder or Path(temporary)
        run = Run(folder, args.spark, args.outages, args.order)
        stack.callback(run.disk.close)
        path = Path(run.queue.path)
        try:
            run.fault(args.kills)
            run.drain(patience=900)
        finally:
            run.outages.end()
            run.end()
        run.queue.sweep()
        for table in TABLES:
            wrong = put_back(path, run.past, table, folder)
            run.failed += wrong
            run.done["tables put back"] += 1
        expected = Expected(ATTEMPTS, timedelta(seconds=SKEW), args.order == "key")
        found = judge(path, run.notes, run.sink, expected)
        reported = found.counts
        deliveries = reported["leased"] + reported["replayed"]
        figures = {
            "seconds": round(time.monotonic() - run.started),
            "messages": reported["messages"],
            "leases": reported["leases"],
            **run.done,
            "redeliveries": deliveries - reported["messages"] * (1 + bool(args.spark)),
            "events": {name: reported[name] for name in sorted(reported.keys() - SHOWN)},
            "out of order": sum(" key " in one for one in found.wrong),
            "overlaps": sum("holds it" in one for one in found.wrong),
            "lost": sum("ended 0 times" in one for one in found.wrong),
            "wrong": len(found.wrong) + len(run.failed),
        }
        print(json.dumps(figures, indent=1))
        for one in [*run.failed, *found.wrong][:20]:
            print("WRONG:", one)
        if args.folder:
            shutil.copytree(path, folder / "queue")
    return 1 if found.wrong or run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
