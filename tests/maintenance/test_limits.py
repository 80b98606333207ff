"""What a process may use: descriptors, memory, and work for each commit, however large a queue is.

Each limit is checked in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from support.byte_store import ByteStore
from support.tables import group_ledger_of, ledgers_of

from spark_mq import Queue

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not say what a process uses"
)

PEAK = """
    from pathlib import Path

    def used(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) / 1024
"""
"""VmRSS is what is resident now, VmHWM the most that ever was, in MB."""


def run(code: str, *arguments: object) -> list[str]:
    """Run code in a process of its own, and return what it printed."""
    command = [sys.executable, "-c", dedent(PEAK) + dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


# -- descriptors


@pytest.mark.slow
def test_many_groups_and_queues_need_few_descriptors(tmp_path: Path) -> None:
    """A handle kept two files open for each group: 128 descriptors ended at the 56th."""
    code = """
        import os, resource, sys
        from spark_mq import Queue

        root = sys.argv[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        queue = Queue.create(f"{root}/groups", durable=False)
        queue.publish("x")
        for number in range(150):
            queue.group(f"g{number}").lease("w").ack()
        report = queue.sweep()
        queues = [Queue.create(f"{root}/q{number}", durable=False) for number in range(60)]
        for queue in queues:
            queue.publish("x")
        for queue in queues:
            queue.group().lease("w").ack()
        print(report.archived_commits > 300, len(os.listdir("/proc/self/fd")))
    """
    archived, descriptors = run(code, tmp_path)
    assert archived == "True"
    assert int(descriptors) < 32


# -- work for each group and commit


@pytest.fixture
def calls(byte_store: ByteStore) -> list[str]:
    """The paths of the calls of the store, as they are made."""
    return byte_store.paths(
        *("read", "open", "read_parquet", "stat", "write", "create", "delete", "list")
    )


def with_groups(path: Path, count: int) -> Queue:
    queue = Queue.create(path, durable=False)
    queue.publish([str(number) for number in range(100)])
    for number in range(count):
        queue.group(f"g{number}").lease("w")
    return queue


def test_the_calls_of_a_sweep_grow_by_the_same_for_each_group(
    tmp_path: Path, calls: list[str]
) -> None:
    needed = []
    for count in (10, 30, 50):
        queue = with_groups(tmp_path / str(count), count)
        queue.sweep()
        calls.clear()
        queue.sweep()
        needed.append(len(calls))
    assert needed[2] - needed[1] <= needed[1] - needed[0] + 2
    assert (needed[1] - needed[0]) / 20 <= 16


def test_a_sweep_reads_each_of_10_000_ledgers_once(tmp_path: Path, calls: list[str]) -> None:
    """A handle kept 2,000 ledgers, so with more groups a sweep read each of them three times."""
    queue = with_groups(tmp_path / "queue", 20)
    ledgers = ledgers_of(Queue.open(tmp_path / "queue"))
    ledger = group_ledger_of(queue.group("g0")).current()
    for number in range(10_000 - 20):
        ledgers._cache[f"other{number}"] = (("file",), ledger)
    for name in ledgers.groups():
        ledgers.read(name)
    calls.clear()
    for name in (*ledgers.groups(), "other0"):
        ledgers.read(name)
    assert not [call for call in calls if call.endswith(".parquet")]
    assert ledgers._cache._weight == 10_000 * (20 + ledger.size)


def steps_of(queue: Queue, group: str) -> int:
    """The calls of Python functions that a lease and an ack make."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        lease = queue.group(group).lease("w")
        lease.ack()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("group", ["g0", "a-new-one"])
def test_a_lease_costs_the_same_with_many_groups(tmp_path: Path, group: str) -> None:
    """A new group was compared with the names of all others."""
    few, many = (with_groups(tmp_path / str(count), count) for count in (10, 150))
    for queue in (few, many):
        steps_of(queue, "g1")
    assert steps_of(many, group) <= 1.25 * steps_of(few, group)


# -- memory


def dead_messages(path: Path, count: int, size: int) -> Queue:
    """Dead messages that need as much memory as they have bytes: they are not compressible."""
    queue = Queue.create(path, durable=False)
    with open("/dev/urandom", "rb") as random:
        for _ in range(0, count * size, 20_000_000):
            values = [random.read(size) for _ in range(20_000_000 // size)]
            queue.publish(pa.table({"value": pa.array(values, pa.binary())}))
    for lease in leases(queue):
        lease.reject(error="no")
    return queue


def leases(queue: Queue) -> Iterator:
    while (lease := queue.group().lease("w", max_messages=10**6)) is not None:
        yield lease


PROCESS_MB = 512
"""What a process of chores may use in all, with its libraries, for any backlog."""


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(120_000, 1_000), (60, 2_000_000), (240, 2_000_000)])
def test_routing_and_redrive_need_little_memory(tmp_path: Path, count: int, size: int) -> None:
    """Large values were read 100 at once: 480 MB of dead letters took 1.3 GB to redrive."""
    dead_messages(tmp_path / "queue", count, size)
    for call in (
        "q.sweep().routed",
        "q.redrive(where=\"consumer_group = 'nobody'\").messages",
        "q.redrive().messages",
    ):
        code = f"""
            import sys
            from spark_mq import Queue

            q = Queue.open(sys.argv[1])
            print({call}, int(used("VmHWM")))
        """
        messages, peak = map(int, run(code, tmp_path / "queue"))
        assert messages == (0 if "nobody" in call else count)
        assert peak < PROCESS_MB


@pytest.mark.slow
def test_a_large_index_is_small_in_memory(tmp_path: Path) -> None:
    """The objects of 200,000 files took 210 MB."""
    code = """
        import sys, uuid
        from spark_mq import Queue
        from spark_mq.ledger.message_index import DataFile, sequence

        queue = Queue.create(sys.argv[1], durable=False)
        table = queue._context.messages
        published = table.published()
        for number in range(1, 200_001):
            file = DataFile(sequence(number, 0), 1, f"part-{uuid.uuid4()}.parquet", 900, 10**15)
            published.index = published.index.extended([file], number)
        table.commits.index(published, 0)
    """
    run(code, tmp_path / "queue")
    code = """
        import sys
        from spark_mq import Queue

        table = Queue.open(sys.argv[1])._context.messages
        before = used("VmRSS")
        published = table.none_published()
        published.load_rows(*table.commits.read_after())
        assert published.knows(published.index.files[77].path)
        print(len(published.index.files), int(used("VmRSS") - before))
    """
    files, memory = map(int, run(code, tmp_path / "queue"))
    assert files == 200_000
    assert memory < 130
