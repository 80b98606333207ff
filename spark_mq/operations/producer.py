"""Number the messages that a publisher commits, so that each lands once.

The number of a commit is that of its last message. ``messages/`` keeps the latest one of each
producer in the same commit, so a new publisher of that producer knows how many have landed.
"""

from __future__ import annotations

import uuid

from spark_mq.errors import DuplicatePublish, ProducerFenced
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.pending_publish import PendingPublish
from spark_mq.storage.publish_receipt import PublishReceipt, producer_txn

__all__ = ["Producer"]


class Producer:
    """Commits files of messages in order, each once."""

    def __init__(self, messages: MessageTable, producer_id: str | None = None) -> None:
        self._messages = messages
        self.named = producer_id is not None  # continues after a restart
        # `number` is that of the last message that has landed, or 0 before the first.
        if producer_id is None:
            self._app, self.number = f"spark_mq.publisher:{uuid.uuid4().hex}", 0
        else:
            self._app = producer_txn(producer_id)
            self.number = messages.last_number(self._app) or 0

    def commit_unique(self, pending: PendingPublish) -> PublishReceipt:
        """Publish messages, of which each duplicate counts, too. Raise as :meth:`commit`."""
        number = self.number + len(pending.ids)
        receipt = self._messages.commit_unique(
            pending, txn=(self._app, number), after=self.number if self.named else None
        )
        pending.discard(keep=pending.landed)
        self.number = number
        return receipt

    def commit(self, written: WrittenFile) -> PublishReceipt:
        """Publish a file once, although an earlier try may have landed without a reply.

        Raise ProducerFenced if another publisher has published as this producer.
        """
        txn = (self._app, self.number + written.rows)
        try:
            receipt = self._messages.commit(
                [written], txn=txn, after=self.number if self.named else None
            )
        except (DuplicatePublish, ProducerFenced):
            landed = self._messages.receipt_of(written)
            if landed is None:
                raise
            receipt = landed
        self.number = txn[1]
        return receipt

    def skip(self, messages: int) -> None:
        """Give up messages that have failed. Their number is not used again."""
        self.number += messages
