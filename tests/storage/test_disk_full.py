"""A store that is full or read-only, at each step: the caller gets an error, nothing is lost, and
with space again everything goes on.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.handles import again, archive, housekeep, index_commits, lease, route, sweep, trim
from support.tables import group_ledger_of, messages_of

from spark_mq import Queue, errors
from spark_mq.testing import ManualClock

NOBODY = 65534
VALUES = [f"m{n}".encode() for n in range(8)]


class Disk:
    """A folder on a disk. With `room`, there is some for so many files and half of the next one."""

    def __init__(self, path: Path, byte_store: ByteStore) -> None:
        self.path, self.room, self.code = path, math.inf, errno.ENOSPC
        byte_store.on("write_new", act=self._write)

    def _write(self, call: Call) -> None:
        self.room -= 1
        if self.room >= 0:
            return call.run()
        path, data, _ = call.args
        call.run(path, bytes(data)[: len(data) // 2], False)
        raise OSError(self.code, os.strerror(self.code), path)

    @contextmanager
    def full(self, room: int) -> Iterator[None]:
        self.room = room
        try:
            yield
        finally:
            self.room = math.inf

    @contextmanager
    def read_only(self) -> Iterator[None]:
        user = os.geteuid()
        folders = [self.path, *(path for path in self.path.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o555)
        try:
            if user == 0:  # root may do everything everywhere
                os.seteuid(NOBODY)
            yield
        finally:
            os.seteuid(user)
            for folder in folders:
                folder.chmod(0o755)


@pytest.fixture
def disk(byte_store: ByteStore) -> Iterator[Disk]:
    """A disk of which every user may read: pytest's folders are its own user's."""
    with tempfile.TemporaryDirectory(prefix="spark_mq-disk-") as folder:
        Path(folder).chmod(0o755)
        yield Disk(Path(folder), byte_store)


class World:
    """A queue on a disk: eight messages, of which a lease holds four.

    One is dead, one is done.
    """

    def __init__(self, disk: Disk, clock: ManualClock) -> None:
        self.disk, self.clock = disk, clock
        self.queue = Queue.create(
            disk.path / "queue", clock=clock, retention=0, max_delivery_attempts=9, retry_delay=0
        )
        self.queue.publish(VALUES[:4])
        self.queue.publish(VALUES[4:])
        first = lease(self.queue, 2)
        first.reject([first.messages[0].sequence])
        first.ack()
        self.held = lease(self.queue, 4)
        self.published = Counter(VALUES)
        self.seen = Counter({VALUES[1]: 1})  # what ended as done

    def facts(self) -> Any:
        """What a new process finds."""
        queue = again(self.queue)
        return messages_of(queue).index().files, {
            name: list(group_ledger_of(queue.group(name)).current()) for name in queue.groups()
        }

    def finish(self) -> None:
        """All goes on, and each message ends: acked, or as a dead letter with its payload."""
        self.clock.advance("1h")
        queue = again(self.queue)
        while (taken := queue.group().lease("last", max_messages=100)) is not None:
            self.seen.update(m.value for m in taken.messages)
            taken.ack()
        queue.sweep()
        found = queue.dead_letters.group("look").lease("w", max_messages=100)
        for m in found.messages if found else []:
            self.seen[m.value] += 1
        assert self.seen == self.published
        stats = queue.group().stats()
        assert stats.acked + stats.dead_lettered == self.published.total()


def publish(world: World) -> None:
    world.queue.publish("new")
    world.published[b"new"] += 1


def publish_buffered(world: World) -> None:
    with world.queue.publisher(linger="1ms", retry_timeout="1ms") as publisher:
        publisher.publish("new").result()
    world.published[b"new"] += 1


def take(world: World) -> None:
    lease(world.queue, 1)


def ack(world: World) -> None:
    values = [m.value for m in world.held.messages]
    world.held.ack()
    world.seen.update(values)


STEPS: dict[str, Callable[[World], object]] = {
    "publish": publish,
    "buffered publish": publish_buffered,
    "lease": take,
    "ack": ack,
    "nack": lambda world: world.held.nack(delay=0),
    "reject": lambda world: world.held.reject(),
    "release": lambda world: world.held.release(),
    "extend": lambda world: (world.clock.advance("1s"), world.held.extend()),
    "make a group": lambda world: world.queue.group("fresh").ensure(),
    "configure": lambda world: world.queue.group().configure(max_failures=7),
    "route": lambda world: route(world.queue.group()),
    "trim": lambda world: trim(world.queue),
    "index": lambda world: index_commits(world.queue),
    "archive": lambda world: archive(world.queue),
    "housekeep": lambda world: housekeep(world.queue),
    "sweep": lambda world: sweep(world.queue),
    "create": lambda world: Queue.create(world.disk.path / "other", exist_ok=True),
}
ONE_COMMIT = set(list(STEPS)[:10])


def reported(error: errors.StorageError, world: World, *, of: str) -> None:
    assert isinstance(error, OSError)
    assert str(world.disk.path) in str(error)
    assert of in str(error)
    assert "nothing was changed" in str(error)
    assert "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("code", "step"),
    [(errno.ENOSPC, step) for step in STEPS]
    + [(code, step) for code in (errno.EDQUOT, errno.EFBIG) for step in ("publish", "sweep")],
)
def test_a_disk_that_is_full_at_any_file_is_reported_and_loses_nothing(
    disk: Disk, clock: ManualClock, code: int, step: str
) -> None:
    world, disk.code = World(disk, clock), code
    if step == "trim":
        world.held.ack()
        world.seen.update(m.value for m in world.held.messages)
        route(world.queue.group())
        clock.advance("1m")
    before, failures = world.facts(), 0
    for room in range(40):
        try:
            with disk.full(room):
                STEPS[step](world)
            break
        except errors.StorageError as error:
            reported(error, world, of="full")
            failures += 1
        if step in ONE_COMMIT:
            assert world.facts() == before, "nothing was changed"
    else:
        pytest.fail("it never went on")
    assert failures > 0
    STEPS["publish"](world)
    world.finish()


def test_a_full_disk_is_not_filled_by_what_could_not_be_published(
    disk: Disk, clock: ManualClock
) -> None:
    world = World(disk, clock)
    before = {path for path in disk.path.rglob("*") if path.is_file()}
    for room in range(2):
        with disk.full(room), pytest.raises(errors.StorageError):
            world.queue.publish(os.urandom(3 * 4096))
    assert {path for path in disk.path.rglob("*") if path.is_file()} == before


def test_a_read_only_store_is_reported_at_each_step_and_can_be_looked_at(
    disk: Disk, clock: ManualClock
) -> None:
    world = World(disk, clock)
    before = world.facts()
    with disk.read_only():
        for name, step in STEPS.items():
            if name in ("trim", "route"):  # what they would do takes other states: see above
                continue
            with pytest.raises(errors.StorageError) as caught:
                step(world)
            reported(caught.value, world, of="writable for this user")
        assert world.facts() == before
        assert again(world.queue).stats()["published"] == 8
        assert [m.value for m in world.held.messages] == VALUES[2:6]
    ack(world)
    world.finish()
