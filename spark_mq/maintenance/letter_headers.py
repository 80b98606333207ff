"""Read the headers of dead letters. Any program that may append can write any header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.queue_settings import QueueSettings

__all__ = ["is_own_letter", "typed_texts"]

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def is_own_letter(settings: QueueSettings, path: str, letters: pa.Table) -> pa.Array:
    """Return a mask of the letters of one queue, by their columns ``queue`` and ``queue_id``.

    The queue's path may have changed, but not its id. A letter without an id belongs to its path.
    """
    ids = pa.array({settings.queue_id, *settings.former_ids} - {""}, pa.string())
    by_path = pc.fill_null(pc.equal(letters["queue"], path), False)
    without_id = pc.and_(pc.is_null(letters["queue_id"]), by_path)
    return pc.or_(pc.is_in(letters["queue_id"], value_set=ids), without_id)


def typed_texts(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Return header texts in a type. Unfit texts become null."""
    if pa.types.is_int64(kind):
        return pa.array([_number(text) for text in texts], kind)
    if pa.types.is_timestamp(kind):
        return pa.array([_instant(text) for text in texts], kind)
    return pa.array(texts, kind)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _DIGITS.fullmatch(text) else None


def _instant(text: str | None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text or "")
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
