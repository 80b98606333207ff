"""Change messages without a lease, and note the person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_mq.errors import InvalidOption, MessagesHeld
from spark_mq.ledger.intervals import Interval, from_sequences
from spark_mq.ledger.interventions import Intervene, Intervention
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.find_messages import find_values
from spark_mq.util.advice import FORCE, NAME_MESSAGES
from spark_mq.util.show import show_some
from spark_mq.util.user import act_as

__all__ = ["change_messages", "find_messages"]


def find_messages(
    ledger: GroupLedger,
    sequences: int | Iterable[int] | None,
    message_id: str | Iterable[str] | None,
    key: str | Iterable[str] | None,
) -> list[Interval]:
    """Return the messages that one of three options names. Raise InvalidOption."""
    given = {"sequences": sequences, "message_id": message_id, "key": key}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidOption(
            f"{' and '.join(named) or 'no message'} given: name messages by one of {NAME_MESSAGES}",
            advice=[NAME_MESSAGES],
            option=named[0] if named else "sequences",
            value=None,
        )
    if sequences is not None:
        several = [sequences] if isinstance(sequences, int | str | bytes) else sequences
        return _checked(ledger, from_sequences(several))
    return _search(ledger, named[0], given[named[0]])


def _checked(ledger: GroupLedger, intervals: list[Interval]) -> list[Interval]:
    """Return the intervals. Raise InvalidOption if one of them has no message at all."""
    index = ledger.messages.index(max((last for _, last in intervals), default=0))
    for first, last in intervals:
        if not index.count(first, last) and first > index.forgotten_to:
            raise InvalidOption(
                f"sequences={first}: no message of {ledger.queue_path} has it; the last one "
                f"published is {index.last_sequence}",
                option="sequences",
                value=first,
            )
    return intervals


def _search(ledger: GroupLedger, column: str, wanted: object) -> list[Interval]:
    """Return the messages with some ids or keys, those after the start sequence if any."""
    values = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(values, Sequence) or not all(isinstance(one, str) for one in values):
        raise InvalidOption(
            f"{column}={wanted!r} is not text: give one, or a list", option=column, value=wanted
        )
    messages, low = ledger.messages, ledger.queue.horizon() + 1
    start = max(ledger.current().head.start_sequence + 1, low)
    found = find_values(messages, column, values, [(start, messages.index().last_sequence)])
    # What is settled already stays as it is, as a change by sequence leaves it.
    found = found or find_values(messages, column, values, [(low, start - 1)])
    if not found:
        raise InvalidOption(
            f"{column}={wanted!r}: {ledger.queue_path} has no message with it",
            option=column,
            value=wanted,
        )
    return from_sequences(sequence for sequence, _ in found)


def change_messages(
    ledger: GroupLedger,
    how: str,
    intervals: list[Interval],
    *,
    reason: str | None = None,
    force: bool = False,
    by: str | None = None,
) -> int:
    """Change messages, and count them. Raise GroupNotFound, or MessagesHeld unless `force`."""
    if not intervals:
        return 0
    command = Intervene(how, intervals, reason, force)
    done = act_as(by or None, lambda: ledger.run(command))
    if done.held:
        raise _held(ledger.name, how, done)
    return done.changed


def _held(group: str, how: str, done: Intervention) -> MessagesHeld:
    each = [f"{first}..{last}: {who}" for first, last, who in done.held]
    return MessagesHeld(
        f"{how} in group {group!r} changed nothing: {show_some(each, 5, '; ')}. Wait, or use "
        f"{FORCE} to take messages from their leases",
        advice=[FORCE],
        group=group,
        held=list(done.held),
    )
