"""What a handler raises and returns is an object of the user, whose own methods may fail, and some
errors would end a thread or a process without a word. Each is a failure of its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.handles import lease
from support.having import having

from spark_mq import Lease, Queue, ReceivedMessage, Reject, Retry, WorkSummary
from spark_mq.errors import InvalidHandlerResult, InvalidPayload
from spark_mq.testing import memory_queue, run_batch

KINDS = pytest.mark.parametrize("kind", ["message", "batch", "async"])


class Odd:
    """An object of which each method fails that Python calls by itself."""

    def _fail(self, *_: Any) -> Any:
        raise AttributeError("there is no response")

    __str__ = __repr__ = __bool__ = __len__ = __eq__ = __hash__ = _fail  # type: ignore[assignment]
    __iter__ = __getitem__ = __format__ = __index__ = _fail


class OddError(Odd, Exception):
    pass


class Unbound:
    """A proxy as those of web frameworks, whose attributes fail outside a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")


ENDS = [SystemExit(0), SystemExit("done"), GeneratorExit(), asyncio.CancelledError()]
EACH_END = pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{type(end).__name__} {end}")


def work(
    queue: Queue, kind: str, call: Callable[[ReceivedMessage], Any], **options: Any
) -> WorkSummary:
    """Call a function with each message, by a handler of this kind, until all have ended."""

    def handle(given: Any) -> Any:
        return call(given.messages[0] if kind == "batch" else given)

    async def handle_async(message: ReceivedMessage) -> Any:
        await asyncio.sleep(0)
        return call(message)

    mode = "batch" if kind == "batch" else "message"
    handler = handle_async if kind == "async" else handle
    return queue.group().work(handler, **{"mode": mode, "until": "settled", **options})


def once_each(max_delivery_attempts: int = 1) -> Queue:
    """A queue of three messages that are dead after their first failure."""
    queue = memory_queue(max_delivery_attempts=max_delivery_attempts, breaker_threshold=None)
    queue.publish(["a", "bad", "c"])
    return queue


def letters(queue: Queue) -> dict[bytes, str]:
    """Return the error of each dead letter, by its value."""
    queue.sweep()
    table = queue.list_dead_letters()
    return dict(zip(table["value"].to_pylist(), table["error"].to_pylist(), strict=True))


def on_bad(error: BaseException) -> Callable[[ReceivedMessage], None]:
    """Return a handler that raises an error for the message "bad"."""

    def call(message: ReceivedMessage) -> None:
        if message.value == b"bad":
            raise error

    return call


def error_in_letter(kind: str, call: Callable[[ReceivedMessage], Any]) -> str:
    """Work with a handler that must fail for "bad" alone. Return the error of its letter."""
    queue = once_each()
    summary = WorkSummary()
    with suppress(BaseException):  # pytest itself could not look at some of them
        summary = work(queue, kind, call)
    assert summary == having(acked=2, nacked=1, failed=1)
    ((value, error),) = letters(queue).items()
    assert value == b"bad"
    return error


# -- what a handler raises


@KINDS
def test_an_error_without_a_text_is_a_failure(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    error = error_in_letter(kind, on_bad(OddError("bad")))
    assert error == "OddError: (OddError without a text: its str() raised AttributeError)"
    assert error in caplog.text, "with its traceback"


@KINDS
@pytest.mark.parametrize("as_cause", [False, True])
@pytest.mark.parametrize("name", ["__class__", "__cause__", "__traceback__", "__notes__"])
def test_an_error_that_cannot_be_read_is_a_failure(kind: str, name: str, as_cause: bool) -> None:
    def fail(_: Any) -> Any:
        raise SystemExit(0)

    sealed = type("Sealed", (Exception,), {name: property(fail)})

    def call(message: ReceivedMessage) -> None:
        if message.value == b"bad" and as_cause:
            raise ValueError("bad") from sealed("inner")
        if message.value == b"bad":
            raise sealed("bad")

    error = error_in_letter(kind, call)
    assert error.endswith("ValueError: bad" if as_cause else "Sealed: bad")


@KINDS
@EACH_END
def test_what_would_end_a_program_is_a_failed_message(kind: str, end: BaseException) -> None:
    text = f"RuntimeError: the handler raised {type(end).__name__}: {end}".removesuffix(": ")
    assert error_in_letter(kind, on_bad(end)) == text


@KINDS
@EACH_END
def test_with_raise_it_ends_the_loop_with_a_runtime_error(kind: str, end: BaseException) -> None:
    with pytest.raises(RuntimeError, match=f"the handler raised {type(end).__name__}") as raised:
        work(once_each(), kind, on_bad(end), on_error="raise")
    assert raised.value.__cause__ is end


@KINDS
def test_a_keyboard_interrupt_ends_the_loop(kind: str) -> None:
    queue = once_each()
    with pytest.raises(KeyboardInterrupt):
        work(queue, kind, on_bad(KeyboardInterrupt()))
    assert queue.group().stats().dead == 0


@pytest.mark.parametrize("waits", [True, False], ids=["awaited", "forgotten"])
def test_an_exit_in_a_task_of_a_coroutine_ends_no_other_coroutine(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue, tasks = once_each(), list[Any]()

    async def leave() -> None:
        raise SystemExit(0)

    async def handle(message: ReceivedMessage) -> None:
        if message.value == b"bad":
            tasks.append(asyncio.ensure_future(leave()))
            await (tasks[0] if waits else asyncio.wait(tasks))

    summary = queue.group().work(handle, mode="message", until="settled")
    assert (summary.acked, summary.failed) == ((2, 1) if waits else (3, 0))
    assert "a task or callback of a handler raised SystemExit: 0" in caplog.text
    assert isinstance(tasks[0].exception(), SystemExit)


def test_an_interrupt_in_a_task_of_a_coroutine_ends_the_loop() -> None:
    tasks = list[Any]()

    async def leave() -> None:
        raise KeyboardInterrupt

    async def handle(_: ReceivedMessage) -> None:
        tasks.append(asyncio.ensure_future(leave()))
        await asyncio.wait(tasks)  # which does not raise it

    with pytest.raises(KeyboardInterrupt):
        once_each().group().work(handle, mode="message", until="settled", concurrency=1)
    assert isinstance(tasks[0].exception(), KeyboardInterrupt)


# -- what a handler returns or decides


@KINDS
@pytest.mark.parametrize("kinds", [Odd, Unbound])
def test_an_odd_result_is_a_failure_or_an_ack_of_its_message(kind: str, kinds: Any) -> None:
    queue = once_each()
    summary = work(
        queue, kind, lambda m: kinds() if m.value == b"bad" and kind != "batch" else None
    )
    assert summary.acked + summary.nacked == 3
    assert summary.acked >= 2


def rows_with(column: str, value: object = None) -> Callable[[Lease], Any]:
    def handle(taken: Lease) -> Any:
        (message,) = taken.messages
        row: dict[str, Any] = {"sequence": message.sequence, "outcome": "nack"}
        odd = Odd() if value is None else value
        return [{**row, column: odd}] if message.value == b"bad" else None

    return handle


def test_a_row_with_an_odd_outcome_is_a_failure_of_its_message() -> None:
    queue = once_each()
    summary = queue.group().work(rows_with("outcome"), mode="batch", until="settled")
    assert (summary.acked, summary.nacked) == (2, 1)
    assert letters(queue).keys() == {b"bad"}


def test_a_text_of_a_class_of_the_user_is_plain_text_in_a_letter() -> None:
    class Text(str):
        __slots__ = ()
        __len__ = __getitem__ = Odd._fail

        def __str__(self) -> str:
            return self

    queue = once_each()
    queue.group().work(rows_with("error", Text("odd")), mode="batch", until="settled")
    assert letters(queue) == {b"bad": "odd"}


@pytest.mark.parametrize("column", ["sequence", "delay"])
def test_a_row_that_names_nothing_ends_the_loop_with_an_error_that_has_a_text(column: str) -> None:
    with pytest.raises(InvalidHandlerResult, match=r"Odd .*(sequence|duration)"):
        once_each().group().work(rows_with(column), mode="batch", until="settled")


@pytest.mark.parametrize("kind", ["message", "async"])
@pytest.mark.parametrize("decision", [Retry, Reject])
def test_a_decision_may_have_any_reason(kind: str, decision: Any) -> None:
    queue = once_each()

    def call(message: ReceivedMessage) -> Any:
        if message.value == b"bad":
            raise decision(error=OddError())
        if message.value == b"a":
            return decision(error=Odd())
        try:
            raise OddError
        except OddError:
            raise decision from None

    assert work(queue, kind, call).failed == 0
    errors = {value: error.partition(" without")[0] for value, error in letters(queue).items()}
    assert errors == {b"a": "(Odd", b"bad": "OddError: (OddError", b"c": "OddError: (OddError"}


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_format_may_raise_an_error_without_a_text(mode: str) -> None:
    class Unreadable(Odd, InvalidPayload):
        pass

    class Odds:
        def encode(self, value: Any) -> bytes:
            return b""

        def decode(self, payload: bytes) -> Any:
            if payload == b"bad":
                raise Unreadable("bad")

    queue = once_each()
    summary = queue.group().work(lambda _: None, mode=mode, until="settled", format=Odds())
    assert (summary.acked, summary.rejected) == (2, 1)


# -- other functions of users


@EACH_END
def test_run_batch_settles_or_raises_what_ends_a_program(end: BaseException) -> None:
    def process(_: Any, __: Any) -> None:
        raise end

    queue = once_each(5)
    with pytest.raises(RuntimeError, match="process raised"):
        run_batch(process, queue.group(), on_error="raise")
    queue = once_each(5)
    assert run_batch(process, queue.group(), on_error="reject") is not None
    assert len(letters(queue)) == 3


@pytest.fixture
def dead() -> Queue:
    """A queue with three dead letters."""
    queue = once_each(5)
    lease(queue, 3).reject(error="bad")
    queue.sweep()
    return queue


@pytest.mark.parametrize("wrong", [OddError("x"), *ENDS], ids=lambda error: type(error).__name__)
def test_a_transform_that_fails_oddly_leaves_its_letter(dead: Queue, wrong: BaseException) -> None:
    def repair(message: ReceivedMessage) -> bytes:
        on_bad(wrong)(message)
        return message.value + b"!"

    done = dead.redrive(transform=repair)
    assert (done.messages, done.failed) == (2, 1)
    ((text, count),) = done.failures.items()
    assert (type(wrong).__name__ in text, count) == (True, 1)


def test_a_transform_passes_an_interrupt_on(dead: Queue) -> None:
    with pytest.raises(KeyboardInterrupt):
        dead.redrive(transform=on_bad(KeyboardInterrupt()))
