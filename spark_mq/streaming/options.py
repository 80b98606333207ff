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

LeaseLimits = tuple[int, int | None]
"""The most messages and bytes that a lease may hold."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The leasing options of one stream. Durations are in microseconds.

    Attributes
    ----------
    worker_id
        A label for people.
    max_messages, max_bytes
        The most messages and bytes of a batch. Default: 100,000 messages, any bytes.
    visibility_timeout
        How long the lease of a dead worker lasts. None: the group's setting.
    max_lease_duration
        How long one batch may take. Default: 30 minutes.
    ack_on_commit
        Whether Spark's commit of a batch acks its unsettled messages. Default: True.
    fail_on_data_loss
        Whether to raise if the queue's hard limit dropped unsettled messages. Default: True.
    """

    worker_id: str = "spark"
    max_messages: int = 100_000
    max_bytes: int | None = None
    visibility_timeout: int | None = None
    max_lease_duration: int = 1800 * SECOND
    ack_on_commit: bool = True
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices of a batch under one lease, each with its range.

    In an ordered group ``lane_runs`` has the lanes of each slice's rows. Otherwise it is empty.
    """

    lease_id: str = ""
    expires_at: int = 0
    slices: tuple[tuple[FileSlice, Range], ...] = ()
    lane_runs: tuple[LaneRuns, ...] = ()


def check_attempts(group: str, settings: GroupSettings) -> None:
    """Raise InvalidOption if a batch's replay has no attempt left.

    The group's settings decide.
    """
    attempts = settings.max_delivery_attempts
    if attempts is not None and attempts < 3:
        raise InvalidOption(
            f"group {group!r} cannot be read by a stream: its max_delivery_attempts={attempts} "
            f"leaves no attempt for the replay of a batch. Set 3 or more",
            option="max_delivery_attempts",
            value=attempts,
        )
