"""Test code that uses a queue, with a queue in memory: see ``docs/howto/testing.md``.

The queue has the same Delta tables as on a disk, but in the memory of one process. So it cannot be
pickled, and a Spark stream cannot read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Unpack

import pyarrow as pa

from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.errors import InvalidHandlerResult, InvalidOption, InvalidSchema
from spark_mq.group import ConsumerGroup
from spark_mq.handler import HandlerPolicy, is_settle_result, parse_result, parts_for
from spark_mq.lease import Lease
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.setting_options import CreateOptions
from spark_mq.ledger.settings import new_settings
from spark_mq.message import ReceivedMessage
from spark_mq.operations.create import create_queue_tables, open_context
from spark_mq.operations.settle import SettleResult, summarize
from spark_mq.operations.sinks import refuse_publish
from spark_mq.queue import Queue
from spark_mq.storage.publishes import PublishReceipt
from spark_mq.util.clock import Clock, Duration, optional_datetime, system_clock, to_micros
from spark_mq.util.failures import cause_of, to_failure
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import validate_duration
from spark_mq.worker.pools import is_async

__all__ = [
    "FakeBatchLease",
    "ManualClock",
    "drain_group",
    "memory_queue",
    "next_due",
    "run_batch",
]


_MAX_ROUNDS = 1_000


class ManualClock:
    """A clock that only a test moves. Pass it as ``clock`` to a queue.

    It begins at `start`, an aware datetime, or at the present. A pickled copy is independent. On a
    disk or in an object store, a queue's commits carry the time of the machine.

    Examples
    --------
    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance("1h")
    >>> clock()
    datetime.datetime(2026, 1, 1, 1, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.notifier = Notifier()
        """Wakes callers that wait for messages when the clock is moved."""
        now = datetime.now(UTC)
        self._now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        if start is not None:
            self.set(start)

    def __call__(self) -> datetime:
        return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now.isoformat()})"

    def advance(self, duration: Duration) -> None:
        """Move the clock forward by seconds, a timedelta, or text such as "30s"."""
        self._now += timedelta(microseconds=validate_duration("duration", duration, zero=True))
        self.notifier.notify()

    def set(self, to: datetime) -> None:
        """Set the clock to an aware datetime, which may be earlier."""
        to_micros(to)  # refuses a naive one
        self._now = to.astimezone(UTC)
        self.notifier.notify()

    def __reduce__(self) -> Any:
        return ManualClock, (self._now,)


def memory_queue(
    clock: Clock | None = None,
    **settings: Unpack[CreateOptions],
) -> Queue:
    """Return a queue in memory, with a dead-letter queue in memory.

    The `clock` returns the time, also that of commits, so that retention follows it. The settings
    are those of :meth:`spark_mq.Queue.create`, without ``dead_letter_path``.

    Examples
    --------
    >>> queue = memory_queue(ManualClock(), max_delivery_attempts=1)
    >>> _ = queue.publish("poison")
    >>> _ = queue.group().lease("worker-1").nack()
    >>> queue.sweep().routed
    1
    >>> queue.dead_letters.group().lease("worker-1").messages[0].value
    b'poison'
    """
    if "dead_letter_path" in settings:
        raise InvalidOption(
            "a queue in memory has its own dead-letter queue in memory: leave dead_letter_path out",
            option="dead_letter_path",
            value=settings["dead_letter_path"],
        )
    files = MemoryFiles(clock or system_clock)
    path = f"{files.root}/memory"
    create_queue_tables(path, new_settings(settings), {}, exist_ok=False)
    return Queue(open_context(path, {}, clock))


def next_due(group: ConsumerGroup) -> datetime | None:
    """Return when the first lease or delay of a group ends (aware, UTC), or None."""
    ledger = group._ledger
    index = ledger.messages.index()
    at = next_due_at(ledger.current(), index, ledger.settings(), ledger.now())
    return optional_datetime(at)


def drain_group(
    group: ConsumerGroup,
    clock: ManualClock | None,
    handler: Callable[[Any], Any] | None = None,
    **options: Any,
) -> list[ReceivedMessage]:
    """Work until a group is empty, as the fixture ``drain``. Return what was delivered, in order.

    Parameters
    ----------
    group
        A group of a queue in memory.
    clock
        The queue's clock, which is moved to the times of delayed messages and retries. With None,
        only what is due now is delivered.
    handler
        As for :meth:`spark_mq.ConsumerGroup.work`, also ``async``. Default: all messages are acked.
    **options
        As for :meth:`spark_mq.ConsumerGroup.work`, but by default with ``on_error="raise"`` and
        ``max_messages=100``.

    Raises
    ------
    AssertionError
        The group is not empty after 1,000 rounds.

    Examples
    --------
    >>> queue = memory_queue(clock := ManualClock())
    >>> receipt = queue.publish(["a", "b"])
    >>> [message.value for message in drain_group(queue.group(), clock)]
    [b'a', b'b']
    """
    delivered: list[ReceivedMessage] = []
    watched = _watched(handler, delivered)
    given = {"worker_id": "drain", "max_messages": 100, "on_error": "raise", **options}
    for _ in range(_MAX_ROUNDS):
        group.work(watched, until="empty", **given)
        due = next_due(group) if clock is not None else None
        if due is None or clock is None:
            return delivered
        clock.set(due)
    raise AssertionError(f"group {group.name!r} is not empty after {_MAX_ROUNDS} rounds")


def _watched(handler: Callable[[Any], Any] | None, delivered: list[ReceivedMessage]) -> Any:
    """Return a handler that notes its messages before it calls another one."""

    def note(work: Lease | ReceivedMessage) -> None:
        delivered.extend(work.messages if isinstance(work, Lease) else [work])

    if handler is not None and is_async(handler):

        async def handle_async(work: Any) -> Any:
            note(work)
            return await handler(work)

        return handle_async

    def handle(work: Any) -> Any:
        note(work)
        return None if handler is None else handler(work)

    return handle


class FakeBatchLease:
    """A :class:`~spark_mq.spark.BatchLease` in memory, for ``process(batch, lease)``.

    It settles in the queue, by the real rules. Rows may be a DataFrame of Spark or pandas, an Arrow
    table, a list of dicts, or a list of sequences. They need no column but ``sequence``.

    The `lease` is of a queue in memory, and `batch` is what :meth:`read` returns. Default: the
    messages as an Arrow table.

    Examples
    --------
    >>> from spark_mq.testing import memory_queue
    >>> queue = memory_queue()
    >>> receipt = queue.publish(["good", "bad"])
    >>> lease = FakeBatchLease(queue.group().lease("test", max_messages=10))
    >>> lease.reject([{"sequence": lease.read()["sequence"][1].as_py()}], error="bad").settled
    1
    """

    def __init__(self, lease: Lease, batch: Any = None) -> None:
        self._lease = lease
        self._batch = lease.table() if batch is None else batch
        self.settled = 0
        """Messages settled by this object."""

    @property
    def lease_id(self) -> str:
        """Return the id of the lease."""
        return self._lease.lease_id

    @property
    def lease_ids(self) -> tuple[str, ...]:
        """Return the ids of the batch's leases. There is one."""
        return (self.lease_id,)

    @property
    def delta_options(self) -> dict[str, str]:
        """Return options for a Delta sink: an application id for tests, and version 0."""
        return {"txnAppId": f"test/{self.lease_id}", "txnVersion": "0"}

    @property
    def publish_options(self) -> dict[str, str]:
        """Return options for a write to a queue: a producer for tests, and number 0."""
        return {"producerId": f"test-{self.lease_id}", "producerSequence": "0"}

    def publish(self, queue: Any, messages: Any, *, part: str | None = None) -> PublishReceipt:
        """Publish as :meth:`spark_mq.spark.BatchLease.publish`. A repeat raises InvalidOption."""
        refuse_publish(self._lease._ledger, queue.path)
        producer = f"test-{self.lease_id}" + ("" if part is None else f".{part}")
        receipt: PublishReceipt = queue.publish(
            messages, producer_id=producer, producer_sequence=0, on_duplicate="skip"
        )
        if receipt.duplicate:
            raise InvalidOption(
                f"this batch has published to {queue.path} already. Give part= a name, another one "
                "for each call",
                option="part",
                value=part,
            )
        return receipt

    def read(self) -> Any:
        """Return the batch."""
        return self._batch

    def append(self, df: Any, *, schema_mode: Literal["merge"] | None = None) -> bool:
        """Append rows to the group's sink on disk, as :meth:`spark_mq.spark.BatchLease.append`."""
        if hasattr(df, "toArrow"):
            df = df.toArrow()
        elif not hasattr(df, "__arrow_c_stream__"):
            df = pa.Table.from_pylist(list(df))
        return self._lease.append(df, schema_mode=schema_mode)

    def ack(self, rows: Any) -> SettleResult:
        """Ack some rows of the batch now."""
        return self._count(self._lease.ack([row["sequence"] for row in _rows(rows)]))

    def nack(self, rows: Any, *, delay: Any = None, error: str | None = None) -> SettleResult:
        """Give some rows of the batch back as failed, as :meth:`spark_mq.spark.BatchLease.nack`."""
        given = {"delay": delay, "error": error}
        return self._each(rows, given, self._lease.nack)

    def reject(self, rows: Any, *, error: str | None = None) -> SettleResult:
        """Make some rows of the batch dead, as :meth:`spark_mq.spark.BatchLease.reject`."""
        return self._each(rows, {"error": error}, self._lease.reject)

    def _each(
        self, rows: Any, given: Mapping[str, Any], settle: Callable[..., SettleResult]
    ) -> SettleResult:
        """Settle the rows, those with equal arguments together."""
        alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for row in _rows(rows):
            own = [row.get(name) for name in given]
            values = zip(own, given.values(), strict=True)
            alike[tuple(other if own is None else own for own, other in values)].append(
                row["sequence"]
            )
        total = SettleResult(0)
        for values_of, sequences in alike.items():
            arguments = dict(zip(given, values_of, strict=True))
            done = self._count(settle(sequences, **arguments))
            total = SettleResult(
                total.settled + done.settled, total.already_settled + done.already_settled
            )
        return total

    def _count(self, result: SettleResult) -> SettleResult:
        self.settled += result.settled
        return result


def run_batch(
    process: Callable[[Any, Any], Any],
    group: ConsumerGroup,
    *,
    spark: Any = None,
    max_messages: int = 1000,
    on_error: str = "raise",
    ack: str = "on_success",
) -> FakeBatchLease | None:
    """Lease messages, call ``process(batch, lease)`` once, and settle the rest.

    Parameters
    ----------
    process
        The function under test. It may return failed rows, as with ``for_each_batch``.
    group
        A group of a queue in memory.
    spark
        A SparkSession, which makes the batch a DataFrame. Default: the batch is an Arrow table.
    on_error, ack
        As for :meth:`spark_mq.ConsumerGroup.work`. "raise" raises the error here.

    Returns
    -------
    FakeBatchLease or None
        The lease that the function got. None if nothing was due, and the function was not called.
    """
    policy = HandlerPolicy.validated(on_error, ack)
    lease = group.lease("test", max_messages=max_messages)
    if lease is None:
        return None
    table = lease.table()
    batch = table if spark is None else spark.createDataFrame(table)
    fake, granted = FakeBatchLease(lease, batch), lease._held.unsettled()
    if policy.ack == "on_receive":
        lease.ack()
    try:
        returned = process(batch, fake)
        settled = returned is None or is_settle_result(returned)
        rows = None if settled else _verdict_rows(returned)
        result: Any = parse_result(rows, lease.lease_id, granted)
    except BaseException as error:
        result = to_failure(error, "process")
        if on_error == "raise":
            raise result from cause_of(result)
    parts = parts_for(result, policy, {lease.lease_id: lease._held.unsettled()})
    if parts:
        outcomes = lease._ledger.settle(parts)
        fake._count(summarize([lease.lease_id] * len(outcomes), outcomes))
    return fake


_VERDICT = ("sequence", "outcome", "delay", "error")


def _verdict_rows(returned: Any) -> list[dict[str, Any]]:
    """Return the failed rows of a function, without the other columns of the batch."""
    if not isinstance(returned, pa.Table | list | tuple) and not hasattr(returned, "columns"):
        raise InvalidHandlerResult(
            f"process returned {type(returned).__name__}: it must return None, or the rows that "
            "failed",
            option="process",
            value=type(returned).__name__,
        )
    return [{name: row[name] for name in _VERDICT if name in row} for row in _rows(returned)]


def _rows(rows: Any) -> list[dict[str, Any]]:
    """Return rows of any kind as dicts. Raises InvalidSchema without a sequence."""
    if isinstance(rows, pa.Table):
        given = rows.to_pylist()
    elif hasattr(rows, "collect"):  # Spark
        given = [row.asDict() for row in rows.collect()]
    elif hasattr(rows, "to_dict"):  # pandas
        given = rows.to_dict("records")
    elif isinstance(rows, list | tuple | range | set):
        given = [_row(row) for row in rows]
    else:
        raise InvalidOption(
            f"the rows cannot be settled: they are a {type(rows).__name__}. Give rows of the batch "
            "with their column sequence, or a list of sequences",
            option="df",
            value=type(rows).__name__,
        )
    if any(row.get("sequence") is None for row in given):
        raise InvalidSchema(
            "a row has no sequence: give rows of the batch with that column", column="sequence"
        )
    return list(given)


def _row(row: Any) -> dict[str, Any]:
    return dict(row) if isinstance(row, Mapping) else {"sequence": row}
