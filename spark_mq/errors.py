"""Every error that spark_mq raises on purpose, with the data that explains it.

All derive from :class:`SparkMQError`. What an error knows is kept as attributes (``error.lease_id``), so that a caller can
act on it without parsing the message. Errors survive pickling, for they travel between processes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CommitConflict",
    "ContentionTimeout",
    "CorruptLog",
    "DataLossError",
    "DuplicatePublish",
    "GroupBlocked",
    "GroupNotFound",
    "InvalidHandlerResult",
    "InvalidOption",
    "InvalidSchema",
    "LeaseLost",
    "NotAQueue",
    "PublishFailed",
    "PublisherClosed",
    "QueueExists",
    "QueueNotFound",
    "SparkMQError",
    "StorageError",
    "StreamFenced",
    "UnsupportedTable",
]


class SparkMQError(Exception):
    """Base of all errors of spark_mq. Keyword arguments become attributes."""

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data
        for name, value in data.items():
            setattr(self, name, value)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), str(self), self.data)


def _rebuild(kind: type[SparkMQError], message: str, data: dict[str, Any]) -> SparkMQError:
    return kind(message, **data)


class InvalidOption(SparkMQError, ValueError):
    """An argument or option is wrong. Data: ``option``, ``value``."""


class InvalidHandlerResult(InvalidOption):
    """A handler returned what says nothing of its messages: a mistake in the program, not a failure of theirs. Data: as InvalidOption."""


class InvalidSchema(SparkMQError, ValueError):
    """A table or DataFrame cannot be published, or settled, as it is. Data: ``column``."""


class QueueNotFound(SparkMQError, LookupError):
    """There is no queue at the path. Data: ``path``."""


class QueueExists(SparkMQError):
    """There is a queue at the path already. Data: ``path``."""


class NotAQueue(SparkMQError):
    """The path holds something else than a queue, or a queue that was never completed. Data: ``path``."""


class UnsupportedTable(SparkMQError):
    """A table of the queue has a Delta feature that one of the engines cannot handle. Data: ``path``, ``features``."""


class CorruptLog(SparkMQError):
    """A commit or a data file of one of the queue's tables is gone, or cannot be read, or is another one than before.

    Data: ``path`` of the table; ``version`` of the commit, or None.
    """


class StorageError(SparkMQError, OSError):
    """The store did not take or give something: it is full, read-only, out of reach. Trying again is right once that is mended.

    Data: ``path`` of the table; ``landed``: False where nothing was changed, None where that cannot be told for now.
    """


class GroupNotFound(SparkMQError, LookupError):
    """The consumer group does not exist. Data: ``group``."""


class LeaseLost(SparkMQError):
    """Some of the messages of a settle are not held under the lease any more. What still was held has been settled.

    Data: ``lease_id``; ``lost``, a list of ``(first, last, reason)`` with sequences inclusive; ``result``, the
    :class:`~spark_mq.SettleResult` of the rest.
    """


class GroupBlocked(SparkMQError):
    """Nothing may be leased because of a cap of the group. Data: ``group``, ``blocked_because``."""


class DataLossError(SparkMQError):
    """A hard limit of the queue dropped messages that the group had not settled. Data: ``group``, ``lost``, ``horizon``."""


class ContentionTimeout(SparkMQError, TimeoutError):
    """A commit lost against others until its deadline. Nothing was changed. Data: ``group``, ``attempts``."""


class DuplicatePublish(SparkMQError):
    """The producer has published this number, or a higher one, before; nothing was published now.

    Data: ``producer_id``; ``last_sequence``, the last number accepted; ``receipt``, the first call's
    :class:`~spark_mq.PublishReceipt` where the number is that last one, else None.
    """


class PublishFailed(SparkMQError):
    """Messages of a buffered publisher were not published, and nobody has been told so yet. Data: ``messages``, how many.

    The error that they failed with is its ``__cause__``.
    """


class PublisherClosed(SparkMQError):
    """A buffered publisher has been closed, and takes no more messages."""


class StreamFenced(SparkMQError):
    """Another driver runs this stream's checkpoint, or the checkpoint was rolled back. Data: ``stream``, ``batch``, ``mark``."""


class CommitConflict(SparkMQError):
    """One attempt of an optimistic commit lost. Internal to the retry loop; a caller never sees it."""
