"""Ctrl-C at any line of any public call: the handle works afterwards, also for other threads.

A signal handler waits for no lock.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from support.byte_store import Injected
from support.handles import Killed, die, lease, until
from support.marks import slow
from support.people import signed_in
from support.rule_variants import find_rule, first, rule_variant
from support.tables import ledgers_of

import spark_mq
from spark_mq import Queue
from spark_mq.parquet.reader import read_turns
from spark_mq.spark import on_sigterm
from spark_mq.testing import memory_queue

# Nobody gets an error of __del__, and the system frees what it would have closed. An interrupted
# walk through a folder is closed only when Python collects it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(LocalTurn.__del__|ScandirIterator):pytest.PytestUnraisableExceptionWarning"
)
PACKAGE = os.path.dirname(spark_mq.__file__)
Line = tuple[str, int]


@functools.cache
def uninterrupted(code: CodeType) -> set[int]:
    """Where Python runs no signal handler: between the end of a ``with`` block and __exit__, and at
    ``try:``.
    """
    every = list(dis.get_instructions(code))
    found = {one.offset for one in every if one.opname == "NOP"}
    steps = [one for one in every if one.opname not in ("CACHE", "PRECALL", "NOP")]
    for at, step in enumerate(steps[:-3]):
        nones = all(one.opname == "LOAD_CONST" and one.argval is None for one in steps[at : at + 3])
        if nones and steps[at + 3].opname.startswith("CALL"):
            found.add(step.offset)
    return found


class Interrupter:
    """Raises KeyboardInterrupt at the first event of one line, in this thread."""

    def __init__(self, at: Line | None = None) -> None:
        self.at, self.lines, self.fired = at, dict[Line, None](), False

    def run(self, act: Callable[[], Any]) -> None:
        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        sys.settrace(self._call)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                act()
        finally:
            sys.settrace(None)
            # A worker's handlers, where no real Ctrl-C raises: their restoring was interrupted.
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lasti not in uninterrupted(frame.f_code):
            line = (frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno)
            self.lines[line] = None
            if line == self.at and not self.fired:
                self.fired = True
                raise KeyboardInterrupt
        return self._line


def published(queue: Queue) -> None:
    queue.publish(["a", "b"])


def leased(queue: Queue) -> Any:
    published(queue)
    return lease(queue, 1)


def published_to_group(queue: Queue) -> int:
    queue.group().ensure()
    return queue.publish(["a", "b"]).sequences[0]


def worked(queue: Queue, **options: Any) -> None:
    queue.group().work(lambda _: None, until="empty", **options)


def published_one_by_one(queue: Queue) -> None:
    with queue.publisher() as publisher:
        publisher.publish("a").result(30)


def paused_and_resumed(queue: Queue) -> None:
    queue.group().pause("a deployment")
    queue.group().resume()


def dead(queue: Queue) -> None:
    leased(queue).reject()


def routed(queue: Queue) -> None:
    dead(queue)
    queue.sweep()


CALLS: dict[str, tuple[Callable[[Queue], Any], Callable[[Queue, Any], Any]]] = {
    "publish": (lambda queue: None, lambda queue, _: published(queue)),
    "lease": (published, lambda queue, _: lease(queue, 1)),
    "read": (leased, lambda _, taken: taken.table()),
    "ack": (leased, lambda _, taken: taken.ack()),
    "nack": (leased, lambda _, taken: taken.nack(delay=0)),
    "reject": (leased, lambda _, taken: taken.reject()),
    "release": (leased, lambda _, taken: taken.release()),
    "extend": (leased, lambda _, taken: taken.extend()),
    "stats": (leased, lambda queue, _: queue.group().stats()),
    "configure": (published, lambda queue, _: queue.group().configure(max_failures=7)),
    "seek": (published, lambda queue, _: queue.group().seek("earliest")),
    "expire": (leased, lambda queue, _: queue.group().expire()),
    "work": (published, lambda queue, _: worked(queue, mode="batch")),
    "work by message": (published, lambda queue, _: worked(queue, mode="message", threads=2)),
    "publisher": (lambda queue: None, lambda queue, _: published_one_by_one(queue)),
    "pause": (published, lambda queue, _: paused_and_resumed(queue)),
    "discard": (published_to_group, lambda queue, sequence: queue.group().discard(sequence)),
    "dead letter": (published_to_group, lambda queue, at: queue.group().dead_letter(at)),
    "peek": (leased, lambda queue, _: (queue.group().peek(5), queue.group().leases())),
    "trace": (leased, lambda queue, taken: queue.trace(taken.messages[0].sequence)),
    "sweep": (dead, lambda queue, _: queue.sweep()),
    "redrive": (routed, lambda queue, _: queue.redrive()),
}


def use(queue: Queue) -> None:
    """What must work after an interrupt."""
    queue.publish("x")
    taken = queue.group().lease("w", max_messages=1_000)
    if taken is not None:
        taken.table()
        taken.extend()
        taken.ack()
    queue.group().stats()


def works(queue: Queue) -> str:
    """Why the handle does not work, in another thread or in this one. Empty if it does."""
    wrong = list[str]()

    def run() -> None:
        try:
            use(queue)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    started = time.monotonic()
    thread.start()
    thread.join(60)
    if thread.is_alive():
        return "it hangs"
    if time.monotonic() - started > 10:
        wrong.append("it is slow")
    run()
    if (user := signed_in()) is not None:
        wrong.append(f"later calls act as {user}")
    if read_turns.owners:
        wrong.append(f"{len(read_turns.owners)} threads keep their turn")
    return ", ".join(wrong)


def interrupt(call: str, fresh: Callable[[], Queue], chosen: Callable[[int, Line], bool]) -> None:
    """Interrupts a call at each chosen line in turn, and uses the handle after each."""
    prepare, act = CALLS[call]
    queue, broken, seen, fired = fresh(), list[tuple[Line, str]](), Interrupter(), 0
    for _ in range(2):  # what is cached the second time takes other lines
        given = prepare(queue)
        seen.run(functools.partial(act, queue, given))
    lines = [line for number, line in enumerate(seen.lines) if chosen(number, line)]
    assert len(seen.lines) > 100
    for number, line in enumerate(lines):
        if number % 50 == 49:  # a queue that grows gets slow
            queue = fresh()
        given = prepare(queue)
        interrupter = Interrupter(line)
        interrupter.run(functools.partial(act, queue, given))
        fired += interrupter.fired
        if interrupter.fired and (why := works(queue)):
            broken.append((line, why))
            queue = fresh()
    assert broken == []
    assert fired >= len(lines) / 2, "the others were not reached again"


def on_delta(tmp_path: Path) -> Callable[[], Queue]:
    numbers = itertools.count()
    return lambda: Queue.create(
        tmp_path / str(next(numbers)),
        durable=False,
        max_delivery_attempts=None,
        breaker_threshold=None,  # an interrupted lease is a failed one
    )


SHARED = (
    "util/call_batcher.py", "util/fair_lock.py", "operations/committer.py", "storage/local_turn.py",
    "storage/optimistic_commit.py",
)  # fmt: skip
"""Where threads share work: make test-all interrupts each line of these."""


SOME = [("publish", 1), ("read", 1), ("lease", 21), ("ack", 21)]
"""Calls, and which of those lines make test interrupts."""

SPARSE = {"sweep": 320, "trace": 320, "redrive": 320}
"""Long calls, and which of their other lines make test-all interrupts. Of the others each 32nd."""


@pytest.mark.parametrize(
    ("call", "step"),
    [
        *SOME,
        *(
            slow(call, 8 if call in SPARSE else 1)
            for call in CALLS
            if call not in ("publish", "read")
        ),
    ],
)
def test_an_interrupt_leaves_a_handle_that_works(tmp_path: Path, call: str, step: int) -> None:
    def chosen(number: int, line: Line) -> bool:
        return number % (step if line[0] in SHARED else SPARSE.get(call, 32)) == 0

    interrupt(call, on_delta(tmp_path), chosen)


PARTS = [(call, part) for call in CALLS for part in range(16 if call in SPARSE else 1)]
"""Long calls are interrupted in several tests: none may last five minutes."""


@pytest.mark.skipif(os.environ.get("INTERRUPTS") != "all", reason="in make fault: it takes minutes")
@pytest.mark.parametrize("storage", ["memory", "delta"])
@pytest.mark.parametrize(("call", "part"), PARTS)
def test_an_interrupt_at_any_line_leaves_a_handle_that_works(
    tmp_path: Path, call: str, part: int, storage: str
) -> None:
    in_memory = functools.partial(memory_queue, max_delivery_attempts=None, breaker_threshold=None)
    fresh = on_delta(tmp_path) if storage == "delta" else in_memory
    parts = sum(name == call for name, _ in PARTS)
    interrupt(call, fresh, lambda number, line: number % parts == part)


@pytest.mark.parametrize("name", ["notifier_for", "fair_lock_for"])
def test_an_interrupt_frees_the_locks_of_the_whole_process(name: str) -> None:
    act = functools.partial(find_rule(name)[2], "memory://nowhere")
    seen = Interrupter()
    seen.run(act)
    for line in seen.lines:
        Interrupter(line).run(act)
        other = threading.Thread(target=act, daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), line


def test_interrupts_at_its_end_free_the_locks_of_a_commit(tmp_path: Path) -> None:
    queue, cut = on_delta(tmp_path)(), Injected(lambda _: None, before=die)
    close = rule_variant("LocalTurn.close", first(cut))
    with close, rule_variant("Hold.__exit__", lambda _: die), pytest.raises(Killed):
        queue.group().ensure()
    assert cut.calls == 2
    assert not ledgers_of(queue).commit_lock().owners


def test_a_process_goes_on_after_a_block_ended_by_sigterm() -> None:
    """The watchdog of the block must not end it later."""
    gave_up = threading.Event()
    with rule_variant("_give_up", lambda _: lambda *given: gave_up.set()):
        with on_sigterm(object(), lambda: None, timeout=20) as requested:
            signal.raise_signal(signal.SIGTERM)
            assert requested.wait(30)
        until(lambda: not any(isinstance(t, threading.Timer) for t in threading.enumerate()))
    assert not gave_up.is_set()
