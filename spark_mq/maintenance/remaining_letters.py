"""Find the dead letters that no redrive has moved and nobody has discarded, and discard them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.interventions import Discard
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.owner_commands import unsettled_ranges
from spark_mq.ledger.ranges import DEAD, TRANSFERRING, Range
from spark_mq.maintenance.condition import Condition, Where, condition_of
from spark_mq.maintenance.dead_letters import is_own_letter, letter_tables
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.util.records import Record
from spark_mq.util.show import shell_command, show_count, show_some
from spark_mq.util.validation import RESERVED_PREFIX, truncate_error, validate_count

_log = logging.getLogger(__name__)

REDRIVE: Final = f"{RESERVED_PREFIX}redrive"
"""The reserved group of a dead-letter queue with the redriven and discarded letters as settled."""

SEQUENCE: Final = "dead_letter_sequence"
GROUP: Final = "consumer_group"
"""The column of the group in which a letter died."""
CHUNK: Final = 10_000  # letters looked at, and discarded, by one commit
_MAX_NAMED: Final = 10  # groups that a warning names


def candidates(
    context: QueueContext,
    condition: Condition | None,
    chunk: int,
    columns: Sequence[str],
    *,
    without_payload: bool = False,
) -> Iterator[pa.Table]:
    """Yield the queue's dead letters for which a condition holds, in order, `chunk` rows at most.

    Those whose payload could not be read are left out, because they cannot be published.
    """
    letters = context.existing_dead_letters()
    if letters is None:
        return
    index, intervals = find_remaining(letters)
    for table in letter_tables(letters.messages, index, intervals, chunk, skip=True):
        # A variable would hold the copy as long as its letters are written.
        yield _wanted(context, condition, table, without_payload).select(columns)


def find_remaining(letters: QueueContext) -> tuple[MessageIndex, list[Interval]]:
    """Return the index of a dead-letter queue, and the letters that still are there."""
    redriven = letters.group(REDRIVE)
    ledger = redriven.ledger_in(redriven.snapshot())
    index = redriven.index_for(ledger)
    return index, without_purged(letters, unsettled_ranges(ledger, index, index.last_sequence))


def without_purged(letters: QueueContext, ranges: Iterable[Range]) -> list[Interval]:
    """Return the intervals of ranges without what a purge has dropped."""
    return subtract(((r.first, r.last) for r in ranges), [(0, letters.horizon())])


def _wanted(
    context: QueueContext, condition: Condition | None, table: pa.Table, without_payload: bool
) -> pa.Table:
    wanted = is_own_letter(context, table)
    if not without_payload:
        wanted = pc.and_(wanted, pc.is_valid(table["value"]))
    letters = table.filter(wanted)
    return letters if condition is None else condition.select(letters)


def try_condition(
    context: QueueContext, condition: Condition, limit: int | None, chunk: int
) -> None:
    """Run a condition on the letters that a change will meet. Raise InvalidOption."""
    # Otherwise the change would stop midway, at the first letter that the condition does not fit.
    left = limit
    for table in candidates(context, condition, chunk, [SEQUENCE]):
        if condition.stopped or (left is not None and (left := left - table.num_rows) <= 0):
            return


def warn_unrouted(context: QueueContext) -> None:
    """Log a warning if dead messages are no letters yet, because no sweep has routed them."""
    unrouted = {group.name: dead for group in context.groups() if (dead := _unrouted(group))}
    if unrouted:
        _log.warning(
            "%s of %s not in the dead-letter queue yet, so left out: sweep first, by "
            "queue.sweep() or %s",
            show_count(sum(unrouted.values()), "dead message"),
            show_some([f"group {name!r}" for name in unrouted], _MAX_NAMED),
            shell_command("sweep", "-q", context.path),
        )


def _unrouted(group: GroupLedger) -> int:
    try:
        ledger = group.current()
    except SparkMQError as error:  # damage in one group does not stop the others
        _log.warning(
            "the dead messages of group %r that are not in the dead-letter queue yet cannot be "
            "counted: %s",
            group.name,
            error,
        )
        return 0
    return ledger.count((DEAD, TRANSFERRING))


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
    columns = [SEQUENCE, GROUP]
    for letters in candidates(context, condition, CHUNK, columns, without_payload=True):
        chosen = letters if end is None else letters.filter(pc.less(letters[SEQUENCE], end))
        if not chosen.num_rows:
            continue
        messages += chosen.num_rows if dry_run else _discard(context, chosen, condition.name)
        groups.update(pc.fill_null(chosen[GROUP], "").to_pylist())
        newest = pc.max(chosen[SEQUENCE]).as_py()
    return DiscardResult(messages, dict(groups), newest)


def _discard(context: QueueContext, letters: pa.Table, where: str) -> int:
    """Discard letters in one commit, without those that a redrive has frozen meanwhile."""
    intervals = from_sequences(letters[SEQUENCE].to_pylist())
    return context.dead_letters().group(REDRIVE).run(Discard(intervals, truncate_error(where)))
