"""Move messages of a ledger into another queue, each once.

A transfer is three commits. The first freezes the messages as ``transferring`` under a new id.
The second one publishes them with that id as application transaction. The third one settles that
id. A crash in between leaves an id that the next transfer finishes.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from spark_mq.errors import DuplicatePublish
from spark_mq.ledger.commands import Command
from spark_mq.ledger.ranges import TRANSFERRING, Range
from spark_mq.ledger.routing import SettleRouted
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.message_table import MessageTable

__all__ = ["Transfer"]

_log = logging.getLogger(__name__)


class Transfer(ABC):
    """Moves messages of one ledger into another queue. Safe to kill, to repeat, to run twice."""

    prefix: str  # of the transfer ids
    operation: str  # in the note of the publish, which is the second one
    event: str  # of the messages in the ledger: "routed" or "redriven"
    detail: str | None = None  # a person's request, for the note of the last commit

    def __init__(self, source: GroupLedger, target: MessageTable) -> None:
        self.source = source
        self.target = target

    @abstractmethod
    def freezing(self, transfer_id: str) -> Command[int]:
        """Return the command that freezes messages under an id, and counts them."""

    @abstractmethod
    def write(self, ranges: Sequence[Range]) -> list[WrittenFile] | None:
        """Write the files of the target, or return None if another transfer must finish first."""

    def commit_info(self) -> Mapping[str, Any]:
        return {}

    def finish_all(self) -> int:
        """Finish the transfers that were begun. Return the number of messages."""
        ledger = self.source.ledger_in(self.source.snapshot())
        rows = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        found = sorted({r.lease_id for r in rows if r.lease_id})
        return sum(self.finish(transfer_id) for transfer_id in found)

    def freeze(self) -> str | None:
        """Freeze messages under a new id. Return the id, or None without messages."""
        transfer_id = f"{self.prefix}-{uuid.uuid4().hex}"
        return transfer_id if self.source.run(self.freezing(transfer_id)) else None

    def finish(self, transfer_id: str) -> int:
        """Publish the frozen messages of an id unless that is done, and settle it."""
        ledger = self.source.ledger_in(self.source.snapshot())
        moving = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        frozen = [r for r in moving if r.lease_id == transfer_id]
        # The look saves writing the files. The transaction refuses a second publish.
        if frozen and self.target.last_number(transfer_id) is None:
            files = self.write(frozen)
            if files is None:
                return 0
            self._publish(files, transfer_id)
        return self.source.run(SettleRouted(transfer_id, self.event, self.detail))

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
