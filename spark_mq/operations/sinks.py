"""Set the sink of a group, and append the rows of a lease to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import InvalidOption
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.sink_writes import parse_writes
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.create import check_home
from spark_mq.storage.delta_sink import DeltaSink

__all__ = ["append_rows", "check_no_sink", "clean_settings", "sink_key"]


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


def append_rows(
    ledger: GroupLedger,
    lease_id: str,
    ranges: Sequence[Range],
    rows: Any,
    schema_mode: Literal["merge"] | None,
) -> bool:
    """Append the rows of a lease to the sink of its group, as :meth:`spark_mq.Lease.append`."""
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
    sink = DeltaSink(rules.sink, queue.storage_options, f"spark_mq/{rules.sink_key}", table_id)
    return sink.append(rows, own, earlier, schema_mode)
