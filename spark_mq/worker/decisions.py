"""Define a handler's decisions and the verdict of a task, and turn many into settles."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from itertools import groupby
from typing import Any, Final

from spark_mq.errors import InvalidHandlerResult, InvalidOption
from spark_mq.handler import HandlerPolicy, MessageVerdict
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettlePart
from spark_mq.util.clock import Duration
from spark_mq.util.failures import cause_of, describe_error, safe_text
from spark_mq.util.validation import short_repr, validate_duration

# Acks come last, so that one of them resets the breaker's count of a lease's failures.
_ORDER: Final = (NACK, REJECT, RELEASE, ACK)


class Decision(Exception):
    """A decision about one message. A handler returns it or raises it."""

    def verdict(self) -> Verdict:
        raise NotImplementedError

    def _text(self, error: object) -> str | None:
        """Return the given error, or that from which the decision was raised."""
        cause = cause_of(self) if error is None else error
        if isinstance(cause, BaseException):
            return describe_error(cause)
        return None if cause is None else safe_text(cause)


class Retry(Decision):
    """Try the message again later. The delivery counts as failed.

    `delay` is when the message is due again, by default as the group's retry policy says. `error`
    is the reason: text or an exception, by default the exception from which this one was raised.
    Give it by its name: ``Retry(error="busy")``. Raises InvalidOption if the delay is not a
    duration.

    Examples
    --------
    >>> def handle(message):
    ...     if not message.value:
    ...         return Retry(delay="30s", error="empty")
    """

    def __init__(self, delay: Duration | None = None, error: object = None) -> None:
        super().__init__(delay, error)
        self.delay = None if delay is None else _retry_delay(delay)
        self.error = error

    def verdict(self) -> Verdict:
        return Verdict(NACK, self.delay, self._text(self.error))


class Reject(Decision):
    """Make the message a dead letter, because it can never be processed.

    `error` is the reason: text or an exception, by default the exception from which this one was
    raised. A rejected message has no delay, so a duration such as "30s" raises InvalidOption.
    """

    def __init__(self, error: object = None) -> None:
        _refuse_delay(error)
        super().__init__(error)
        self.error = error

    def verdict(self) -> Verdict:
        return Verdict(REJECT, None, self._text(self.error))


class Snooze(Decision):
    """Deliver the message again after `delay`. The delivery is not counted."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = validate_duration("delay", delay, zero=True)

    def verdict(self) -> Verdict:
        return Verdict(RELEASE, self.delay)


def _retry_delay(delay: Duration) -> int:
    """Return the delay in microseconds. The error names the place of a reason."""
    try:
        return validate_duration("delay", delay, zero=True)
    except InvalidOption as wrong:
        given = short_repr(safe_text(delay))
        raise InvalidOption(
            f"{wrong}. The first parameter is the delay: name the reason, Retry(error={given})",
            option="delay",
            value=delay,
        ) from None


def _refuse_delay(error: object) -> None:
    """Raise InvalidOption if a reason is a duration. Text needs a unit to be one."""
    if not isinstance(error, str | int | float | timedelta):
        return
    if isinstance(error, str) and not error.strip()[-1:].isalpha():
        return  # text such as "404"
    try:
        validate_duration("error", error, zero=True)
    except InvalidOption:
        return
    given = short_repr(error)
    raise InvalidOption(
        f"error={given} is a duration, not a reason: a rejected message has no delay. "
        f"Use Retry(delay={given}), or give the reason as text",
        option="error",
        value=error,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a task. Without a verb and rows, nothing is settled."""

    verb: str | None
    delay: int | None = None  # microseconds; None for the verb's default
    error: str | None = None
    handler_failed: bool = False  # and the policy rejects or acks such messages
    rows: Sequence[MessageVerdict] = ()  # of single messages of a lease; the verb is for the others
    failure: Exception | None = None  # of the handler
    # The handler's error of a store, which is looked at before the task is settled.
    suspected_outage: Exception | None = None


_ACKED: Final = Verdict(ACK)


def verdict_of_result(result: object) -> Verdict:
    """Return the verdict on a message whose handler has returned, or raise InvalidHandlerResult."""
    if result is None:  # the usual result needs no look at what it may be
        return _ACKED
    if isinstance(result, type) and issubclass(result, Decision):
        result = result()
    if isinstance(result, Decision):
        return result.verdict()
    if inspect.iscoroutine(result):
        result.close()  # so that Python does not warn of it, too
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise InvalidHandlerResult(
            f"the handler returned a {type(result).__name__}, and spark_mq does not run it: "
            "declare the handler with async def, or return the result itself",
            option="handler",
            value=type(result).__name__,
        )
    if _is_verdict(result):
        raise InvalidHandlerResult(
            "the handler of a single message returned an outcome or rows with one: return Retry(), "
            "Reject() or Snooze(), or use mode='batch'",
            option="handler",
            value=type(result).__name__,
        )
    return _ACKED


def refuse_decisions(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a handler of leases that may not decide about single messages."""

    @wraps(handler)
    def checked(lease: Any) -> Any:
        try:
            result = handler(lease)
        except Decision as decision:
            raise _misplaced(decision) from decision
        is_kind = isinstance(result, type) and issubclass(result, Decision)
        if is_kind or isinstance(result, Decision):
            raise _misplaced(result)
        return result

    return checked


def _misplaced(decision: Any) -> InvalidHandlerResult:
    kind = decision if isinstance(decision, type) else type(decision)
    return InvalidHandlerResult(
        f"the handler of a lease gave {kind.__name__}, which decides about one message: use "
        "mode='message', or return rows with sequence and outcome",
        option="handler",
        value=kind.__name__,
    )


def _is_verdict(result: Any) -> bool:
    if isinstance(result, str):
        return result in _ORDER
    rows = result if isinstance(result, list) else [result]
    return any(isinstance(row, Mapping) and "outcome" in row for row in rows)


def verdict_of_error(error: Exception, policy: HandlerPolicy) -> Verdict:
    if isinstance(error, Decision):
        return error.verdict()
    text = describe_error(error)
    verb = None if policy.on_error == "raise" else policy.failure_verb
    return Verdict(verb, None, text, verb in (ACK, REJECT), failure=error)


def parts_for_verdicts(ended: Iterable[tuple[str, int, Verdict]]) -> list[SettlePart]:
    """Return parts of a settle, one for all messages of a lease with the same verdict."""

    def same(task: tuple[str, int, Verdict]) -> tuple[int, str, int, str, bool]:
        lease_id, _, verdict = task
        delay = -1 if verdict.delay is None else verdict.delay
        order = _ORDER.index(verdict.verb or ACK)
        return order, lease_id, delay, verdict.error or "", verdict.handler_failed

    settled = [task for task in ended if task[2].verb is not None]
    parts, jitter = [], random.random()
    for (order, lease_id, delay, error, failed), some in groupby(sorted(settled, key=same), same):
        parts.append(
            SettlePart(
                _ORDER[order],
                lease_id,
                from_sequences(sequence for _, sequence, _ in some),
                delay=None if delay < 0 else delay,
                error=error or None,
                jitter=jitter,
                handler_failed=failed,
            )
        )
    return parts
