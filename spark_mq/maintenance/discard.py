"""Discard dead letters: settle them in the dead-letter queue, so that no redrive finds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.routing import Discard
from spark_mq.maintenance.condition import Where, condition_of
from spark_mq.maintenance.find_letters import (
    REDRIVE,
    SEQUENCE,
    candidates,
    try_condition,
    warn_unrouted,
)
from spark_mq.operations.context import QueueContext
from spark_mq.util.records import Record
from spark_mq.util.validation import truncate_error, validate_count

CHUNK: Final = 10_000  # letters looked at, and discarded, by one commit


@dataclass(frozen=True, slots=True)
class DiscardResult(Record):
    """The result of a discard of dead letters, or of a dry run.

    ``messages`` is the number of letters, and ``groups`` counts them by the group in which they
    died. The name is empty if a letter does not say it. ``newest`` is the sequence of the last one
    in the dead-letter queue, or None without letters.
    """

    messages: int
    groups: Mapping[str, int] = field(default_factory=dict, hash=False)
    newest: int | None = None


def discard_letters(
    context: QueueContext, where: Where, before: int | None, dry_run: bool
) -> DiscardResult:
    """Discard as :meth:`spark_mq.Queue.discard_dead_letters`."""
    if where is None:
        raise InvalidOption(
            'where is missing: give a condition, or where="true" to discard all letters',
            option="where",
            value=None,
        )
    condition = condition_of(where)
    assert condition is not None
    end = None if before is None else validate_count("before", before, least=0, most=2**63 - 1)
    warn_unrouted(context)
    if condition.may_fail and not dry_run:
        try_condition(context, condition, None, CHUNK)
    groups, messages, newest = Counter[str](), 0, None
    columns = [SEQUENCE, "consumer_group"]
    for letters in candidates(context, condition, CHUNK, columns, without_payload=True):
        chosen = letters if end is None else letters.filter(pc.less(letters[SEQUENCE], end))
        if not chosen.num_rows:
            continue
        messages += chosen.num_rows if dry_run else _discard(context, chosen, condition.name)
        groups.update(pc.fill_null(chosen["consumer_group"], "").to_pylist())
        newest = pc.max(chosen[SEQUENCE]).as_py()
    return DiscardResult(messages, dict(groups), newest)


def _discard(context: QueueContext, letters: pa.Table, where: str) -> int:
    """Discard letters in one commit, without those that a redrive has frozen meanwhile."""
    intervals = from_sequences(letters[SEQUENCE].to_pylist())
    return context.dead_letters().group(REDRIVE).run(Discard(intervals, truncate_error(where)))
