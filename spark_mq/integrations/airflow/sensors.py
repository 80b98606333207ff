"""Wait for messages in a task, without a worker of Airflow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator

from spark_mq.integrations.airflow.hooks import SparkMQHook, check_place, to_payload
from spark_mq.integrations.airflow.triggers import MessagesDueTrigger
from spark_mq.util.validation import validate_count, validate_duration, validate_group


class MessageSensor(BaseSensorOperator):
    """Wait until messages are due, lease them, and return them with their lease.

    The task is deferred while it waits, so it occupies no worker. It returns a dict with
    ``lease_id`` and ``messages``. Ack them downstream, by an ``AckOperator``, or they are delivered
    again when the lease expires.

    Parameters
    ----------
    path, spark_mq_conn_id
        As for :class:`~spark_mq.integrations.airflow.hooks.SparkMQHook`.
    group
        The consumer group, which is created if it does not exist.
    max_messages
        The most messages to lease. They go into an XCom, so keep it small.
    visibility_timeout
        How long the lease lasts, which must cover the tasks up to the ack. Default: the group's
        setting.
    poll_interval
        How often the triggerer looks for messages.
    **kwargs
        As for any sensor. ``timeout`` limits the whole wait of a try. ``mode`` and
        ``poke_interval`` have no effect.
    """

    template_fields: ClassVar[Sequence[str]] = ("path", "spark_mq_conn_id", "group")

    def __init__(
        self,
        *,
        path: str | PathLike[str] | None = None,
        group: str,
        spark_mq_conn_id: str | None = None,
        max_messages: int = 1,
        visibility_timeout: float | str | None = None,
        poll_interval: float | str = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.spark_mq_conn_id = check_place(path, spark_mq_conn_id), spark_mq_conn_id
        self.group = group
        self.max_messages = validate_count("max_messages", max_messages)
        validate_duration("poll_interval", poll_interval)
        if visibility_timeout is not None:
            validate_duration("visibility_timeout", visibility_timeout)
        self.visibility_timeout = visibility_timeout
        self.poll_interval_seconds = poll_interval

    def execute(self, context: Any) -> dict[str, Any]:
        """Lease messages, or defer until some are due."""
        return self._lease_or_defer(time.time() + self.timeout)

    def resume(self, context: Any, event: Any, deadline: float) -> dict[str, Any]:
        """Lease messages. Wait again if another worker was faster."""
        return self._lease_or_defer(deadline)

    def _lease_or_defer(self, deadline: float) -> dict[str, Any]:
        validate_group("group", self.group)
        group = SparkMQHook(self.path, self.spark_mq_conn_id).get_conn().group(self.group)
        lease = group.lease(
            max_messages=self.max_messages, visibility_timeout=self.visibility_timeout
        )
        if lease is not None:
            messages = [to_payload(message) for message in lease.messages]
            return {"lease_id": lease.lease_id, "messages": messages}
        self.defer(
            trigger=MessagesDueTrigger(
                path=self.path,
                group=self.group,
                spark_mq_conn_id=self.spark_mq_conn_id,
                poll_interval=self.poll_interval_seconds,
            ),
            method_name="resume",
            kwargs={"deadline": deadline},
            timeout=timedelta(seconds=max(deadline - time.time(), 0)),
        )
        raise AssertionError("defer raises")
