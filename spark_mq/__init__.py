"""Acknowledged message queues for Spark and Delta Lake, with no broker.

The Python API (:class:`Queue`, :class:`ConsumerGroup`, :class:`Lease`) needs no Spark. The Spark
side is ``spark_mq.spark``. All errors are here and in ``spark_mq.errors``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq import errors
from spark_mq.errors import *  # noqa: F403
from spark_mq.util.loading import INTEGRATIONS, lazy_names

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup
    from spark_mq.lease import Lease
    from spark_mq.ledger.settings import GroupSettings, QueueSettings
    from spark_mq.ledger.stats import GroupStats
    from spark_mq.maintenance.recover import RecoveryReport
    from spark_mq.maintenance.redrive import RedriveResult
    from spark_mq.maintenance.remaining_letters import DiscardResult
    from spark_mq.maintenance.retention import PurgeResult
    from spark_mq.maintenance.sweep import SweepReport
    from spark_mq.message import Message, ReceivedMessage
    from spark_mq.operations.batches import BatchInfo
    from spark_mq.operations.history import MessageOutcome
    from spark_mq.operations.schedules import ScheduleInfo
    from spark_mq.operations.settle import SettleResult
    from spark_mq.operations.trace import Trace, TraceEvent
    from spark_mq.publisher import BufferedPublisher, PendingMessage
    from spark_mq.queue import Queue
    from spark_mq.storage.publishes import PublishReceipt
    from spark_mq.worker.decisions import Reject, Retry, Snooze
    from spark_mq.worker.replay_report import ReplayReport
    from spark_mq.worker.state import WorkSummary

__all__ = [
    "BatchInfo",
    "BufferedPublisher",
    "ConsumerGroup",
    "DiscardResult",
    "GroupSettings",
    "GroupStats",
    "Lease",
    "Message",
    "MessageOutcome",
    "PendingMessage",
    "PublishReceipt",
    "PurgeResult",
    "Queue",
    "QueueSettings",
    "ReceivedMessage",
    "RecoveryReport",
    "RedriveResult",
    "Reject",
    "ReplayReport",
    "Retry",
    "ScheduleInfo",
    "SettleResult",
    "Snooze",
    "SweepReport",
    "Trace",
    "TraceEvent",
    "WorkSummary",
    "__version__",
]
__all__ += errors.__all__

__version__ = "0.2.0"

_MODULES = {
    "BatchInfo": "operations.batches",
    "BufferedPublisher": "publisher",
    "ConsumerGroup": "group",
    "DiscardResult": "maintenance.remaining_letters",
    "GroupSettings": "ledger.settings",
    "GroupStats": "ledger.stats",
    "Lease": "lease",
    "Message": "message",
    "MessageOutcome": "operations.history",
    "PendingMessage": "publisher",
    "PublishReceipt": "storage.publishes",
    "PurgeResult": "maintenance.retention",
    "Queue": "queue",
    "QueueSettings": "ledger.settings",
    "ReceivedMessage": "message",
    "RecoveryReport": "maintenance.recover",
    "RedriveResult": "maintenance.redrive",
    "Reject": "worker.decisions",
    "ReplayReport": "worker.replay_report",
    "Retry": "worker.decisions",
    "ScheduleInfo": "operations.schedules",
    "SettleResult": "operations.settle",
    "Snooze": "worker.decisions",
    "SweepReport": "maintenance.sweep",
    "Trace": "operations.trace",
    "TraceEvent": "operations.trace",
    "WorkSummary": "worker.state",
}
"""The module of each public name. It loads at first use, as a Spark process needs few of them."""

# On top of all modules, so that the core depends on no other product, and the Python side not on
# the Spark side. Each loads at first use.
INTEGRATIONS["catalog"] = "spark_mq.integrations.unity_catalog"
INTEGRATIONS["telemetry"] = "spark_mq.integrations.opentelemetry"
INTEGRATIONS["for_each_batch"] = "spark_mq.spark.foreach_batch"
INTEGRATIONS["group_reads"] = "spark_mq.spark.group_reads"

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
