"""Queues that earlier versions stored in ``tests/data``. ``scripts/store-queue`` makes them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spark_mq import Queue
from spark_mq.testing import ManualClock

__all__ = ["DATA", "StoredQueue", "differences", "views"]

DATA = Path(__file__).parents[1] / "data"
TRACED = ("acked", "rejected", "held", "redriven")
"""The ids of messages whose whole life is recorded."""


@dataclass(frozen=True)
class StoredQueue:
    """A stored queue, opened at the time at which it was stored."""

    queue: Queue
    clock: ManualClock
    acked: Mapping[str, Sequence[str]]
    """The values that each group has acked."""
    views: Mapping[str, Any]

    @classmethod
    def unpack(cls, archive: Path, folder: Path) -> StoredQueue:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        known = json.loads((folder / "known.json").read_text())
        clock = ManualClock(datetime.fromisoformat(known["stored_at"]))
        queue = Queue.open(folder / "queue", clock=clock)
        return cls(queue, clock, known["acked"], known["views"])


def views(queue: Queue) -> dict[str, Any]:
    """Return all that the API shows of a queue and its groups, as JSON. It makes no commit."""
    shown: dict[str, Any] = {
        "settings": queue.settings,
        "stats": queue.stats(),
        "describe": queue.describe(lanes=True),
        "health": queue.health(max_age="1m", max_dead=1),
        "sweep_state": queue.sweep_state(),
        "blockers": queue.blockers(),
        "schedules": queue.schedules(),
        "batches": queue.batches(),
        "changes": queue.changes(),
        "throughput": queue.throughput(since="1d"),
        "peek": queue.peek(1_000),
        "failures": queue.failures(),
        "list_dead_letters": queue.list_dead_letters(),
        "last_producer_sequence": queue.last_producer_sequence("importer"),
        "locate": [queue.locate(message_id=name) for name in TRACED],
        "trace": [queue.trace(message_id=name) for name in TRACED],
        "sql": queue.sql(
            "SELECT consumer_group, state, count(*) AS messages FROM messages GROUP BY ALL "
            "ORDER BY ALL"
        ),
    }
    for name in sorted(queue.groups()):
        group = queue.group(name)
        shown[f"group {name}"] = {
            "settings": group.settings,
            "stats": group.stats(),
            "leases": group.leases(),
            "workers": group.workers(),
            "last_errors": group.last_errors(),
            "most_failing": group.most_failing(),
            "priorities": group.priorities(),
            "lanes": group.lanes(None),
            "peek": group.peek(1_000),
            "preview_seek": group.preview_seek("earliest"),
            "finished": queue.finished(name, payload=True),
        }
    text = json.dumps(shown, default=_plain)
    for path in (queue.path, queue.settings.home or queue.path):  # it was created elsewhere
        text = text.replace(path, "/QUEUE")
    found: dict[str, Any] = json.loads(text)
    return found


def _plain(value: Any) -> Any:
    """Return a value in types that JSON has."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.decode()
        case Mapping():
            return dict(value)
    return value.to_pylist() if hasattr(value, "to_pylist") else asdict(value)


def differences(known: Any, shown: Any, place: str = "") -> Iterator[str]:
    """Yield where a view lacks or changes what is known. It may have more fields."""
    if isinstance(known, dict) and isinstance(shown, dict):
        for name, value in known.items():
            if name in shown:
                yield from differences(value, shown[name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is missing"
    elif isinstance(known, list) and isinstance(shown, list) and len(known) == len(shown):
        for number, (value, other) in enumerate(zip(known, shown, strict=True)):
            yield from differences(value, other, f"{place}[{number}]")
    elif known != shown and not (_is_sentence(known) and _is_sentence(shown)):
        yield f"{place}: {known!r} became {shown!r}"


def _is_sentence(value: Any) -> bool:
    """Return whether a text is for people, so that another version may word it differently."""
    return isinstance(value, str) and value.count(" ") > 5
