"""Publish, ack and sweep as tasks of Airflow. Each names its queue as ``SparkMQHook`` does."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from spark_mq.integrations.airflow.hooks import SparkMQHook, check_place
from spark_mq.message import Message
from spark_mq.queue import Queue


class _QueueOperator(BaseOperator):
    template_fields: ClassVar[Sequence[str]] = ("path", "spark_mq_conn_id")

    def __init__(
        self,
        *,
        path: str | PathLike[str] | None = None,
        spark_mq_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.spark_mq_conn_id = check_place(path, spark_mq_conn_id), spark_mq_conn_id

    def open_queue(self) -> Queue:
        return SparkMQHook(self.path, self.spark_mq_conn_id).get_conn()


class PublishOperator(_QueueOperator):
    """Publish messages as one commit. Returns their number.

    `messages` is text, a :class:`~spark_mq.Message` with a key or headers, or a list of them. Jinja
    templates in texts are rendered. If a try failed after its commit, the retry of the task
    publishes the messages again.
    """

    template_fields: ClassVar[Sequence[str]] = (*_QueueOperator.template_fields, "messages")

    def __init__(self, *, messages: str | Message | list[str | Message], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.messages = messages

    def execute(self, context: Any) -> int:
        """Publish the messages."""
        return len(self.open_queue().publish(self.messages).sequences)


class AckOperator(_QueueOperator):
    """Ack the messages of a lease, which a ``MessageSensor`` of the same group returned.

    `lease_id` is, for example, ``"{{ ti.xcom_pull('wait')['lease_id'] }}"``. The task fails with
    ``LeaseLost`` if the lease has expired and another worker has the messages.
    """

    template_fields: ClassVar[Sequence[str]] = (
        *_QueueOperator.template_fields,
        "group",
        "lease_id",
    )

    def __init__(self, *, group: str, lease_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group, self.lease_id = group, lease_id

    def execute(self, context: Any) -> None:
        """Ack all that the lease holds."""
        self.open_queue().group(self.group, create=False).ack(self.lease_id)


class SweepOperator(_QueueOperator):
    """Sweep a queue, in a DAG of its own.

    Run it every minute, or every five minutes if workers lease rarely.
    """

    def execute(self, context: Any) -> None:
        """Sweep once."""
        self.open_queue().sweep()
