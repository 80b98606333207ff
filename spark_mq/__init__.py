"""spark_mq: an acknowledged message queue for Spark and Delta Lake, with no broker.

The Python API needs no Spark: :class:`Queue`, :class:`ConsumerGroup`, :class:`Lease`. The Spark side is in ``spark_mq.spark``.
"""

from spark_mq.group import ConsumerGroup
from spark_mq.lease import Lease, SettleResult
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.ledger.stats import GroupStats
from spark_mq.message import Message, ReceivedMessage
from spark_mq.publisher import BufferedPublisher, PendingMessage
from spark_mq.queue import Queue
from spark_mq.storage.message_store import PublishReceipt
from spark_mq.worker import WorkSummary

__all__ = [
    "BufferedPublisher",
    "ConsumerGroup",
    "GroupSettings",
    "GroupStats",
    "Lease",
    "Message",
    "PendingMessage",
    "PublishReceipt",
    "Queue",
    "QueueSettings",
    "ReceivedMessage",
    "SettleResult",
    "WorkSummary",
    "__version__",
]

__version__ = "0.1.0"
