"""Name a command where an error or a warning names a call of Python."""

from __future__ import annotations

import logging
import re
from typing import Final

__all__ = ["HINTS", "CommandFormatter", "as_command"]

HINTS: Final = (
    (r"Create it with Queue\.create", "Create it with `spark-mq queue create`"),
    (r"Use Queue\.open, or exist_ok=True", "Use it as it is, or give --exist-ok"),
    (r"run Queue\.create again", "run `spark-mq queue create` again"),
    (r"made by Queue\.create", "made by `spark-mq queue create`"),
    (r"sweep first \(queue\.sweep\(\)\)", "sweep first (`spark-mq sweep`)"),
    (r"(?:Queue\.)?drop_group\('([^']*)'\)", r"`spark-mq group drop \1`"),
    (r"\bqueue\.configure\(dedup_window='1h'\)",
     "`spark-mq queue configure --set dedup_window=1h`"),
    (r"\bqueue\.configure cannot", "`queue configure` cannot"),
    (r"\b(group|queue)\.configure\b(?!\()", r"`spark-mq \1 configure`"),
    (r"or call resume\(\)", "or run `spark-mq group resume`"),
    (r"The first lease, or ensure\(\), creates a group",
     "`spark-mq group create` creates a group, and so does the first lease"),
    (r"configure\(\.\.\.\) the cap; what blocks needs unblock\(\.\.\.\)",
     "raise the cap with `spark-mq group configure`; what blocks needs `spark-mq group unblock`"),
    (r"name messages by one of sequences, message_id or key",
     "name messages by one of SEQUENCES, --message-id and --key"),
    (r"Create a queue with lanes=64", "Create a queue with `spark-mq queue create --lanes 64`"),
    (r"group\.lanes\(\) lists", "`spark-mq lanes` lists"),
    (r"force=True", "--force"),
)  # fmt: skip
"""Advice of the Python API, as regular expressions, and the same advice for the command line."""

_COMPILED: Final = tuple((re.compile(call), command) for call, command in HINTS)


def as_command(text: str) -> str:
    """Return a text with commands in place of calls of Python."""
    for call, command in _COMPILED:
        text = call.sub(command, text)
    return text


class CommandFormatter(logging.Formatter):
    """Formats the log for people at the command line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return as_command(super().format(record))
