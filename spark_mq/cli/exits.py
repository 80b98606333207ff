"""Define the exit codes of the command line."""

from __future__ import annotations

from typing import Final

from spark_mq.errors import (
    ContentionTimeout,
    CorruptLog,
    GroupNotFound,
    InvalidOption,
    InvalidSchema,
    NotAQueue,
    QueueNotFound,
    StorageError,
    UnsupportedTable,
)

__all__ = ["FAILED", "INTERRUPTED", "NOT_FOUND", "OK", "STORE", "USAGE", "exit_code_of"]

OK: Final = 0
FAILED: Final = 1  # the command failed, or `check` found a problem
USAGE: Final = 2  # an argument is wrong
NOT_FOUND: Final = 3  # there is no such queue, group or message
STORE: Final = 4  # the store failed, or a table is damaged
INTERRUPTED: Final = 130  # Ctrl-C, or no to a question

_NOT_FOUND: Final = (QueueNotFound, GroupNotFound)
_USAGE: Final = (InvalidOption, InvalidSchema)
_STORE: Final = (StorageError, CorruptLog, NotAQueue, UnsupportedTable, ContentionTimeout)


def exit_code_of(error: Exception) -> int:
    for kinds, code in ((_NOT_FOUND, NOT_FOUND), (_USAGE, USAGE), (_STORE, STORE)):
        if isinstance(error, kinds):
            return code
    return FAILED
