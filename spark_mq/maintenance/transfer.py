"""Move messages of a ledger into another queue, each once.

A transfer is three commits. The first freezes the messages as ``transferring`` under a new id.
The second one publishes them with that id as application transaction. The third one settles that
id. A crash in between leaves an id that the next transfer finishes.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_mq.errors import DuplicatePublish
from spark_mq.ledger.log_marks import with_mark
from spark_mq.ledger.ranges import TRANSFERRING, Ledger, Range
from spark_mq.ledger.routing import settle_routed
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.update import Priority, Update, update_ledger

__all__ = ["Frozen", "Transfer"]

_log = logging.getLogger(__name__)

Frozen = tuple[Ledger, int]  # after a freeze, and how many messages it froze


class Transfer(ABC):
    """Moves messages of one ledger into another queue. Safe to kill, to repeat, to run twice."""

    prefix: str  # of the transfer ids
    freeze_operation: str  # in the note of the first commit
    operation: str  # in the note of the publish, which is the second one
    event: str  # of the messages in the ledger: "routed" or "redriven"
    detail: str | None = None  # a person's request, for the note of the last commit

    def __init__(self, source: GroupLedger, target: MessageTable) -> None:
        self.source = source
        self.target = target

    @abstractmethod
    def frozen(self, snapshot: LedgerSnapshot, transfer_id: str) -> Frozen:
        """Return the ledger with messages frozen under an id, and their number."""

    @abstractmethod
    def write(self, ranges: Sequence[Range]) -> list[WrittenFile] | None:
        """Write the files of the target, or return None if another transfer must finish first."""

    def commit_info(self) -> Mapping[str, Any]:
        return {}

    def finish_all(self) -> int:
        """Finish the transfers that were begun. Return the number of messages."""
        ledger = self._ledger(self.source.snapshot())
        rows = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        found = sorted({r.lease_id for r in rows if r.lease_id})
        return sum(self.finish(transfer_id) for transfer_id in found)

    def freeze(self) -> str | None:
        """Freeze messages under a new id. Return the id, or None without messages."""
        transfer_id = f"{self.prefix}-{uuid.uuid4().hex}"

        def compute(snapshot: LedgerSnapshot) -> Update[int]:
            after, messages = self.frozen(snapshot, transfer_id)
            operation = self.freeze_operation
            info = {"operation": operation, "lease_id": transfer_id, "messages": messages}
            if not messages:
                return None, messages, info
            return with_mark(after, self.source.messages.known()), messages, info

        return transfer_id if self._update(compute) else None

    def finish(self, transfer_id: str) -> int:
        """Publish the frozen messages of an id unless that is done, and settle it."""
        ledger = self._ledger(self.source.snapshot())
        moving = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        frozen = [r for r in moving if r.lease_id == transfer_id]
        # The look saves writing the files. The transaction refuses a second publish.
        if frozen and self.target.last_number(transfer_id) is None:
            files = self.write(frozen)
            if files is None:
                return 0
            self._publish(files, transfer_id)

        def compute(snapshot: LedgerSnapshot) -> Update[int]:
            after, messages = settle_routed(self._ledger(snapshot), transfer_id, self.event)
            info = {"operation": self.event, "lease_id": transfer_id, "messages": messages}
            info |= {"detail": self.detail} if self.detail else {}
            return after if messages else None, messages, info

        return self._update(compute)

    def publish_again(self, ranges: Sequence[Range], transfer_id: str) -> bool:
        """Publish an id's messages that the target has lost. Return False if another must."""
        files = self.write(ranges)
        if files is None:
            return False
        self._publish(files, transfer_id)
        return True

    def _publish(self, files: list[WrittenFile], transfer_id: str) -> None:
        note = {"operation": self.operation, **self.commit_info()}
        try:
            self.target.commit(files, txn=(transfer_id, 1), note=note)
        except DuplicatePublish:
            _log.info("another sweeper has published %s", transfer_id)

    def _ledger(self, snapshot: LedgerSnapshot) -> Ledger:
        return self.source.ledger_in(snapshot)

    def _update(self, compute: Callable[[LedgerSnapshot], Update[int]]) -> int:
        source = self.source
        return update_ledger(source.ledgers, source.name, compute, priority=Priority.LEASE)
