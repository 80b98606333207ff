"""Define the options of a stream, and the plan of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from spark_mq.errors import InvalidOption
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.streaming.lanes import LaneRuns
from spark_mq.util.clock import SECOND

__all__ = ["BatchPlan", "LeaseLimits", "StreamOptions", "check_attempts"]

LeaseLimits = tuple[int, int | None]  # the most messages and bytes that a lease may hold


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How one stream leases. Durations are in microseconds."""

    worker_id: str = "spark"  # a label for people
    max_messages: int = 100_000
    max_bytes: int | None = None
    visibility_timeout: int | None = None  # the group's setting if None
    max_lease_duration: int = 1800 * SECOND  # of one batch
    ack_on_commit: bool = True  # Spark's commit of a batch acks its unsettled messages
    fail_on_data_loss: bool = True  # raise if the queue's hard limit dropped unsettled messages


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices of a batch under one lease, each with its range."""

    lease_id: str = ""
    expires_at: int = 0
    slices: tuple[tuple[FileSlice, Range], ...] = ()
    lane_runs: tuple[LaneRuns, ...] = ()  # of each slice. Empty if the group is not ordered


def check_attempts(group: str, settings: GroupSettings) -> None:
    """Raise InvalidOption if the group's settings leave no attempt for a batch's replay."""
    attempts = settings.max_delivery_attempts
    if attempts is not None and attempts < 3:
        raise InvalidOption(
            f"group {group!r} cannot be read by a stream: its max_delivery_attempts={attempts} "
            f"leaves no attempt for the replay of a batch. Set 3 or more",
            option="max_delivery_attempts",
            value=attempts,
        )
