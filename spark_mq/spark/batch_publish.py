"""Publish a batch's results into another queue once, also if the batch crashes and runs again.

The stream is the producer, and the number of the batch is the producer's number. A replay has the
same, so the queue refuses its messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_mq.delta.object_store import canonical_uri
from spark_mq.errors import DuplicatePublish, InvalidOption
from spark_mq.operations.publish import publish_pending
from spark_mq.storage.publishes import producer_txn
from spark_mq.util.validation import short_repr, validate_name

if TYPE_CHECKING:
    from spark_mq.queue import Messages, Queue
    from spark_mq.storage.message_table import MessageTable
    from spark_mq.storage.publishes import PendingPublish, PublishReceipt

_log = logging.getLogger(__name__)

PRODUCER_OPTIONS: Final = ("producerId", "producerSequence", "producerPart", "producerRun")
_RUN: Final = "run"  # the key in the note of a commit
_MAX_NUMBER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SinkProducer:
    """The producer of one ``df.write``, its number, and the run of the batch if it is known."""

    name: str
    number: int
    run: str | None = None

    @classmethod
    def parse(cls, own: Mapping[str, str]) -> SinkProducer | None:
        """Return the producer in options by lower-cased name, or None. Raise InvalidOption."""
        given = {name: own[name.lower()] for name in PRODUCER_OPTIONS if name.lower() in own}
        if not given:
            return None
        for name in ("producerId", "producerSequence"):
            if name not in given:
                raise InvalidOption(
                    f"{', '.join(given)} needs {name!r} too: pass all of lease.publish_options",
                    option=name,
                    value=None,
                )
        number = given["producerSequence"]
        if not (number.isascii() and number.isdigit() and int(number) <= _MAX_NUMBER):
            raise InvalidOption(
                f"producerSequence={short_repr(number)} is not a number. Use digits",
                option="producerSequence",
                value=number,
            )
        name = _part_of(given["producerId"], given.get("producerPart"))
        return cls(validate_name("producerId", name), int(number), given.get("producerRun"))

    def commit(self, messages: MessageTable, pending: PendingPublish) -> bool:
        """Publish, or return False if an earlier run did. Raise InvalidOption if this run did."""
        txn = (producer_txn(self.name), self.number)
        try:
            note = {"operation": "publish"} | ({_RUN: self.run} if self.run else {})
            publish_pending(messages, pending, txn=txn, note=note)
        except DuplicatePublish:
            first = messages.receipt(*txn)
            if self.run and first and messages.note(first.version or 0).get(_RUN) == self.run:
                raise InvalidOption(
                    f"this batch has published to {messages.path} already. Add "
                    f".option('producerPart', name) to its other writes",
                    option="producerPart",
                    value=None,
                ) from None
            _log.warning(
                "producer %s has published number %d; it is not published again",
                self.name,
                self.number,
            )
            return False
        return True


class BatchPublisher:
    """Publishes a batch's messages from the driver, and numbers the writes of its executors."""

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex
        self._done: set[tuple[str, str | None]] = set()

    def options(self, stream: str, number: str) -> dict[str, str]:
        return {
            "producerId": _producer_id(stream),
            "producerSequence": number,
            "producerRun": self._run,
        }

    def publish(
        self, queue: Queue, messages: Messages, stream: str, number: str, part: str | None
    ) -> PublishReceipt:
        """Publish messages once. Raise InvalidOption for a part that this run has published."""
        key = (canonical_uri(queue.path, queue._context.storage_options), part)
        if key in self._done:
            raise InvalidOption(
                f"this batch has published to {queue.path} already. Give part= a name, another one "
                f"for each call",
                option="part",
                value=part,
            )
        receipt = queue.publish(
            messages,
            producer_id=_part_of(f"{_producer_id(stream)}.messages", part),
            producer_sequence=int(number),
            on_duplicate="skip",
        )
        self._done.add(key)
        return receipt


def _producer_id(stream: str) -> str:
    return f"stream-{stream}"


def _part_of(producer: str, part: Any) -> str:
    return producer if part is None else f"{producer}.{validate_name('part', part)}"
