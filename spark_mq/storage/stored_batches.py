"""Keep the closed message batches of a queue in the table configuration of ``messages/``.

An open batch has no entry: only the files of its messages name it. A close writes the entry, so a
publish that began before it is computed again, and refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

import msgspec

from spark_mq.delta.state import TableState
from spark_mq.errors import BatchClosed, UnsupportedTable

__all__ = [
    "StoredBatch",
    "batch_in",
    "batches_size",
    "check_open",
    "closed_batches",
    "entry_of_batch",
]

_PREFIX: Final = "spark_mq.batch."  # of the entries
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A closed batch as ``messages/`` has it. Times are in microseconds."""

    id: str  # the producer that publishes the completion message, so that a new batch has another
    to: str  # the queue of the completion message
    groups: tuple[str, ...]
    closed_at: int
    completed_at: int | None = None  # when the counts were fixed
    messages: int = 0
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by group and outcome
    published: bool = False  # the completion message is in its queue

    def encode(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> StoredBatch | None:
        """Return the batch in an entry, or None if it cannot be read."""
        try:
            data = json.loads(text)
            if data.pop("format") != _FORMAT or not data.keys() <= {
                one.name for one in fields(cls)
            }:
                return None
            return msgspec.convert(data, cls)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return None


def entry_of_batch(name: str) -> str:
    """Return the key of a batch in the table configuration."""
    return _PREFIX + name


def closed_batches(state: TableState) -> list[str]:
    """Return the names of the closed batches in a state of ``messages/``, in order."""
    given = state.metadata.get("configuration") or {}
    return sorted(key.removeprefix(_PREFIX) for key in given if key.startswith(_PREFIX))


def batch_in(state: TableState, name: str, path: str) -> StoredBatch | None:
    """Return a closed batch, or None if it is open. Raise UnsupportedTable."""
    text = (state.metadata.get("configuration") or {}).get(entry_of_batch(name))
    if text is None:
        return None
    found = StoredBatch.decode(text)
    if found is None:
        raise UnsupportedTable(
            f"batch {name!r} of {path} cannot be read: another version of spark_mq wrote it, or it "
            "was changed by hand. Update spark_mq",
            path=path,
            features=[entry_of_batch(name)],
        )
    return found


def check_open(state: TableState, name: str, path: str) -> None:
    """Raise BatchClosed if a batch is closed in a state of ``messages/``."""
    if entry_of_batch(name) in (state.metadata.get("configuration") or {}):
        raise BatchClosed(
            f"batch {name!r} of {path} is closed, so nothing more is published to it: publish "
            "under another batch_id",
            batch_id=name,
        )


def batches_size(state: TableState, name: str, text: str) -> int:
    """Return the bytes of all entries of a state, with `text` as that of one batch."""
    given = {**(state.metadata.get("configuration") or {}), entry_of_batch(name): text}
    return sum(len(one.encode()) for key, one in given.items() if key.startswith(_PREFIX))
