"""Define the errors of spark_mq.

All derive from :class:`SparkMQError`. Each keeps its data as attributes, such as
``error.lease_id``, so that a caller need not parse the message. They can be pickled, because they
travel between processes.
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
    "UnknownSchema",
    "UnsupportedTable",
    "UsedAfterFork",
]

_MAX_TEXT: Final = 10_000  # characters of a message; a longer one would be a user's data


def shorten(text: str, most: int) -> str:
    """Cut a text that is too long, and say how long it was."""
    return text if len(text) <= most else f"{text[: most - 30]}... ({len(text)} characters)"


class SparkMQError(Exception):
    """Base class of all errors of spark_mq.

    Parameters
    ----------
    message : str
        The text of the error.
    **data
        Data that explains the error. Each item becomes an attribute.
    """

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
    """Raised if an argument or option is invalid.

    Attributes
    ----------
    option : str
        The name of the option.
    value : Any
    """


class InvalidHandlerResult(InvalidOption):
    """Raised if a handler returns a value that settles no message.

    The handler has a bug, so no message counts as failed.

    Attributes
    ----------
    option : str
        The handler's option, or the column of its result that is wrong.
    value : Any
        The wrong value, or the name of its type.
    """


class InvalidPayload(SparkMQError, ValueError):
    """Raised if a payload is not the wanted text or JSON, or not of the wanted format.

    Attributes
    ----------
    sequence : int or None
        The message. None if a format raised it, which does not know the message.
    """

    sequence: int | None = None


class UnknownSchema(SparkMQError, LookupError):
    """Raised if a payload has the id of a schema that its format was not given.

    That is no proof of a wrong payload, so a worker tries the message again.

    Attributes
    ----------
    schema_id : int
    """


class InvalidSchema(SparkMQError, ValueError):
    """Raised if a table's columns forbid a publish or a settle.

    Attributes
    ----------
    column : str
    """


class QueueNotFound(SparkMQError, LookupError):
    """Raised if there is no queue at the path.

    Attributes
    ----------
    path : str
    """


class CopiedQueue(SparkMQError):
    """Raised if a queue away from its home would write elsewhere.

    It may be a copy of another queue. Call ``Queue.rehome`` to say what it is.

    Attributes
    ----------
    path : str
    home : str
        Where the queue was created.
    """


class QueueExists(SparkMQError):
    """Raised if a new queue's path holds a queue already.

    Attributes
    ----------
    path : str
    """


class NotAQueue(SparkMQError):
    """Raised if the path holds other data, or an incomplete queue.

    Attributes
    ----------
    path : str
    """


class UnsupportedTable(SparkMQError):
    """Raised if a table has a feature that spark_mq cannot handle.

    The feature is one of Delta, or of another version of spark_mq.

    Attributes
    ----------
    path : str or None
        The path of the table.
    features : list of str
        The unsupported features. Empty for an unknown format or group setting.
    """


class CorruptLog(SparkMQError):
    """Raised if a commit or data file is missing, unreadable or replaced.

    Attributes
    ----------
    path : str
        The path of the table.
    version : int or None
        The version of the commit.
    """


class TablesDisagree(CorruptLog):
    """Raised if the tables of a queue are of different times.

    One of them was restored alone, or from another backup. Nothing was changed.
    ``Queue.recover`` continues with what is there.

    Attributes
    ----------
    path : str
        The path of the table that is ahead.
    version : None
    """


class StorageError(SparkMQError, OSError):
    """Raised if the store fails: it is full, read-only or out of reach.

    Try again after the cause is fixed.

    Attributes
    ----------
    path : str
        The path of the table.
    landed : bool or None
        Whether the failed commit changed the table. None if unknown, because it may still do so.
    lasting : bool
        Whether no wait helps unless somebody changes a right, a path or a setting. A worker that
        has not worked yet ends then.
    """

    lasting = False


class GroupNotFound(SparkMQError, LookupError):
    """Raised if the consumer group does not exist.

    Attributes
    ----------
    group : str
    """


class BatchClosed(SparkMQError):
    """Raised if a message batch is closed, or is closed in another way.

    Nothing was published or changed.

    Attributes
    ----------
    batch_id : str
    """


class ScheduleNotFound(SparkMQError, LookupError):
    """Raised if the schedule does not exist.

    Attributes
    ----------
    schedule : str
    """


class LeaseLost(SparkMQError):
    """Raised if a lease no longer holds some messages of a settle.

    The messages that it still held are settled.

    Attributes
    ----------
    lease_id : str
    lost : list of tuple
        ``(first, last, reason)`` with inclusive sequences.
    message_ids : list of str
        The ids of the lost messages, as far as they are known.
    result : SettleResult
        The result for the other messages.
    """


class MessagesHeld(SparkMQError):
    """Raised if a lease or a sweep holds messages to be changed.

    Nothing was changed.

    Attributes
    ----------
    group : str
    held : list
        ``(first, last, who)`` of the held sequences, inclusive.
    """


class GroupBlocked(SparkMQError):
    """Raised if a full ledger or a blocked message stops all leases.

    Attributes
    ----------
    group : str
    blocked_because : str
        The cap, or the message.
    """


class DataLossError(SparkMQError):
    """Raised if a hard limit dropped unsettled messages of the group.

    Attributes
    ----------
    group : str
    lost : int
        The number of messages.
    horizon : int
        All messages up to this sequence are trimmed.
    """


class ContentionTimeout(SparkMQError, TimeoutError):
    """Raised if a commit lost to others until its timeout. Nothing changed.

    Attributes
    ----------
    group : str
    attempts : int
    """


class HandlerTimeout(SparkMQError, TimeoutError):
    """The failure of messages whose handler ran for longer than the worker's ``timeout``.

    Attributes
    ----------
    timeout : datetime.timedelta
    """


class DuplicatePublish(SparkMQError):
    """Raised if a producer has published this or a higher number.

    Nothing was published this time.

    Attributes
    ----------
    producer_id : str
    last_sequence : int
        The last number that was accepted.
    receipt : PublishReceipt or None
        The receipt of the first call, if the number is the last one.
    """


class ProducerFenced(SparkMQError):
    """Raised if another publisher has published under the same producer_id.

    Nothing was published this time.

    Attributes
    ----------
    producer_id : str
    last_sequence : int or None
        The last number of the producer.
    expected : int
        The last number that this publisher knows.
    """


class PublishFailed(SparkMQError):
    """Raised if buffered messages were not published.

    Nobody asked for their errors. The first error is the ``__cause__``.

    Attributes
    ----------
    messages : int
        Their number.
    """


class PublisherClosed(SparkMQError):
    """Raised if a closed publisher gets a message."""


class StreamFenced(SparkMQError):
    """Raised if another driver runs the stream, or its checkpoint went back.

    Attributes
    ----------
    stream : str
        The id of the stream.
    batch : int
        The batch of this driver.
    mark : int
        The last committed fence.
    """


class UsedAfterFork(SparkMQError):
    """Raised if a forked process uses a handle of its parent.

    Start processes by spawn or forkserver, and open the queue in each of them.

    Attributes
    ----------
    what : str
        The handle.
    """


class CommitConflict(SparkMQError):
    """Raised inside the commit loop if one attempt lost. Callers never see it."""


class IllegalTransition(SparkMQError, AssertionError):
    """Raised if a range would move to a forbidden state.

    This is a bug in spark_mq. Nothing was committed.

    Attributes
    ----------
    before, after : str
        The old and the new state.
    """
