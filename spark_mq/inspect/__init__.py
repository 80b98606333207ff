"""Inspect a queue without a lease or a commit.

The views show counts, leases, messages, the past and problems. They are methods of
:class:`~spark_mq.Queue` and :class:`~spark_mq.ConsumerGroup`, and need no Spark.
"""

from spark_mq.inspect.activity import THROUGHPUT_SCHEMA, MessageRecord
from spark_mq.inspect.blockers import Blocker
from spark_mq.inspect.changes import ChangeRecord
from spark_mq.inspect.find import find_queues
from spark_mq.inspect.lanes import HotKey, LaneInfo, LaneSummary, PriorityInfo
from spark_mq.inspect.leases import LeaseInfo, MessagePosition
from spark_mq.inspect.letters import DeadLetterReason, DeadLetterReasons
from spark_mq.inspect.overview import Health, Problem, QueueOverview
from spark_mq.inspect.peek import PeekedMessage
from spark_mq.inspect.positions import STATE_NAMES
from spark_mq.inspect.seeking import SeekPreview
from spark_mq.inspect.sweeps import SweepState
from spark_mq.inspect.workers import LastError, WorkerInfo

__all__ = [
    "STATE_NAMES",
    "THROUGHPUT_SCHEMA",
    "Blocker",
    "ChangeRecord",
    "DeadLetterReason",
    "DeadLetterReasons",
    "Health",
    "HotKey",
    "LaneInfo",
    "LaneSummary",
    "LastError",
    "LeaseInfo",
    "MessagePosition",
    "MessageRecord",
    "PeekedMessage",
    "PriorityInfo",
    "Problem",
    "QueueOverview",
    "SeekPreview",
    "SweepState",
    "WorkerInfo",
    "find_queues",
]
