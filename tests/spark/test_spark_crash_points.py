"""A batch on its way into a table or a queue, killed at any point: each message lands once.

Real processes are killed: the one that leases, and the driver together with its JVM, before and
after each of their writes. The points are not a list: a run in which nothing dies reports them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from support import harness, rule_variants
from support.harness import (
    PATIENCE,
    Stream,
    finish,
    forget_last_commit,
    make_queue,
    numbered,
    session_with,
    start,
    values,
)
from support.rule_variants import find_rule, rule_variant
from support.spark_session import new_session

from spark_mq import Queue

# These functions go to Spark's Python workers, which cannot import test modules.
cloudpickle.register_pickle_by_value(__import__(__name__))
cloudpickle.register_pickle_by_value(harness)
cloudpickle.register_pickle_by_value(rule_variants)

pytestmark = pytest.mark.slow
SPAWN = multiprocessing.get_context("spawn")
WRITES = ("write_new", "link", "replace", "unlink")
STEP = 1 if os.environ.get("CRASHES") == "all" else 13
"""``make fault`` takes each point. Odd, so that points before and after a write come."""
IN_FAULT = pytest.mark.skipif(STEP > 1, reason="in make fault: it takes minutes")
SURE = {"driver": "after the sink", "runner": "before partitions"}
"""The last of these points is always taken."""


class Steps:
    """Counts the steps of a process, in a file beside the queue, and ends it at the chosen one."""

    def __init__(self, path: str, side: str, end: Callable[[], None]) -> None:
        self.chosen, self.taken = Path(f"{path}.{side}.die"), Path(f"{path}.{side}.steps")
        self.end = end

    def choose(self, at: int | None) -> None:
        self.taken.write_text("")
        self.chosen.write_text("" if at is None else str(at))

    def __call__(self, name: str) -> None:
        before = self.taken.read_text().splitlines()
        with self.taken.open("a") as file:
            file.write(f"{name}\n")
        if self.chosen.read_text() == str(len(before)):
            self.end()

    def names(self) -> list[str]:
        return self.taken.read_text().splitlines()

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self(f"before {name}")
            result = real(*args, **options)
            self(f"after {name}")
            return result

        return call


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_session() -> None:
    os.killpg(0, signal.SIGKILL)


def watch(path: str, call: str, run: Callable[[], Any]) -> Any:
    """Let the process that leases be killed at the chosen one of its steps."""
    steps = Steps(path, "runner", kill)
    for name in WRITES:
        owner, verb, real = find_rule(f"LocalFiles.{name}")
        if not hasattr(real, "is_a_step"):
            around = steps.around(name, real)
            around.is_a_step = True  # type: ignore[attr-defined]
            setattr(owner, verb, around)
    steps(f"before {call}")
    return run()


@pytest.fixture(scope="module")
def watched_spark(spark: Any) -> Any:
    """A session in which the process that leases can be killed."""
    return session_with(spark, watch)


class Crash:
    """A queue, and a stream into a Delta table that is killed once."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder, self.out = spark, folder, str(folder / "out")
        self.path = str(folder / "queue")
        self.runner = Steps(self.path, "runner", kill)
        self.driver = Steps(self.path, "driver", kill_session)

    def publish(self) -> None:
        queue = make_queue(self.path)
        queue.publish(numbered(3))
        queue.publish(numbered(6)[3:])
        self.runner.choose(None)
        self.driver.choose(None)

    def stream(self) -> Stream:
        """A handle as a new driver has it."""
        queue = Queue.open(self.path)
        return Stream(self.spark, queue, self.folder / "checkpoint", maxMessagesPerTrigger="3")

    def into_foreach_batch(self) -> None:
        """Run the stream until the queue is empty, with foreachBatch and ``delta_options``."""
        stream = self.stream()

        def save(batch: Any, lease: Any) -> None:
            writer = batch.select("value").write.format("delta").mode("append")
            writer.options(**lease.delta_options).save(self.out)

        sink = self.driver.around("the sink", save)
        settling = stream.group.for_each_batch(sink, on_error="raise")
        with self._watched_writes():
            stream.run(settling)

    @contextlib.contextmanager
    def _watched_writes(self, *rules: str) -> Iterator[None]:
        """Take a step before and after each write of the driver, and each call of these rules."""
        with contextlib.ExitStack() as variants:
            for rule in (*rules, *(f"LocalFiles.{name}" for name in WRITES)):
                around = partial(self.driver.around, rule.partition(".")[2])
                variants.enter_context(rule_variant(rule, around))
            yield

    def into_table(self) -> None:
        """Run the stream until the queue is empty, with ``lease.append`` to a Delta table."""
        if not Path(self.out).exists():
            write_deltalake(self.out, pa.table({"value": pa.array([], pa.binary())}))
        self._into_sink(self.out, "DeltaSink.commit", "DeltaSink._has")

    def into_queue(self) -> None:
        """Run the stream until the queue is empty, with ``lease.append`` to another queue."""
        target = Queue.create(self.folder / "target", exist_ok=True)
        self.out = f"{target.path}/messages"
        self._into_sink(target.path, "QueueSink.has_one_of", "QueueSink.check_own")

    def _into_sink(self, path: str, *rules: str) -> None:
        group = self.stream().group
        if group.settings.sink is None:
            group.configure(sink=path, max_delivery_attempts=None, breaker_threshold=None)

        def save(batch: Any, lease: Any) -> None:
            lease.append(batch.select("value"))

        sink = self.driver.around("the sink", save)
        for _ in range(20):
            stream = self.stream()
            with self._watched_writes(*rules):
                stream.run(stream.group.for_each_batch(sink, on_error="raise"))
            if not stream.group.stats().unsettled:
                return

    def into_plain_sink(self) -> None:
        """Run the stream until the queue is empty, with Spark's own sink and ``ack=on_success``."""
        stream = self.stream()
        writer = stream.frame().select("value").writeStream.format("delta")
        finish(start(writer.option("path", self.out), stream.checkpoint))

    def assert_once(self, point: str) -> None:
        assert values(self.spark.read.format("delta").load(self.out)) == numbered(6), point
        stats = Queue.open(self.path).group("g").stats()
        assert (stats.acked, stats.ready, stats.leased) == (6, 0, 0), point


def points(spark: Any, folder: Path, run: str, side: str) -> list[str]:
    """Return the steps of a side if nothing dies."""
    whole = Crash(spark, folder / "whole")
    whole.publish()
    getattr(whole, run)()
    whole.assert_once("nothing dies")
    found: list[str] = getattr(whole, side).names()
    assert len(found) >= 20
    return found


def crashed(spark: Any, folder: Path, run: str, side: str, at: int) -> Crash:
    """Return a queue whose stream was killed at a step."""
    crash = Crash(spark, folder / str(at))
    crash.publish()
    steps: Steps = getattr(crash, side)
    steps.choose(at)
    if side == "driver":
        assert end_of_driver(crash, run) == -signal.SIGKILL
    else:
        with pytest.raises(StreamingQueryException):
            getattr(crash, run)()
    assert len(steps.names()) == at + 1, "it died there"
    steps.choose(None)
    return crash


def end_of_driver(crash: Crash, run: str) -> int | None:
    """Run the stream in a process of its own. Return its exit code, or None if it hangs."""
    driver = SPAWN.Process(target=drive, args=(crash.folder, run))
    driver.start()
    driver.join(PATIENCE)
    code = driver.exitcode
    driver.kill()
    return code


def drive(folder: Path, run: str) -> None:
    """Run the stream in a process group that a step kills, with its JVM."""
    os.setsid()
    session = session_with(new_session(folder / "warehouse"), watch)
    getattr(Crash(session, folder), run)()


@pytest.mark.delta
@pytest.mark.parametrize(
    ("run", "side"),
    [
        ("into_foreach_batch", "driver"),
        ("into_foreach_batch", "runner"),
        ("into_plain_sink", "runner"),
    ],
)
def test_killed_at_any_point_a_batch_lands_once_in_a_delta_table(
    watched_spark: Any, tmp_path: Path, run: str, side: str
) -> None:
    found = points(watched_spark, tmp_path, run, side)
    sure = max(at for at, name in enumerate(found) if name == SURE[side])
    for at in range(sure % STEP, len(found), STEP):
        crash = crashed(watched_spark, tmp_path, run, side, at)
        getattr(crash, run)()
        crash.assert_once(f"{found[at]} (number {at} of {side})")


@pytest.mark.delta
@pytest.mark.parametrize("side", [pytest.param("driver", marks=IN_FAULT), "runner"])
@pytest.mark.parametrize("run", ["into_table", pytest.param("into_queue", marks=IN_FAULT)])
def test_killed_three_times_in_a_row_a_batch_lands_once_in_the_sink_of_its_group(
    watched_spark: Any, tmp_path: Path, run: str, side: str
) -> None:
    found = points(watched_spark, tmp_path, run, side)
    sure = max(at for at, name in enumerate(found) if name == SURE[side])
    for at in range(sure % STEP, len(found), STEP):
        crash = crashed(watched_spark, tmp_path, run, side, at)
        for _ in range(2):
            crash_again(crash, run, side, at)
        getattr(crash, run)()
        crash.assert_once(f"{found[at]} (number {at} of {side})")


def crash_again(crash: Crash, run: str, side: str, at: int) -> None:
    """Kill the stream at a step again, unless a shorter run ends before that."""
    steps: Steps = getattr(crash, side)
    steps.choose(at)
    if side == "driver":
        assert end_of_driver(crash, run) in (0, -signal.SIGKILL)
    else:
        with contextlib.suppress(StreamingQueryException):
            getattr(crash, run)()
    steps.choose(None)


@pytest.mark.delta
def test_killed_between_a_plain_delta_sink_and_sparks_note_of_it_a_batch_lands_once(
    watched_spark: Any, tmp_path: Path
) -> None:
    found = points(watched_spark, tmp_path, "into_plain_sink", "runner")
    second = [at for at, name in enumerate(found) if name == "before latestOffset"][1]
    crash = crashed(watched_spark, tmp_path, "into_plain_sink", "runner", second)
    landed = watched_spark.read.format("delta").load(crash.out).count()
    assert (landed, Queue.open(crash.path).group("g").stats().leased) == (3, 3)
    forget_last_commit(crash.folder / "checkpoint")
    crash.into_plain_sink()
    crash.assert_once("before Spark noted the batch")
