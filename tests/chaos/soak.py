"""Eight processes for hours, under kills and outages of the storage: what they use must not grow.

    make soak MINUTES=120
    PYTHONPATH=tests .venv/bin/python -m chaos.soak --minutes 5 --out /tmp/soak.json

Two publishers, two workers that time their leases and acks, and a sweeper live as long as the run.
Two workers and a sweeper are killed, interrupted and frozen. Every ten seconds the run notes the
memory and the descriptors of those that live, and the size of the queue on the disk. The workers
note the latency beside that of a synced write of their own, because the machine may be busier at
times.

Exit code 1 if a figure of the last third is above that of the first third by more than ``GROWTH``
allows, if a message that was reported as published was not delivered, or if a process ended by
itself. The first tenth is left out, because caches fill there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.limits import allow_shorter

from spark_mq.errors import ContentionTimeout, LeaseLost, StorageError

from . import actors
from .actors import GROUP, Flag, Journal, journals, opened
from .run import Faults, Slot

SAMPLE_SECONDS, OUTAGE_SECONDS = 10.0, 240.0
RETENTION = timedelta(minutes=2)
GROWTH = {"memory": 1.1, "descriptors": 1.1, "files": 1.25, "bytes": 1.25, "latency": 1.5}
"""By how much the median of the last third may exceed that of the first."""


def sweep_at_times(path: str, notes: Path, stop: Flag, name: str) -> None:
    """Sweep every ten seconds."""
    queue = opened(path, stop)
    while not stop.wait(10.0):
        with suppress(StorageError):
            queue.sweep()


def timed_work(path: str, notes: Path, stop: Flag, name: str) -> None:
    """Lease and ack without end. Note how long each took, and a synced write beside them."""
    group, done = opened(path, stop).group(GROUP), Journal(notes, "done")
    beside = notes / f"synced-{name}"
    with (notes / f"latency-{name}").open("a") as latencies:
        while not stop.is_set():
            began = time.perf_counter()
            with suppress(StorageError, LeaseLost, ContentionTimeout):
                lease = group.lease(name, max_messages=60)
                if lease is None:
                    stop.wait(0.05)
                    continue
                leased = time.perf_counter()
                sequences = [message.sequence for message in lease.messages]
                done.write(sequences)
                acking = time.perf_counter()
                lease.ack()
                ended = time.perf_counter()
                write_synced(beside)
                times = leased - began, ended - acking, time.perf_counter() - ended
                figures = " ".join(f"{seconds * 1e3:.2f}" for seconds in times)
                print(f"{time.time():.1f} {figures}", file=latencies, flush=True)


def write_synced(file: Path) -> None:
    with file.open("wb") as stream:
        stream.write(bytes(4096))
        stream.flush()
        os.fsync(stream.fileno())


class Soak(Faults):
    """The processes and the samples."""

    def __init__(self, folder: Path, seconds: float) -> None:
        allow_shorter("history_retention")  # so that two hours see it go
        super().__init__(
            folder, 5.0, retention=RETENTION, history_retention=RETENTION, max_delivery_attempts=50
        )
        self.seconds = seconds
        self.notes.mkdir()
        self.queue.group(GROUP).ensure()
        living = {
            "publisher 1": (actors.publish, self.enough, "numbered-1"),
            "publisher 2": (actors.publish_buffered, self.enough, "buffered"),
            "worker 1": (timed_work, self.stop, "timed-1"),
            "worker 2": (timed_work, self.stop, "timed-2"),
            "sweeper": (sweep_at_times, self.stop, "sweeper"),
        }
        self.living = {name: self.slot(name, *given) for name, given in living.items()}
        self.victims = [
            self.slot("victim", target, self.stop, f"victim-{number}", patience=(5.0, 30.0))
            for number, target in enumerate((actors.work, actors.settle, actors.chores), 1)
        ]
        self.samples: list[dict[str, Any]] = []

    @property
    def slots(self) -> list[Slot]:
        return [*self.living.values(), *self.victims]

    def run(self) -> None:
        for slot in self.slots:
            slot.restart()
        began = time.monotonic()
        sampled, outage = began, began + OUTAGE_SECONDS / 2
        while (now := time.monotonic()) - began < self.seconds:
            for name, slot in self.living.items():
                if not slot.alive:
                    raise SystemExit(f"the {name} ended with exit code {slot.process.poll()}")
            for slot in self.victims:
                self.tick(slot, faults=True)
            if self.outages.on:
                self.outages.tick()
            elif now > outage:
                self.outages.begin(self.done["outages"])
                self.done["outages"] += 1
                outage = now + OUTAGE_SECONDS
            elif now > sampled:
                self.sample(now - began)
                sampled = now + SAMPLE_SECONDS
            time.sleep(0.1)
        self.outages.end()

    def sample(self, seconds: float) -> None:
        """Note what the processes and the disk hold now."""
        one: dict[str, Any] = {"x": round(seconds)}
        for name, slot in self.living.items():
            pid = slot.process.pid
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                one[f"memory {name}"] = int(status.split("VmRSS:")[1].split()[0]) / 1024
                one[f"descriptors {name}"] = len(os.listdir(f"/proc/{pid}/fd"))
        sizes = list(_sizes(Path(self.queue.path)))
        one["files queue"], one["bytes queue"] = len(sizes), sum(sizes) / 2**20
        with suppress(StorageError):
            stats = self.queue.group(GROUP).stats()
            one["backlog"] = stats.ready + stats.leased
        self.samples.append(one)
        if len(self.samples) % 30 == 1:
            print(json.dumps(one), flush=True)

    def drain(self) -> None:
        """End the publishers, and wait until the workers have settled everything."""
        self.enough.set()
        deadline = time.monotonic() + 300
        for name in ("publisher 1", "publisher 2"):
            self.living[name].process.wait(60)
        while (stats := self.queue.group(GROUP).stats()).ready + stats.leased + stats.delayed:
            for slot in self.victims:
                if slot.resume_at is not None:
                    slot.thaw()
            if time.monotonic() > deadline:
                raise SystemExit(f"not drained: {stats}")
            time.sleep(0.5)


def _sizes(path: Path) -> Iterator[int]:
    """Yield the sizes of the files in a folder, while others write and delete there."""
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(folder, name)).st_size


def latency(notes: Path, began: float, seconds: float) -> list[dict[str, Any]]:
    """Return the medians and the 99th percentiles of each minute, in ms.

    The medians are also given as multiples of a synced write's.
    """
    minutes: dict[int, list[tuple[float, ...]]] = {}
    for file in notes.glob("latency-*"):
        for line in file.read_text().splitlines():
            at, *figures = map(float, line.split())
            minutes.setdefault(int((at - began) // 60), []).append(tuple(figures))
    points = []
    for minute, found in sorted(minutes.items()):
        if len(found) > 20 and minute * 60 < seconds:
            leases, acks, writes = (sorted(column) for column in zip(*found, strict=True))
            lease, ack, write = map(statistics.median, (leases, acks, writes))
            p99 = len(found) * 99 // 100
            points.append({
                "x": minute * 60, "latency lease": lease / write, "latency ack": ack / write,
                "lease p50": lease, "ack p50": ack, "synced write p50": write,
                "lease p99": leases[p99], "ack p99": acks[p99],
            })  # fmt: skip
    return points


def growth(points: Sequence[dict[str, Any]], name: str) -> float:
    """Return the median of the last third over that of the first, without the first tenth."""
    values = [point[name] for point in points if name in point]
    values = values[len(values) // 10 :]
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) / max(1e-9, statistics.median(values[:third]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", type=Path, help="where to write the curves, as JSON")
    args = parser.parse_args()
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        soak, began = Soak(Path(temporary), args.minutes * 60), time.time()
        try:
            soak.run()
            soak.drain()
        finally:
            soak.outages.end()
            soak.end()
            soak.disk.close()
        notes = soak.notes
        lost = journals(notes, "published") - journals(notes, "done")
        latencies = latency(notes, began, soak.seconds)
        counts = {"published": len(journals(notes, "published")), "lost": len(lost)}
    wrong = [f"{len(lost)} messages were not delivered"] if lost else []
    wrong += soak.failed
    harms = ("kills", "freezes", "interrupts", "outages")
    figures: dict[str, Any] = counts | {name: soak.done[name] for name in harms}
    for points in (soak.samples, latencies):
        for name in sorted({name for point in points for name in point} - {"x"}):
            figures[name] = round(growth(points, name), 3)
            if (limit := GROWTH.get(name.split()[0])) and figures[name] > limit:
                wrong.append(f"{name} grew to {figures[name]} times, over {limit}")
    print(json.dumps(figures, indent=1))
    if args.out:
        curves = {"soak": {"points": soak.samples}, "soak latency": {"points": latencies}}
        args.out.write_text(json.dumps(curves, indent=1))
    for one in wrong:
        print("WRONG:", one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
