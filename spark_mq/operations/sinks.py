"""Set the sink of a group, and append the rows of a lease to it, once.

:class:`QueueSink` does for a queue what :mod:`spark_mq.storage.delta_sink` does for a Delta table.
A writer is a producer there, so ``messages/`` keeps its last number in the commit that publishes.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from spark_mq.delta.object_store import absolute_path, canonical_uri
from spark_mq.errors import (
    InvalidHandlerResult,
    InvalidOption,
    InvalidSchema,
    LeaseLost,
    NotAQueue,
    QueueNotFound,
)
from spark_mq.ledger.owner_commands import Configure
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, NACK, RELEASE
from spark_mq.ledger.sink_writes import SinkWrite, parse_writes
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.create import check_home, is_delta_table, open_context
from spark_mq.operations.publish import publish_messages
from spark_mq.storage.delta_sink import DeltaSink
from spark_mq.storage.publishes import fence_of, producer_txn
from spark_mq.util.validation import invalid


class QueueSink:
    """A queue as the sink of a group. `names` is what the names of its producers begin with."""

    def __init__(self, queue: QueueContext, names: str) -> None:
        self._queue, self._names = queue, names

    @property
    def path(self) -> str:
        return self._queue.path

    @property
    def storage_options(self) -> Mapping[str, str]:
        return self._queue.storage_options

    def has_one_of(self, writes: Sequence[SinkWrite]) -> bool:
        """Return whether the queue has one of the earlier writes of a lease. Fence the others."""
        with self._unless_replaced():
            messages = self._queue.messages
            # In order, and all of them, as in DeltaSink.
            found = [messages.has_or_fence(self._txn(one), one.number) for one in writes]
            return any(found)

    def append(self, rows: Any, write: SinkWrite, schema_mode: str | None = None) -> None:
        """Publish messages in the write of a lease. Raise LeaseLost if it was fenced."""
        self.check_schema_mode(schema_mode)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            rows = pa.table(rows)
        with self._unless_replaced():
            receipt = publish_messages(
                self._queue, rows, producer_id=self.producer_id(write),
                producer_sequence=write.number, on_duplicate="skip", deliver_at=None,
            )  # fmt: skip
        if receipt.duplicate:
            self.check_own(write)

    def check_schema_mode(self, schema_mode: str | None) -> None:
        if schema_mode is not None:
            raise InvalidOption(
                "schema_mode is for a sink that is a Delta table, and this one is a queue. Leave "
                "it out",
                option="schema_mode",
                value=schema_mode,
            )

    def check_own(self, write: SinkWrite) -> None:
        """Raise LeaseLost if another worker has fenced a write."""
        fenced = self._queue.messages.last_number(fence_of(self._txn(write)))
        if fenced is not None and fenced >= write.number:
            raise LeaseLost(
                f"the messages were not published to {self.path}: another worker has the lease's "
                "messages, and has made sure that only it can publish for them",
                lost=[],
            )

    @contextmanager
    def _unless_replaced(self) -> Iterator[None]:
        try:
            yield
        except NotAQueue as error:
            raise other_queue(self.path) from error

    def producer_id(self, write: SinkWrite) -> str:
        """Return the producer id under which a write is published, with the write's number."""
        return f"{self._names}.{write.writer}"

    def _txn(self, write: SinkWrite) -> str:
        return producer_txn(self.producer_id(write))


def other_queue(path: str) -> InvalidOption:
    why = (
        "cannot be used: it is another queue than when it was set, and does not "
        "know what the old one had. Configure the group with the sink again, and all unsettled "
        "messages are written there"
    )
    return invalid("sink", path, why)


Sink: TypeAlias = DeltaSink | QueueSink

_TABLE: Final = "table"
_QUEUE: Final = "queue"
# Settings that others of the group must go with.
_JOINT: Final = {
    *("order", "weights", "max_in_flight_per_key"),
    *("retry", "retry_delay", "max_retry_delay"),
}


class _SinkKey(NamedTuple):
    """What the setting ``sink_key`` has, with slashes in between."""

    queue_id: str
    kind: str  # what the sink is: _TABLE or _QUEUE
    table_id: str  # of the table, or of the messages of the queue
    unique: str  # new each time, so that nothing is found of a group that had the sink before


def _clean(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a group with an absolute path of the sink. Raise InvalidOption."""
    settings = dict(given)
    if "sink_key" in settings:
        raise InvalidOption(
            "'sink_key' is set by spark_mq itself: use sink, the path of a Delta table or a queue",
            option="sink_key",
            value=settings["sink_key"],
        )
    if (sink := settings.get("sink")) is not None:
        if not isinstance(sink, str | os.PathLike) or not os.fspath(sink):
            why = (
                "is not a path: give the path or URI of a Delta table or a queue, such as "
                "queue.path"
            )
            raise invalid("sink", sink, why)
        settings["sink"] = absolute_path(sink, "sink")
    return settings


def configure_command(ledger: GroupLedger, given: Mapping[str, Any]) -> Configure:
    settings = _clean(given)
    GroupSettings().changed(**settings).check_order(ledger.messages.lanes)
    if not settings.keys().isdisjoint(_JOINT):
        ledger.settings().changed(**settings).check_together()  # before the group is created
    if "sink" not in settings:
        return Configure(settings)
    rules, queue, sink = ledger.settings(), ledger.queue, settings["sink"]
    key = None
    if sink is not None:
        key = _SinkKey(str(queue.settings.queue_id), *_find(queue, sink), uuid.uuid4().hex)
    old = None if rules.sink_key is None else _SinkKey(*rules.sink_key.split("/"))
    if key is not None and old is not None and sink == rules.sink and key[:3] == old[:3]:
        key = old  # the same sink
    # What the original of a copy has written counts as little as what a sink had that is gone.
    gone = (
        old is not None
        and old != key
        and (old.queue_id != queue.settings.queue_id or _look(queue, str(rules.sink)) != old[1:3])
    )
    text = None if key is None else "/".join(key)
    return Configure({**settings, "sink_key": text}, forget_writes=gone)


def _find(queue: QueueContext, path: str) -> tuple[str, str]:
    """Return the kind and the id of a place that can be a sink. Raise InvalidOption."""
    place = _look(queue, path)
    if place is None:
        why = (
            "cannot be used: there is no Delta table and no queue. Create one by "
            "deltalake.write_deltalake or Queue.create"
        )
        raise invalid("sink", path, why)
    if place[0] == _TABLE:
        DeltaSink(path, queue.storage_options).check()
    return place


def _look(queue: QueueContext, path: str) -> tuple[str, str] | None:
    """Return the kind and the id of what is at a path, or None. Raise NotAQueue."""
    if is_delta_table(path, queue.storage_options):
        return _TABLE, DeltaSink(path, queue.storage_options).table_id()
    try:
        return _QUEUE, _open_queue(queue, path).messages.table_id
    except QueueNotFound:
        return None


def _open_queue(queue: QueueContext, path: str) -> QueueContext:
    return open_context(path, queue.storage_options, queue.clock)


def check_no_sink(ledger: GroupLedger) -> None:
    """Raise InvalidOption for a settle of single messages that their lease does not know of."""
    if ledger.settings().sink is not None:
        raise InvalidOption(
            "the group has a sink, and a lease must know which of its messages it does not write. "
            "Settle single messages by the lease's own methods, before its append",
            option="sequences",
            value=None,
        )


def refuse_publish(ledger: GroupLedger, path: str) -> None:
    """Raise InvalidOption for a publish to the group's sink by another way than an append."""
    sink, options = ledger.last_settings.sink, ledger.queue.storage_options
    if sink is not None and canonical_uri(sink, options) == canonical_uri(path, options):
        raise InvalidOption(
            f"{path} is the sink of group {ledger.name!r}, and messages could come twice. Use "
            "lease.append, which publishes once after any crash",
            option="queue",
            value=path,
        )


def check_schema_mode(given: Any) -> None:
    if given not in (None, "merge"):
        raise invalid("schema_mode", given, 'is unknown. Use None or "merge"')


LeaseSink: TypeAlias = tuple[Sink, SinkWrite, list[SinkWrite]]
"""The sink, the write of a lease, and those of its messages' earlier leases."""


def sink_of_lease(
    ledger: GroupLedger, lease_id: str, ranges: Sequence[Range], given_key: str | None
) -> LeaseSink:
    """Return the sink of a lease that began with a key. Raise InvalidOption if it has none now."""
    queue, rules = ledger.queue, ledger.settings()
    if rules.sink is None or rules.sink_key is None:
        raise InvalidOption(
            f"group {ledger.name!r} has no sink. Set one by group.configure(sink=...), and lease "
            "again",
            option="sink",
            value=None,
        )
    writes = {r.sink_writes for r in ranges}
    text = writes.pop() if len(writes) == 1 else None
    if text is None or given_key != rules.sink_key:
        raise InvalidOption(
            f"lease {lease_id} is older than the sink of group {ledger.name!r}. Release it, and "
            "lease again",
            option="sink",
            value=rules.sink,
        )
    key = _SinkKey(*rules.sink_key.split("/"))
    check_home(queue.path, queue.settings, queue.storage_options, f"rows go to {rules.sink}")
    if key.queue_id != queue.settings.queue_id:
        raise InvalidOption(
            f"the queue was moved or copied after sink={rules.sink!r} was set, and its rows could "
            "be taken for those of the other queue. Set the sink again by group.configure",
            option="sink",
            value=rules.sink,
        )
    *earlier, own = parse_writes(text)
    return _open(queue, rules.sink, key), own, earlier


def _open(queue: QueueContext, path: str, key: _SinkKey) -> Sink:
    if key.kind == _TABLE:
        names = "/".join(("spark_mq", *key))
        return DeltaSink(path, queue.storage_options, names, key.table_id)
    target = queue.sinks.get(key.table_id)
    if target is None:
        target = _open_queue(queue, path)
        if target.messages.table_id != key.table_id:
            raise other_queue(path)
        queue.sinks[key.table_id] = target
    return QueueSink(target, f"sink-{key.queue_id}.{key.unique}")


class AppendGuard:
    """Keeps the promise that the sink has all messages that a lease did not name. Thread-safe."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._lock = threading.RLock()
        self._appended = False
        self.may_be_appended = False
        self._unappendable = ""  # why the lease may append no rows

    def append(
        self, target: Callable[[], LeaseSink], write: Callable[[Any, SinkWrite], None],
        kind: str,
    ) -> bool:  # fmt: skip
        """Append rows of a `kind` of object by `write`, unless an earlier lease has.

        Return whether it wrote. Raise InvalidOption or LeaseLost.
        """
        with self._lock:
            if self._appended:
                raise InvalidOption(
                    f"lease {self._lease_id} has appended its rows already. Append all of them at "
                    "once",
                    option="rows",
                    value=kind,
                )
            if self._unappendable:
                raise LeaseLost(
                    f"lease {self._lease_id} may append no rows: {self._unappendable}. Nack the "
                    "lease, so that its messages are delivered again",
                    lease_id=self._lease_id, lost=[],
                )  # fmt: skip
            before, self.may_be_appended = self.may_be_appended, True
            try:
                sink, own, earlier = target()
                written = not sink.has_one_of(earlier)
                if written:
                    write(sink, own)
            except (InvalidOption, InvalidSchema):  # before anything was written
                self.may_be_appended = before
                raise
            self._appended = True
            return written

    def check_outcomes(self, outcomes: Iterable[str | None], option: str) -> None:
        """Raise InvalidHandlerResult for messages to give back that the sink may have."""
        if self.may_be_appended and any(outcome != ACK for outcome in outcomes):
            raise InvalidHandlerResult(
                f"the {option} returned messages that are not acked, after it had appended the "
                "rows of their lease to the sink. Nack or reject them by the lease before the "
                "append",
                option=option,
                value=None,
            )

    @contextmanager
    def naming(self, verb: str, *, ordered: bool) -> Iterator[None]:
        """Allow a settle of single messages, or raise InvalidOption. An error of it is noted."""
        # Acks of several threads share a commit, and need no lock, because they may come later.
        with nullcontext() if verb == ACK else self._lock:
            if self.may_be_appended and verb != ACK:
                raise InvalidOption(
                    f"lease {self._lease_id} has appended its rows, so it cannot {verb} some of "
                    f"its messages. {verb.capitalize()} them before the append, or the whole lease",
                    option="sequences",
                    value=None,
                )
            try:
                yield
            except BaseException:
                self._unappendable = "a settle of some of its messages failed, or lost them"
                raise
            if ordered and verb in (NACK, RELEASE):
                self._unappendable = "later messages of a key have left it with an earlier one"
