"""Set the sink of a group, and append the rows of a lease to it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidHandlerResult, InvalidOption, InvalidSchema, LeaseLost
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import ACK, NACK, RELEASE
from spark_mq.ledger.sink_writes import SinkWrite, parse_writes
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.create import check_home
from spark_mq.storage.delta_sink import DeltaSink

__all__ = [
    "AppendGuard",
    "LeaseSink",
    "check_no_sink",
    "clean_settings",
    "sink_key",
    "sink_of_lease",
]


def clean_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a group with an absolute path of the sink. Raise InvalidOption."""
    settings = dict(given)
    if "sink_key" in settings:
        raise InvalidOption(
            "'sink_key' is set by spark_mq itself: use sink, the path of a Delta table",
            option="sink_key",
            value=None,
        )
    if settings.get("sink") is not None:
        settings["sink"] = absolute_path(settings["sink"], "sink")
    return settings


def sink_key(ledger: GroupLedger, settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the key of the sink among settings. Raise InvalidOption without a Delta table."""
    if "sink" not in settings:
        return {}
    if settings["sink"] is None:
        return {"sink_key": None}
    queue = ledger.queue
    table_id = DeltaSink(settings["sink"], queue.storage_options).check()
    # A new id each time, so that nothing is found of a group that had the sink before.
    return {"sink_key": f"{queue.settings.queue_id}/{table_id}/{uuid.uuid4().hex}"}


def check_no_sink(ledger: GroupLedger) -> None:
    """Raise InvalidOption for a settle of single messages that their lease does not know of."""
    if ledger.settings().sink is not None:
        raise InvalidOption(
            "the group has a sink, and a lease must know which of its messages it does not write. "
            "Settle single messages by the lease's own methods, before its append",
            option="sequences",
            value=None,
        )


LeaseSink = tuple[DeltaSink, SinkWrite, list[SinkWrite]]
"""The sink, the write of a lease, and those of its messages' earlier leases."""


def sink_of_lease(ledger: GroupLedger, lease_id: str, ranges: Sequence[Range]) -> LeaseSink:
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
    if text is None:
        raise InvalidOption(
            f"lease {lease_id} is older than the sink of group {ledger.name!r}. Release it, and "
            "lease again",
            option="sink",
            value=rules.sink,
        )
    queue_id, table_id, _ = rules.sink_key.split("/")
    check_home(queue.path, queue.settings, queue.storage_options, f"rows go to {rules.sink}")
    if queue_id != queue.settings.queue_id:
        raise InvalidOption(
            f"the queue was moved or copied after sink={rules.sink!r} was set, and its rows could "
            "be taken for those of the other queue. Set the sink again by group.configure",
            option="sink",
            value=rules.sink,
        )
    *earlier, own = parse_writes(text)
    names = f"spark_mq/{rules.sink_key}"
    return DeltaSink(rules.sink, queue.storage_options, names, table_id), own, earlier


class AppendGuard:
    """Keeps the promise that the sink has all messages that a lease did not name. Thread-safe."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._lock = threading.RLock()
        self._appended = False
        self.may_be_appended = False
        self._unappendable = ""  # why the lease may append no rows

    def append(
        self, target: Callable[[], LeaseSink], write: Callable[[DeltaSink, SinkWrite], None],
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
        if self.may_be_appended and any(one != ACK for one in outcomes):
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
