"""Ctrl-C in a worker: what it waits for, and what a second one gives back."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.handles import again, lease, until
from support.rule_variants import first, rule_variant
from support.tables import on_commands

from spark_mq import Queue

NUMBERS = signal.SIGINT, signal.SIGTERM
MODES = pytest.mark.parametrize("mode", ["batch", "message"])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[Any]]:
    """The handlers of both signals before the test, which are there again after it."""
    before = [signal.getsignal(number) for number in NUMBERS]
    yield before
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class Looked(threading.Event):
    """An event at which an idle worker looks first, and does some things in its main thread."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        super().__init__()
        self.acts = list(acts)

    def is_set(self) -> bool:
        while self.acts and threading.current_thread() is threading.main_thread():
            self.acts.pop()()
        return super().is_set()

    def work(self, queue: Queue) -> None:
        queue.group().work(lambda _: None, mode="message", stop=self)


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def waiting(caplog: pytest.LogCaptureFixture) -> bool:
    return "Ctrl-C: waiting up to 30 s for" in caplog.text


@MODES
def test_ctrl_c_says_what_it_waits_for_and_settles_it(
    queue: Queue, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one ends no settle that the thread of a handler has begun."""
    queue.publish([str(n) for n in range(20)])
    calls, looks = list[Any](), list[str]()

    def press_again(run: Callable[[], Any], commands: Any) -> Any:
        if mode == "batch" and commands[0].lease_ids:
            press_ctrl_c()
            until(lambda: looks.count("is_settling") > 1)
        return run()

    def handle(work: Any) -> None:
        calls.append(work)
        press_ctrl_c()
        until(lambda: waiting(caplog) and looks.count("is_empty") > 1)

    before = signal.getsignal(signal.SIGINT)  # a Spark session in this process sets its own
    on_commands(monkeypatch, press_again)
    with contextlib.ExitStack() as noting:
        for name in ("is_empty", "is_settling", "wait"):
            note = first(lambda _, name=name: looks.append(name))
            noting.enter_context(rule_variant(f"OpenTasks.{name}", note))
        with pytest.raises(KeyboardInterrupt) as interrupt:
            queue.group().work(handle, mode=mode, poll_interval="10ms")
    assert all("wait" in pair for pair in itertools.pairwise(looks)), "it does not spin"
    (work,) = calls
    name = f"lease {work.lease_id}" if mode == "batch" else f"message {work.sequence}"
    assert re.search(rf"for 1 handler: {name} .*\(running for \d\d?\.\d s\)", caplog.text)
    assert "Press Ctrl-C again to end at once" in caplog.text
    (summary,) = interrupt.value.args
    assert (summary.acked, summary.failed) == (1, 0)
    stats = queue.group().stats()
    assert (stats.acked, stats.ready, stats.leased) == (1, 19, 0)
    assert signal.getsignal(signal.SIGINT) is before


@MODES
@pytest.mark.parametrize("own", [False, True], ids=["Python's handler", "own handler"])
def test_a_second_ctrl_c_ends_at_once_and_gives_back_what_is_held(
    queue: Queue, mode: str, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(n) for n in range(9)])
    go_on, ended = threading.Event(), threading.Semaphore(0)
    started = threading.Barrier(2)

    def handle(_: Any) -> None:
        if started.wait(30) == 0:
            press_ctrl_c()
            until(lambda: waiting(caplog))
            press_ctrl_c()
        assert go_on.wait(60)
        ended.release()

    if own:
        signal.signal(signal.SIGINT, interrupt)
    before = signal.getsignal(signal.SIGINT)
    options = {"max_messages": 4, "visibility_timeout": "1h", "poll_interval": "1h"}
    with pytest.raises(KeyboardInterrupt):
        queue.group().work(handle, mode=mode, threads=2, **options)
    assert signal.getsignal(signal.SIGINT) is before
    assert caplog.text.count("for 2 handlers: ") == 1
    stats = queue.group().stats()
    assert (stats.ready, stats.leased, stats.acked) == (9, 0, 0)
    held = lease(again(queue), 9)
    assert [m.delivery_count for m in held.messages] == [1] * 9, "uncounted"
    go_on.set()
    for _ in range(2):
        assert ended.acquire(timeout=30)
    assert held.ack().settled == 9, "the late ends of the handlers change nothing"


@pytest.mark.parametrize(("pressed", "left"), [(1, 0), (4, 1)])
def test_ctrl_c_ends_an_idle_worker_and_a_third_one_interrupts_what_runs(
    queue: Queue, pressed: int, left: int
) -> None:
    stop = Looked(*[press_ctrl_c] * pressed)
    with pytest.raises(KeyboardInterrupt):
        stop.work(queue)
    assert len(stop.acts) == left


def test_an_interrupt_while_the_signals_are_taken_leaves_the_programs_handlers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, handlers: list[Any]
) -> None:
    """SIGTERM stayed with a worker that had never begun, so it no longer ended the process."""
    real = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        monkeypatch.undo()
        real(number, handler)
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Looked(lambda: pytest.fail("the work must not begin")).work(queue)
    assert [signal.getsignal(number) for number in NUMBERS] == handlers


def test_a_programs_own_handler_may_interrupt_at_any_line(queue: Queue) -> None:
    """It was lost, or ended the work without the wait, unless it came while the queue was read."""
    calls: list[int] = []

    def own(number: int, _: object) -> None:
        calls.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, own)
    stop = Looked(press_ctrl_c, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        stop.work(queue)
    assert (len(calls), stop.acts) == (2, [])
    assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_the_program_sets_meanwhile_or_before_stays(queue: Queue) -> None:
    Looked(terminate, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)).work(queue)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    Looked(terminate, press_ctrl_c).work(queue)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.timeout(60)
def test_sigterm_ends_a_worker_whose_thread_holds_the_lock_of_its_event(queue: Queue) -> None:
    events: list[Any] = []

    def terminate_at_first(call: Any) -> None:
        if not events and threading.current_thread() is threading.main_thread():
            events.append(call.self)
            with call.self._cond:
                terminate()

    with rule_variant("_Stop.is_set", first(terminate_at_first)):
        queue.group().work(lambda _: None, mode="message")
    assert events[0].is_set()


def test_the_text_names_five_handlers_and_counts_the_rest(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(n) for n in range(7)])
    started, waits = threading.Barrier(7), list[float]()

    def handle(_: Any) -> None:
        if started.wait(30) == 0:
            press_ctrl_c()
        until(lambda: waits[-1] < 0.5)

    noting = rule_variant("ThreadWatch._take_signal", first(lambda a: waits.append(a.seconds)))
    with noting, pytest.raises(KeyboardInterrupt):
        queue.group().work(handle, mode="message", threads=7, shutdown_timeout="0.4s")
    assert 0 < waits[-1] <= 0.4
    assert "up to 0.4 s for 7 handlers: message " in caplog.text
    assert caplog.text.count("(running for ") == 5
    assert " and 2 more. " in caplog.text
