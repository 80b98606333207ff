"""Turn messages into events of Airflow, and ack them once Airflow has stored the events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from os import PathLike
from typing import Any, Final

import structlog
from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from spark_mq.errors import LeaseLost, QueueNotFound, StorageError
from spark_mq.group import ConsumerGroup
from spark_mq.integrations.airflow.hooks import SparkMQHook, check_place, to_payload
from spark_mq.lease import Lease
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import (
    invalid,
    validate_count,
    validate_duration,
    validate_group,
)

_log = structlog.get_logger(__name__)

MAX_MESSAGES: Final = 1_000
"""Below 1,024, the events that Airflow keeps for a trigger before it fails it as too slow."""


class MessageTrigger(BaseEventTrigger):
    """Create an asset event for each message of a group. Use it in an ``AssetWatcher``.

    A message is acked after Airflow has stored its event. If the triggerer dies before that, the
    message is delivered again, so its event may be there twice.

    Parameters
    ----------
    path, spark_mq_conn_id
        As for :class:`~spark_mq.integrations.airflow.hooks.SparkMQHook`.
    group
        The consumer group, which is created if it does not exist.
    max_messages
        The most messages of a lease, from 1 to 1,000. Airflow takes one or two seconds for each
        lease.
    poll_interval
        How often an idle trigger looks for messages.
    visibility_timeout
        How long after the death of a triggerer its messages are due again. A live trigger extends
        its lease. Default: the group's setting.
    """

    def __init__(
        self,
        *,
        path: str | PathLike[str] | None = None,
        group: str,
        spark_mq_conn_id: str | None = None,
        max_messages: int = 100,
        poll_interval: float | str = 5,
        visibility_timeout: float | str | None = None,
    ) -> None:
        super().__init__()
        path = check_place(path, spark_mq_conn_id)
        validate_group("group", group)
        max_messages = validate_count("max_messages", max_messages)
        if max_messages > MAX_MESSAGES:
            problem = f"is more than Airflow keeps for a trigger: use at most {MAX_MESSAGES}"
            raise invalid("max_messages", max_messages, problem)
        validate_duration("poll_interval", poll_interval)
        if visibility_timeout is not None:
            validate_duration("visibility_timeout", visibility_timeout)
        self._arguments = {
            "path": path,
            "group": group,
            "spark_mq_conn_id": spark_mq_conn_id,
            "max_messages": max_messages,
            "poll_interval": poll_interval,
            "visibility_timeout": visibility_timeout,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores, which has no credentials."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self._arguments)

    def shared_stream_key(self) -> tuple[str, ...] | None:
        """Return a key for watchers. Only a shared stream says when an event is stored."""
        if self.task_instance is not None:
            return None
        return ("spark_mq", *(str(value) for value in self._arguments.values()))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return what leases and acks for this trigger."""
        return _Producer(**kwargs)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """Turn each message into an event."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse to serve a deferred task, which would take one event and lose the others."""
        raise RuntimeError(
            "MessageTrigger serves an AssetWatcher, not a deferred task: use MessageSensor there"
        )
        yield


class _Producer(SharedStreamProducer):
    """Lease messages, and settle them as Airflow reports what became of their events."""

    def __init__(
        self, *, poll_interval: float | str, group: str, max_messages: int,
        visibility_timeout: float | str | None, **place: str | None,
    ) -> None:  # fmt: skip
        self._hook = SparkMQHook(**place)
        self._name = group
        self._poll = validate_duration("poll_interval", poll_interval) / SECOND
        self._options: dict[str, Any] = {
            "max_messages": max_messages,
            "visibility_timeout": visibility_timeout,
        }
        self._group: ConsumerGroup | None = None
        self._lease: Lease | None = None
        self._open = 0  # messages of the lease without an outcome
        self._all_settled = asyncio.Event()
        self._extending = contextlib.ExitStack()
        self._lock = threading.Lock()  # the poll may end while a thread leases
        self._closed = False

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], int]]:
        while True:
            try:
                payloads = await asyncio.to_thread(self._next)
            except (QueueNotFound, StorageError) as error:  # it may be created after its DAG
                await _log.awarning("the queue cannot be read, trying again", error=str(error))
                payloads = []
            if not payloads:
                await asyncio.sleep(self._poll)
                continue
            # The next lease waits, so that the events in flight are never more than this one's.
            self._open = len(payloads)
            self._all_settled.clear()
            for payload in payloads:
                yield payload, payload["sequence"]
            await self._all_settled.wait()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await asyncio.to_thread(self._settle, batch)
        self._open -= len(batch)
        if not self._open:
            self._all_settled.set()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _next(self) -> list[dict[str, Any]]:
        """Lease and read. This runs in a thread, because it reads files."""
        if self._group is None:
            self._group = self._hook.get_conn().group(self._name)
        self._extending.close()
        lease = self._group.lease(**self._options)
        if lease is None:
            return []
        with self._lock:
            if not self._closed:
                self._lease = lease
                self._extending.enter_context(lease.keep_alive())
        if self._lease is not lease:
            lease.release()
            return []
        return [{**to_payload(m), "group": self._name} for m in lease.messages]

    def _settle(self, batch: Sequence[AdvanceItem]) -> None:
        assert self._lease is not None
        stored = [item.broker_payload for item in batch if item.outcome.is_clean]
        failed = [item.broker_payload for item in batch if not item.outcome.is_clean]
        # It is no fault of the messages if Airflow cannot store their events.
        for settle, sequences in ((self._lease.ack, stored), (self._lease.release, failed)):
            try:
                if sequences:
                    settle(sequences)
            except LeaseLost as error:  # another triggerer has these messages or gets them
                _log.warning("messages will be delivered again", error=str(error))

    def _close(self) -> None:
        with self._lock:
            self._closed, lease = True, self._lease
            self._extending.close()
        if lease is not None:
            with contextlib.suppress(LeaseLost):
                lease.release()


class MessagesDueTrigger(BaseTrigger):
    """Fire once when a group has messages to lease, for which a ``MessageSensor`` waits."""

    def __init__(
        self,
        *,
        path: str | PathLike[str] | None = None,
        group: str,
        spark_mq_conn_id: str | None = None,
        poll_interval: float | str = 5,
    ) -> None:
        super().__init__()
        path = check_place(path, spark_mq_conn_id)
        self._place = {"path": path, "spark_mq_conn_id": spark_mq_conn_id}
        self._name = validate_group("group", group)
        self._poll_interval = poll_interval
        self._seconds = validate_duration("poll_interval", poll_interval) / SECOND

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores, which has no credentials."""
        arguments = {**self._place, "group": self._name, "poll_interval": self._poll_interval}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until messages are due."""
        group: ConsumerGroup | None = None
        while True:
            try:
                if group is None:
                    group = await asyncio.to_thread(self._connect)
                stats = await asyncio.to_thread(group.stats)
                if stats.ready and not stats.blocked_because:
                    yield TriggerEvent({"ready": stats.ready})
                    return
            except StorageError as error:
                if error.lasting and group is None:  # the task fails, and says why
                    raise
                await self.log.awarning("the queue is out of reach, trying again: %s", error)
            await asyncio.sleep(self._seconds)

    def _connect(self) -> ConsumerGroup:
        return SparkMQHook(**self._place).get_conn().group(self._name).ensure()


class SparkMQMessageQueueProvider(BaseMessageQueueProvider):
    """Serve ``MessageQueueTrigger(scheme="spark_mq", ...)`` by a :class:`MessageTrigger`."""

    scheme = "spark_mq"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the class of the trigger. Its arguments are those after ``scheme``."""
        return MessageTrigger
