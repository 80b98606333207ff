"""What runs, dies and is run again under ``make fault``: each a process of its own that works until
it is killed or asked to stop.

What an actor has seen confirmed, or done, it writes down in a file of its own before it goes on,
for the check at the end.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_mq import Lease, Message, Queue
from spark_mq.errors import ContentionTimeout, LeaseLost, SparkMQError, StorageError

POISON = b"poison"
GROUP, SPARK = "python", "spark"


@dataclass(frozen=True)
class Flag:
    """An event for processes that may be killed at any instant: a file.

    (multiprocessing's own leaves a lock behind with the dead.)
    """

    file: Path

    def set(self) -> None:
        self.file.touch()

    def is_set(self) -> bool:
        return self.file.exists()

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return self.is_set()


class Journal:
    """A file of this process: lines of sequences, each whole or not there."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{kind}-{os.getpid()}-{random.getrandbits(32):08x}").open("a")

    def write(self, sequences: Any) -> None:
        self._file.write(" ".join(map(str, sequences)) + "\n")
        self._file.flush()


def journals(folder: Path, kind: str) -> set[int]:
    """Read the journals of a kind. A last line that was cut off counts for nothing."""
    found: set[int] = set()
    for file in folder.glob(f"{kind}-*"):
        for line in file.read_text().split("\n")[:-1]:
            found.update(map(int, line.split()))
    return found


def _key() -> str | None:
    """Return a key at random: a third of all messages have one key, a tenth have none."""
    return random.choices((None, "key-0", f"key-{random.randint(1, 40)}"), (10, 33, 57))[0]


def _message(value: str, message_id: str | None = None) -> Message:
    priority = random.choices((0, 5, 9), (90, 5, 5))[0]
    return Message(value, key=_key(), message_id=message_id, priority=priority)


def _messages(kind: str, number: int, count: int) -> list[Message]:
    return [_message(f"{kind} {number} {n}", f"{kind}-{number}-{n}") for n in range(count)]


def opened(path: str, stop: Flag) -> Queue:
    """The queue, as soon as the storage lets this process open it."""
    while True:
        try:
            return Queue.open(path)
        except (SparkMQError, OSError):
            if stop.wait(0.2):
                raise SystemExit(0) from None


def publish(path: str, notes: Path, stop: Flag, name: str) -> None:
    """A producer that numbers its calls, and goes on after the last number that landed."""
    queue, journal = opened(path, stop), Journal(notes, "published")
    while not stop.wait(random.uniform(0.1, 0.6)):
        with suppress(StorageError, KeyboardInterrupt):  # it may have landed all the same
            number = (queue.last_producer_sequence(name) or 0) + 1
            messages = _messages(name, number, random.randint(1, 40))
            named = {"producer_id": name, "producer_sequence": number}
            journal.write(queue.publish(messages, **named, on_duplicate="skip").sequences)


def publish_buffered(path: str, notes: Path, stop: Flag, name: str) -> None:
    """Single messages through the buffered publisher.

    Which of them a crash takes is not known before their result is.
    """
    journal = Journal(notes, "published")
    with opened(path, stop).publisher(max_messages=50, linger="50ms") as publisher:
        while not stop.wait(random.uniform(0.1, 0.5)):
            with suppress(StorageError):
                messages = [_message(f"{name} {n}") for n in range(random.randint(1, 20))]
                waiting = [publisher.publish(message) for message in messages]
                journal.write([one.result(60) for one in waiting])


def poison(lease: Lease) -> bool:
    return any(m.value == POISON for m in lease.messages)


def work(path: str, notes: Path, stop: Flag, name: str) -> None:
    """The worker loop.

    It dies of poison; what it returns fails or is rejected at times, by single messages.
    """
    journal, ended, worked = Journal(notes, "done"), threading.Event(), threading.Event()

    def handle(lease: Lease) -> list[dict[str, Any]]:
        worked.set()
        if poison(lease):
            os.kill(os.getpid(), signal.SIGKILL)
        stop.wait(random.uniform(0, 0.2))  # its work
        flaky = [
            m.sequence for m in lease.messages if random.random() < 0.01 and m.delivery_count < 3
        ]
        journal.write([m.sequence for m in lease.messages if m.sequence not in flaky])
        return [
            {"sequence": seq, "outcome": "nack", "delay": random.uniform(0, 0.3), "error": "flaky"}
            for seq in flaky
        ]

    def watch() -> None:
        while not stop.wait(0.2):
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    group = opened(path, stop).group(GROUP)
    size: dict[str, Any] = {"max_messages": 60, "threads": 2, "poll_interval": "100ms"}
    while not ended.is_set():
        try:
            group.work(handle, mode="batch", worker_id=name, stop=ended, **size)
        except KeyboardInterrupt:
            continue  # the handle works afterwards
        except StorageError as error:
            if worked.is_set() or not error.lasting:
                raise
            stop.wait(0.2)  # it began in an outage, so what supervises it starts it again


def settle(path: str, notes: Path, stop: Flag, name: str) -> None:
    """Leases by hand, and settles as it comes: parts, late, twice, not at all."""
    group, journal = opened(path, stop).group(GROUP), Journal(notes, "done")
    while not stop.is_set():
        try:
            lease = group.lease(name, max_messages=40, wait="500ms", poll_interval="100ms")
            if lease is None:
                continue
            if poison(lease):
                os.kill(os.getpid(), signal.SIGKILL)
            _settle(lease, journal, stop)
        except (StorageError, KeyboardInterrupt, LeaseLost, ContentionTimeout):
            continue  # the lease expires, or somebody else has it now, as this one was slow


def _settle(lease: Lease, journal: Journal, stop: Flag) -> None:
    sequences = [m.sequence for m in lease.messages]
    first, second = sequences[: len(sequences) // 2], sequences[len(sequences) // 2 :]
    what = random.random()
    if what < 0.04:
        return  # forgotten
    if what < 0.1:
        lease.release()
        return
    if what < 0.15:
        stop.wait(random.uniform(1.5, 3))  # past its deadline
    elif what < 0.3:
        lease.extend()
    if what > 0.95:
        lease.nack(delay=random.uniform(0, 0.5))
    elif what > 0.9:
        lease.nack(second[-1:], delay=0)
    journal.write(first)
    lease.ack(first)
    journal.write(second)
    lease.ack()
    if what < 0.5:
        lease.ack(first)  # once more: reported as settled already


def chores(path: str, notes: Path, stop: Flag, name: str) -> None:
    """A sweeper; two of them at once do no harm."""
    queue = opened(path, stop)
    while not stop.wait(random.uniform(0, 0.5)):
        with suppress(StorageError, KeyboardInterrupt):
            queue.sweep()
