"""Replace Python calls in errors and log lines by commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from spark_mq.errors import SparkMQError
from spark_mq.util.advice import Advice
from spark_mq.util.show import printable

__all__ = ["CommandFormatter", "text_for_commands"]


def text_for_commands(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    for call, command in _advice(error):
        text = text.replace(call, command)
    return text


def _advice(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield the advice of an error and of its causes, because it may repeat their text."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, SparkMQError):
            yield from found.advice
        seen.append(found)
        found = found.__cause__ or found.__context__


class CommandFormatter(logging.Formatter):
    """Formats log lines for people, with commands in place of Python calls."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple):
            record = logging.makeLogRecord(record.__dict__)
            record.args = tuple(map(_for_commands, record.args or ()))
        record = logging.makeLogRecord({**record.__dict__, "msg": printable(record.getMessage())})
        record.args = ()
        return "\n".join(map(printable, super().format(record).splitlines()))


def _for_commands(value: Any) -> Any:
    if isinstance(value, Advice):
        return value.command
    return text_for_commands(value) if isinstance(value, SparkMQError) else value
