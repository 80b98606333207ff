"""The worker loop for plain Python: lease, call the handler, settle, until it is stopped."""

from __future__ import annotations

import os
import re
import socket
import threading

from spark_mq.handler import HandlerPolicy
from spark_mq.operations.acquire import LeaseOptions
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.validation import (
    validate_callable,
    validate_count,
    validate_duration,
    validate_name,
)
from spark_mq.worker_loop import Handler, WorkerLoop, WorkSummary

__all__ = ["Handler", "WorkSummary", "run_worker"]


def run_worker(
    ledger: GroupLedger,
    handler: Handler,
    *,
    worker_id: str | None = None,
    threads: int = 1,
    max_messages: int = 1,
    visibility_timeout: Duration | None = None,
    max_lease_duration: Duration = "30m",
    on_error: str = "nack",
    ack: str = "after",
    graceful_timeout: Duration = "30s",
    stop: threading.Event | None = None,
    max_poll_interval: Duration = "500ms",
    until_empty: bool = False,
    fail_on_data_loss: bool = True,
) -> WorkSummary:
    """Run a handler for one lease after the other: see :meth:`spark_mq.ConsumerGroup.work`."""
    validate_callable("handler", handler, "lease")
    limit = validate_duration("max_lease_duration", max_lease_duration)
    timeout = None
    if visibility_timeout is not None:
        timeout = validate_duration("visibility_timeout", visibility_timeout)
    name = validate_name("worker_id", worker_id or _default_worker_id())
    messages = validate_count("max_messages", max_messages)
    loop = WorkerLoop(
        ledger,
        handler,
        LeaseOptions(name, messages, timeout, fail_on_data_loss),
        HandlerPolicy.validated(on_error, ack),
        limit,
        stop or threading.Event(),
        validate_duration("max_poll_interval", max_poll_interval) / SECOND,
        until_empty,
    )
    grace = validate_duration("graceful_timeout", graceful_timeout, zero=True) / SECOND
    return loop.run(validate_count("threads", threads, most=1_000), grace)


def _default_worker_id() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"
