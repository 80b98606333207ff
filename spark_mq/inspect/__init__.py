"""Show queues and groups, without a lease or a commit.

The views show counts, leases, messages, the past and problems. They are methods of
:class:`~spark_mq.Queue` and :class:`~spark_mq.ConsumerGroup`, and need no Spark.
"""

from spark_mq.inspect.activity import THROUGHPUT_SCHEMA, ChangeRecord, MessageRecord
from spark_mq.inspect.durations import GroupDurations, Histogram
from spark_mq.inspect.health import Blocker, Health, Problem
from spark_mq.inspect.lanes import LaneInfo, LaneSummary, PriorityInfo
from spark_mq.inspect.leases import LastError, LeaseInfo, MessagePosition, WorkerInfo
from spark_mq.inspect.letters import Failure, Failures, HotKey
from spark_mq.inspect.overview import QueueOverview, SweepState
from spark_mq.inspect.peek import PeekedMessage
from spark_mq.inspect.plots import QueuePlots
from spark_mq.inspect.views import SeekPreview, find_queues
from spark_mq.ledger.states import STATE_NAMES
from spark_mq.util.records import ArrowRows

__all__ = [
    "STATE_NAMES",
    "THROUGHPUT_SCHEMA",
    "ArrowRows",
    "Blocker",
    "ChangeRecord",
    "Failure",
    "Failures",
    "GroupDurations",
    "Health",
    "Histogram",
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
    "QueuePlots",
    "SeekPreview",
    "SweepState",
    "WorkerInfo",
    "find_queues",
]
