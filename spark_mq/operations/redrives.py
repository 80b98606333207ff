"""Find the messages before and after a redrive.

A redriven message keeps its id, and a header names its dead letter, which names the message. If a
purge or a trim has dropped the dead letter, the id alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import SparkMQError
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import read_history
from spark_mq.storage.message_table import MessageTable

__all__ = [
    "REDRIVEN_FROM",
    "dead_letter_of",
    "died_in",
    "find_earlier",
    "find_later",
    "find_redriver",
]

REDRIVEN_FROM: Final = "spark_mq.redriven_from"  # in a redriven message: its dead letter
_SEQUENCE: Final = "spark_mq.sequence"  # in a dead letter: the message in its queue
_GROUP: Final = "spark_mq.group"  # in a redriven message: where it died


def dead_letter_of(headers: Any) -> int | None:
    """Return the dead letter of a redriven message by its headers, or None."""
    return _number(dict(headers or ()), REDRIVEN_FROM)


def died_in(headers: Any) -> str | None:
    """Return the group in which a redriven message died by its headers, or None."""
    return dict(headers or ()).get(_GROUP)


def find_redriver(context: QueueContext, letter: int) -> str | None:
    """Return the user who redrove a dead letter, or None if none is noted."""
    try:
        letters = context.existing_dead_letters()
        rows = None if letters is None else read_history(letters, sequence=letter)
    except SparkMQError:
        return None  # a damaged dead-letter queue does not hide the message
    users = [] if rows is None else rows.filter(pc.equal(rows["event"], "redriven"))["user"]
    return next((one.as_py() for one in reversed(users)), None)


def find_earlier(context: QueueContext, sequence: int, message_id: str, letter: int) -> int | None:
    """Return the message before a redrive, or None if it is not known."""
    named = _named_by(context, letter)
    if named is not None:
        return named
    index = context.messages.index()
    number = int(message_id) if re.fullmatch("[0-9]{1,18}", message_id) else -1
    if 0 <= number < sequence and index.first_at_or_after(number) == number:
        return number  # the publisher gave no id, so it was the sequence
    found = [at for at, _ in _with_id(context.messages, message_id, 0, sequence - 1)]
    return found[-1] if found else None


def find_later(context: QueueContext, sequence: int, message_id: str | None) -> list[int]:
    """Return the messages that redrives made of a message, in order."""
    wanted = str(sequence) if message_id is None else message_id
    last = context.messages.index().last_sequence
    found: list[int] = []
    for at, headers in _with_id(context.messages, wanted, sequence + 1, last):
        letter = _number(headers, REDRIVEN_FROM)
        if letter is not None and _named_by(context, letter) in (None, sequence):
            found.append(at)
    return found


def _named_by(context: QueueContext, letter: int) -> int | None:
    """Return the message that a dead letter names, or None if the letter is gone."""
    try:
        letters = context.existing_dead_letters()
        if letters is None or letters.messages.index(letter).first_at_or_after(letter) != letter:
            return None
        pieces = letters.messages.index(letter).slices(letter, letter)
        ((_, rows),) = letters.messages.read(pieces, ["headers"])
    except (SparkMQError, ValueError):
        return None
    return _number(dict(rows["headers"].to_pylist()[0] or ()), _SEQUENCE)


def _with_id(
    messages: MessageTable, message_id: str, first: int, last: int
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the readable messages with an id, each with its headers."""
    for piece in messages.index().slices(first, last):
        try:
            for part, rows in messages.read([piece], ["message_id", "headers"]):
                hits = pc.equal(rows["message_id"], pa.scalar(message_id))
                for row in pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist():
                    yield part.first + row, dict(rows["headers"][row].as_py() or ())
        except SparkMQError:
            continue


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name) or ""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
