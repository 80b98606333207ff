"""A store that is full or read-only, at each step: the caller gets an error, nothing is lost, and
with space again everything goes on.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash_points import CASES, Case, Report, publish
from support.byte_store import ByteStore, Call
from support.handles import again, lease
from support.marks import slow
from test_crash_points import checked, prepared
from test_failing_calls import entries

from spark_mq import Queue, errors

NOBODY = 65534


class Disk:
    """A folder on a disk. With `room`, there is some for so many files and half of the next one."""

    def __init__(self, path: Path, byte_store: ByteStore) -> None:
        self.path, self.room, self.code = path, math.inf, errno.ENOSPC
        self.entries: set[str] = set()
        """The entries of logs when it was full."""
        byte_store.on("write_new", act=self._write)

    def _write(self, call: Call) -> None:
        self.room -= 1
        if self.room >= 0:
            return call.run()
        self.entries = entries(self.path)
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
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    with tempfile.TemporaryDirectory(prefix="spark_mq-disk-", dir=root) as folder:
        Path(folder).chmod(0o755)
        yield Disk(Path(folder), byte_store)


def publish_once(queue: Queue, _: Report) -> None:
    with queue.publisher(linger="1ms", retry_timeout="1ms") as publisher:
        publisher.publish("new").result()


def create_another(queue: Queue, _: Report) -> None:
    Queue.create(f"{queue.path}-other", exist_ok=True)


WAITING = {"buffered publisher", "work", "stream", "ordered stream"}
"""What waits until there is space again. See tests/operations/test_outages.py."""
CALLS = [
    *(case for case in CASES if case.name not in WAITING),
    Case("buffered publish", publish_once),
    Case("create", create_another, publish, repeated=True),
]
OF_CALLS = pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)


def check_error(error: errors.StorageError, disk: Disk, *, of: str) -> None:
    assert isinstance(error, OSError)
    assert str(disk.path) in str(error)
    assert of in str(error)
    assert "nothing was changed" in str(error)
    assert "\x1b" not in str(error)


LARGE = [case for case in CALLS if case.name in ("checkpoint", "sweep")]
"""Calls that write so many files that `make test` tries some."""


@pytest.mark.parametrize(
    ("case", "code", "step"),
    [
        *((case, errno.ENOSPC, 1) for case in CALLS if case not in LARGE),
        *((case, errno.ENOSPC, 6) for case in LARGE),
        *(slow(case, errno.ENOSPC, 1) for case in LARGE),
        (CALLS[0], errno.EDQUOT, 1),
        (CALLS[0], errno.EFBIG, 1),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_a_disk_that_is_full_at_any_file_is_reported_and_loses_nothing(
    disk: Disk, case: Case, code: int, step: int
) -> None:
    path, template = prepared(case, disk.path)
    disk.code = code
    for room in range(0, 60, step):
        queue, reported = case.opened(path), list[int]()
        try:
            with disk.full(room):
                case.act(queue, reported.extend)
            break
        except errors.StorageError as error:
            check_error(error, disk, of="full")
        assert entries(disk.path) == disk.entries, "nothing was changed"
        checked(case, path, reported, f"full after {room} files")
        shutil.rmtree(path)
        shutil.copytree(template, path)
    else:
        pytest.fail("it never went on")
    assert room > 0


def test_a_full_disk_is_not_filled_by_what_could_not_be_published(disk: Disk) -> None:
    queue = Queue.create(disk.path / "queue")
    queue.publish("a")
    before = {path for path in disk.path.rglob("*") if path.is_file()}
    for room in range(2):
        with disk.full(room), pytest.raises(errors.StorageError):
            queue.publish(os.urandom(3 * 4096))
    assert {path for path in disk.path.rglob("*") if path.is_file()} == before


@OF_CALLS
def test_a_read_only_store_is_reported_at_each_step(disk: Disk, case: Case) -> None:
    path, _ = prepared(case, disk.path)
    before, queue = entries(disk.path), case.opened(path)
    with disk.read_only():
        with pytest.raises(errors.StorageError) as caught:
            case.act(queue, lambda _: None)
        check_error(caught.value, disk, of="writable for this user")
        assert entries(disk.path) == before
    checked(case, path, [], "read-only")


def test_a_read_only_store_can_be_looked_at(disk: Disk) -> None:
    queue = Queue.create(disk.path / "queue")
    publish(queue, 8)
    held = lease(queue, 4)
    with disk.read_only():
        assert again(queue).stats()["published"] == 8
        assert [m.text for m in held.messages] == ["m0", "m1", "m2", "m3"]
    assert held.ack().settled == 4
