"""Keep the closed message batches of a queue in the table configuration of ``messages/``.

An open batch has no entry: only the files of its messages name it. A close writes the entry, so a
publish that began before it is computed again, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from spark_mq.delta.state import TableState
from spark_mq.errors import BatchClosed
from spark_mq.storage.stored_entries import Entries, decode_entry, encode_entry


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
        return encode_entry(asdict(self))

    @classmethod
    def decode(cls, text: str) -> StoredBatch | None:
        """Return the batch in an entry, or None if it cannot be read."""
        return decode_entry(text, cls)


BATCHES: Final = Entries("batch", StoredBatch.decode, "Update spark_mq")
"""The closed batches of a queue by name."""


def check_open(state: TableState, name: str, path: str) -> None:
    """Raise BatchClosed if a batch is closed in a state of ``messages/``."""
    if BATCHES.has(state, name):
        raise BatchClosed(
            f"batch {name!r} of {path} is closed, so nothing more is published to it: publish "
            "under another batch_id",
            batch_id=name,
        )
