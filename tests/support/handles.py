"""What the storage tests share: second handles, and injected faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq import ConsumerGroup, Lease, Message, Queue
from spark_mq.delta.actions import LOG_FOLDER, log_path
from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.owner_commands import Expire
from spark_mq.maintenance import dead_letters, retention
from spark_mq.maintenance import sweep as sweep_of
from spark_mq.operations.history import read_history
from spark_mq.testing import ManualClock
from spark_mq.util import failures
from spark_mq.util.clock import system_clock
from support.byte_store import ByteStore, Call, Injected
from support.limits import keeping
from support.tables import context_of, fresh_log, group_ledger_of


class Killed(BaseException):
    """The process dies here. Not an Exception: nothing in the code may handle it."""


failures.STOPS += (Killed,)


def die(*_: Any, **__: Any) -> None:
    raise Killed


def again(queue: Queue, clock: Any = None) -> Queue:
    """A second handle on the same queue, as another process has it: nothing cached, nothing shared
    but the storage.
    """
    context = context_of(queue).reopened()
    context.clock = clock or context.clock
    return Queue(context)


def contents(folder: Path | str) -> list[tuple[Path, int, int]]:
    """Every file under a folder, with its size and time: a commit, or a data file left behind,
    would show.
    """
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def memory_store() -> ObjectStore:
    """An empty store in memory."""
    files = MemoryFiles(system_clock)  # it lasts until the store has it
    return ObjectStore(files.root)


def notes(queue: Queue) -> list[dict[str, Any]]:
    """The notes of all commits to the queue's ledgers, the oldest first."""
    log = fresh_log(queue, "leases")
    return [commit.note for commit in log.commits(1, log.refresh().version)]


def lease(queue: Queue, count: int = 10, group: str = "default") -> Lease:
    """A lease that is expected to hold something."""
    found = queue.group(group).lease("w", max_messages=count)
    assert found is not None
    return found


def leased(queue: Queue, *messages: bytes | str | Message, count: int = 10) -> Lease:
    """Publish messages, and lease them or some."""
    queue.publish(messages)
    return lease(queue, count)


def sequences(lease: Lease) -> set[int]:
    return {message.sequence for message in lease.messages}


def take(group: ConsumerGroup, count: int = 1_000, **options: Any) -> list[str]:
    """Lease messages and ack them. Return their texts."""
    found = group.lease("w", max_messages=count, **options)
    if found is None:
        return []
    found.ack()
    return [message.text for message in found.messages]


def take_all(group: ConsumerGroup, **options: Any) -> list[str]:
    """Lease and ack until nothing is due. Return the texts."""
    found: list[str] = []
    while more := take(group, **options):
        found += more
    return found


def shown(error: BaseException | None) -> str:
    """All that a traceback shows of an error."""
    text = ""
    while error is not None:
        text += f"{error!s} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return text


def side_by_side(call: Callable[[], object], count: int = 8) -> None:
    """Run a function in some threads, until all have ended."""
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def end_threads(name: str) -> None:
    """Wait until the threads of this process have ended whose names begin so."""
    while threads := [each for each in threading.enumerate() if each.name.startswith(name)]:
        for thread in threads:
            thread.join(30)


def end_checkpoints() -> None:
    """Wait until the checkpoints are written that commits have begun."""
    end_threads("checkpoint-")


def until(
    condition: Callable[[], Any], what: object = "it came to that", seconds: float = 150.0
) -> Any:
    """Wait until a condition is true, and return it. Fail if it never comes true.

    That is far later than it takes, so that a busy machine fails no test.
    """
    deadline, pause = time.monotonic() + seconds, 0.002
    never = threading.Event()  # some tests take time.sleep away
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never came true: {what}"
        never.wait(pause)
        pause = min(1.2 * pause, 0.05)
    return found


def once(**what: Any) -> Injected:
    """A function for the seams: at its n-th call something happens, as in :class:`Injected`."""
    return Injected(lambda run: run(), **what)


def on_commit(patch: pytest.MonkeyPatch, table: str, **what: Any) -> Injected:
    """Inject something around the commits to the table in a folder of that name, or to any table if
    it is empty, by all handles of this process.
    """
    injected = Injected(Call.run, **what)

    def create(call: Call) -> Any:
        is_commit = call.path.startswith(LOG_FOLDER) and call.path != log_path(0)
        return (injected if is_commit else Call.run)(call)

    ByteStore(patch).on("create", act=create, of=table or None)
    return injected


@contextmanager
def killed(table: str = "", at: int = 1, when: str = "before") -> Iterator[None]:
    """Die in the block, before or after its n-th commit to a table, or to any."""
    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, table, at=at, **{when: die})
        with pytest.raises(Killed):
            yield


# -- the chores of a sweep, for a queue


def housekeep(
    queue: Queue, keep_versions: int | None = None, keep_seconds: float | None = None
) -> int:
    """Archive ledger commits, then clean the tables. Return the number of deleted files."""
    context = context_of(queue)
    archived = sweep_of.archive_history(context).up_to
    with keeping(keep_versions, keep_seconds):
        return sweep_of.clean_messages(context) + sweep_of.clean_ledgers(context, archived)


def clean_messages(queue: Queue, keep_versions: int = 0, keep_seconds: float = 0.0) -> int:
    """Clean messages/ alone, as a sweep does. Return the number of deleted files."""
    with keeping(keep_versions, keep_seconds):
        return sweep_of.clean_messages(context_of(queue))


def expire(queue: Queue) -> int:
    """Expire the leases of every group. Return the number of messages that they held."""
    return sum(group.run(Expire()) for group in context_of(queue).groups())


def trim(queue: Queue) -> int:
    return retention.trim(context_of(queue)).files


def index_commits(queue: Queue) -> int:
    return sweep_of.index_commits(context_of(queue))


def archive(queue: Queue) -> int:
    return sweep_of.archive_history(context_of(queue)).commits


def publish_due(queue: Queue, schedule: str) -> int:
    return sweep_of.publish_due(context_of(queue), schedule)


def complete(queue: Queue, batch: str) -> int:
    return sweep_of.complete_batch(context_of(queue), batch)


def archived(queue: Queue) -> int:
    """The last version of ``leases/`` that has been archived."""
    return context_of(queue).history.read([])[1]


def history(queue: Queue, **options: Any) -> Any:
    return read_history(context_of(queue), **options)


def route(group: ConsumerGroup) -> int:
    return dead_letters.route_dead_letters(context_of(group), group_ledger_of(group))


def trimmable(make: Callable[..., Queue], clock: ManualClock) -> Queue:
    """Three publishes, settled by a group, and past the retention."""
    queue = make(retention="1d")
    for value in "abc":
        queue.publish(value)
    lease(queue).ack()
    clock.advance("2d")
    return queue
