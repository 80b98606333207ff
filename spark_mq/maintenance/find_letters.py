"""Find the dead letters of a queue that no redrive has moved and nobody has discarded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import SparkMQError
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.owner_commands import unsettled_ranges
from spark_mq.ledger.ranges import DEAD, TRANSFERRING
from spark_mq.maintenance.condition import Condition
from spark_mq.maintenance.dead_letters import is_own_letter, letter_tables
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.util.advice import shell_command
from spark_mq.util.show import show_count
from spark_mq.util.validation import RESERVED_PREFIX

_log = logging.getLogger(__name__)

REDRIVE: Final = f"{RESERVED_PREFIX}redrive"
"""The reserved group of a dead-letter queue with the redriven and discarded letters as settled."""

SEQUENCE: Final = "dead_letter_sequence"
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
    _, intervals = find_remaining(letters)
    for table in letter_tables(letters.messages, intervals, chunk, skip=True):
        # A variable would hold the copy as long as its letters are written.
        yield _wanted(context, condition, table, without_payload).select(columns)


def find_remaining(letters: QueueContext) -> tuple[MessageIndex, list[Interval]]:
    """Return the index of a dead-letter queue, and the letters that still are there."""
    redriven = letters.group(REDRIVE)
    ledger = redriven.ledger_in(redriven.snapshot())
    index = redriven.index_for(ledger)
    kept = letters.horizon() + 1  # a purge dropped the rest
    unsettled = unsettled_ranges(ledger, index, index.last_sequence)
    return index, [(max(r.first, kept), r.last) for r in unsettled if r.last >= kept]


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
            _show_groups(list(unrouted)),
            shell_command("sweep", "-q", context.path),
        )


def _show_groups(groups: Sequence[str]) -> str:
    names = ", ".join(f"group {name!r}" for name in groups[:_MAX_NAMED])
    more = len(groups) - _MAX_NAMED
    return f"{names} and {more} others" if more > 0 else names


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
