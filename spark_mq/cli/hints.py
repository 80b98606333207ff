"""Name a command where an error or a log line names a call of Python."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from spark_mq.errors import SparkMQError
from spark_mq.util.advice import Advice

__all__ = ["CommandFormatter", "text_for_commands"]


def text_for_commands(error: BaseException) -> str:
    """Return the text of an error with commands in place of calls of Python."""
    text = str(error) or type(error).__name__
    for call, command in _advice(error):
        text = text.replace(call, command)
    return text


def _advice(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield the advice of an error and of those whose text it may repeat."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, SparkMQError):
            yield from found.advice
        seen.append(found)
        found = found.__cause__ or found.__context__


class CommandFormatter(logging.Formatter):
    """Formats the log for people at the command line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if isinstance(record.args, tuple):
            record = logging.makeLogRecord(record.__dict__)
            record.args = tuple(map(_for_commands, record.args or ()))
        return super().format(record)


def _for_commands(value: Any) -> Any:
    """Return an argument of a log record as the command line shows it."""
    if isinstance(value, Advice):
        return value.command
    return text_for_commands(value) if isinstance(value, SparkMQError) else value
