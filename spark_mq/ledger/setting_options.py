"""Type the settings that a user gives. Written by ``docs/write_reference.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from spark_mq.util.clock import Duration


class GroupOptions(TypedDict, total=False):
    """Settings of a group, also the defaults of new groups."""

    visibility_timeout: Duration
    max_delivery_attempts: int | None
    on_max_deliveries: str
    on_reject: str
    on_expired: str
    retry: str | Sequence[Duration]
    retry_delay: Duration
    max_retry_delay: Duration
    retry_jitter: float
    max_failures: int | None
    max_retry_age: Duration | None
    clock_skew: Duration
    max_in_flight: int | None
    max_in_flight_bytes: int | str | None
    rate_limit: str | None
    byte_rate_limit: str | None
    rate_burst: Duration
    max_tracked_ranges: int
    breaker_threshold: int | None
    breaker_reset_timeout: Duration
    breaker_max_wait: Duration
    order: str
    weights: Mapping[str, float] | str | None
    max_in_flight_per_key: int | None
    filter: Mapping[str, object] | str | None
    sink: str | os.PathLike[str] | None
    sink_key: str | None


class QueueOptions(TypedDict, total=False):
    """Settings of a queue that may change."""

    retention: Duration
    hard_retention: Duration | None
    history_retention: Duration
    delivery_delay: Duration | None
    message_ttl: Duration | None
    dedup_window: Duration | None
    dedup_until: str
    dedup_replaces: bool
    group_expiry: Duration | None


class CreateOptions(QueueOptions, GroupOptions, total=False):
    """Settings of a new queue, and the defaults of its groups."""

    lanes: int
    dead_letter_path: str | os.PathLike[str] | None
    durable: bool
