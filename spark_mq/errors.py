"""Define the errors of spark_mq.

All derive from :class:`SparkMQError` and can be pickled, because they travel between processes.
Each keeps its data as attributes, such as ``error.lease_id``, so that a caller need not parse the
text.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "BatchClosed",
    "CommitConflict",
    "ContentionTimeout",
    "CopiedQueue",
    "CorruptLog",
    "DataLossError",
    "DuplicatePublish",
    "GroupBlocked",
    "GroupNotFound",
    "HandlerTimeout",
    "IllegalTransition",
    "InvalidHandlerResult",
    "InvalidOption",
    "InvalidPayload",
    "InvalidSchema",
    "LeaseLost",
    "MessagesHeld",
    "NotAQueue",
    "ProducerFenced",
    "PublishFailed",
    "PublisherClosed",
    "QueueExists",
    "QueueNotFound",
    "ScheduleNotFound",
    "SparkMQError",
    "StorageError",
    "StreamFenced",
    "TablesDisagree",
    "UnsupportedTable",
    "UsedAfterFork",
]

_MAX_TEXT: Final = 10_000  # characters of a message; a longer one would be a user's data


def shorten(text: str, most: int) -> str:
    """Cut a text that is too long, and say how long it was."""
    return text if len(text) <= most else f"{text[: most - 30]}... ({len(text)} characters)"


class SparkMQError(Exception):
    """Base class of all errors of spark_mq. Each item of ``data`` is an attribute, too."""

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(shorten(message, _MAX_TEXT))
        self.data = data
        for name, value in data.items():
            setattr(self, name, value)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), str(self), self.data)


def _rebuild(kind: type[SparkMQError], message: str, data: dict[str, Any]) -> SparkMQError:
    return kind(message, **data)


class InvalidOption(SparkMQError, ValueError):
    """Raised if an argument or option is invalid. Data: ``option`` (its name), ``value``."""


class InvalidHandlerResult(InvalidOption):
    """Raised if a handler returns a value that settles no message, so that none counts as failed.

    Data: ``option`` (the handler's option, or the wrong column of its result), ``value`` (the wrong
    value, or the name of its type).
    """


class InvalidPayload(SparkMQError, ValueError):
    """Raised if a payload is not the wanted text or JSON, or not of the wanted format.

    Data: ``sequence``. It is None if a format raised the error, because a format does not know the
    message.
    """

    sequence: int | None = None


class InvalidSchema(SparkMQError, ValueError):
    """Raised if a table or DataFrame cannot be published or settled. Data: ``column``."""


class QueueNotFound(SparkMQError, LookupError):
    """Raised if there is no queue at the path. Data: ``path``."""


class CopiedQueue(SparkMQError):
    """Raised if a queue away from its home would write elsewhere.

    It may be a copy of another queue. Call ``Queue.rehome`` to say what it is. Data: ``path``,
    ``home`` (where it was created).
    """


class QueueExists(SparkMQError):
    """Raised if a new queue's path holds a queue already. Data: ``path``."""


class NotAQueue(SparkMQError):
    """Raised if the path holds other data, or an incomplete queue. Data: ``path``."""


class UnsupportedTable(SparkMQError):
    """Raised if a table has a feature of Delta, or of another spark_mq, that this one lacks.

    Data: ``path`` (of the table, or None), ``features`` (a list of names, empty for an unknown
    format or group setting).
    """


class CorruptLog(SparkMQError):
    """Raised if a commit or data file is missing, unreadable or replaced.

    Data: ``path`` (of the table), ``version`` (of the commit, or None).
    """


class TablesDisagree(CorruptLog):
    """Raised if the tables of a queue are of different times. Nothing was changed.

    One of them was restored alone, or from another backup. ``Queue.recover`` continues with what is
    there. Data: ``path`` (of the table that is ahead), ``version`` (None).
    """


class StorageError(SparkMQError, OSError):
    """Raised if the store fails: it is full, read-only or out of reach.

    Data: ``path`` (of the table), ``landed`` (whether the failed commit changed the table, or None
    because it may still do so), ``lasting`` (whether waiting cannot help until somebody changes a
    right, a path or a setting, so that a worker which has not worked yet ends).
    """

    lasting = False


class GroupNotFound(SparkMQError, LookupError):
    """Raised if the consumer group does not exist. Data: ``group``."""


class BatchClosed(SparkMQError):
    """Raised if a message batch is closed, or was closed in another way. Data: ``batch_id``.

    Nothing was published or changed.
    """


class ScheduleNotFound(SparkMQError, LookupError):
    """Raised if the schedule does not exist. Data: ``schedule``."""


class LeaseLost(SparkMQError):
    """Raised if a lease no longer holds some messages of a settle. The others are settled.

    Data: ``lease_id``, ``lost`` (a list of ``(first, last, reason)`` with inclusive sequences),
    ``result`` (the :class:`SettleResult` of the others).
    """


class MessagesHeld(SparkMQError):
    """Raised if a lease or a sweep holds messages to be changed. Nothing was changed.

    Data: ``group``, ``held`` (a list of ``(first, last, who)`` with inclusive sequences).
    """


class GroupBlocked(SparkMQError):
    """Raised if a full ledger or a blocked message stops all leases.

    Data: ``group``, ``blocked_because`` (the cap, or the message).
    """


class DataLossError(SparkMQError):
    """Raised if a hard limit dropped unsettled messages of the group.

    Data: ``group``, ``lost`` (how many), ``horizon`` (all messages up to this sequence are
    trimmed).
    """


class ContentionTimeout(SparkMQError, TimeoutError):
    """Raised if a commit lost to others until its timeout. Nothing changed.

    Data: ``group``, ``attempts``.
    """


class HandlerTimeout(SparkMQError, TimeoutError):
    """The failure of messages whose handler ran for longer than the worker's ``timeout``.

    Data: ``timeout`` (a timedelta).
    """


class DuplicatePublish(SparkMQError):
    """Raised if a producer has published this or a higher number. Nothing was published now.

    Data: ``producer_id``, ``last_sequence`` (the last number that was accepted), ``receipt`` (that
    of the first call if the number is the last one, else None).
    """


class ProducerFenced(SparkMQError):
    """Raised if another publisher has published under the same producer_id.

    Nothing was published this time. Data: ``producer_id``, ``last_sequence`` (the producer's last
    number, or None), ``expected`` (the last number that this publisher knows).
    """


class PublishFailed(SparkMQError):
    """Raised if buffered messages were not published, and nobody asked for their errors.

    The first error is the ``__cause__``. Data: ``messages`` (how many).
    """


class PublisherClosed(SparkMQError):
    """Raised if a closed publisher gets a message."""


class StreamFenced(SparkMQError):
    """Raised if another driver runs the stream, or its checkpoint went back.

    Data: ``stream`` (its id), ``batch`` (of this driver), ``mark`` (the last committed fence).
    """


class UsedAfterFork(SparkMQError):
    """Raised if a forked process uses a handle of its parent. Data: ``what`` (the handle).

    Start processes by spawn or forkserver, and open the queue in each of them.
    """


class CommitConflict(SparkMQError):
    """Raised inside the commit loop if one attempt lost. Callers never see it."""


class IllegalTransition(SparkMQError, AssertionError):
    """Raised if a range would move to a forbidden state, which is a bug in spark_mq.

    Nothing was committed. Data: ``before``, ``after`` (the old and the new state).
    """
