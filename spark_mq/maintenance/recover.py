"""Make a queue's tables agree after some were restored alone.

No existing message is lost. A message may be delivered again. Each step can be repeated, so a
killed recovery continues when it is run again. Workers must not run meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.commands import Change, Command, View
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.log_fingerprints import (
    MAX_SEQUENCE,
    REWOUND,
    agreed_up_to,
    forget,
    with_fingerprint,
)
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import RANGE_SCHEMA, TRANSFERRING, Ledger, LedgerHeader, Range
from spark_mq.ledger.states import CHANGEABLE
from spark_mq.ledger.transitions import settle_lost
from spark_mq.maintenance.dead_letters import Routing, Transfer
from spark_mq.maintenance.redrive import Redrive, goes_to_other
from spark_mq.maintenance.remaining_letters import REDRIVE
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.history import commits_after
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.storage.message_log import LogPlan
from spark_mq.util.records import Record

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport(Record):
    """The effects of a recovery, or of a dry run.

    Attributes
    ----------
    forgotten
        Messages whose state the groups forget, added up over the groups. ``messages/`` lacks them,
        or has other messages in their place.
    unread
        Messages that a group gets, again or for the first time, because it forgets their state.
    skipped
        Trimmed messages that an older ledger took for unsettled.
    republished
        Messages that are published again, because nothing knows their sequences any longer.
    commits, history
        Commits that ``commits/`` described and ``messages/`` lacked, and those that ``history/``
        described and ``leases/`` lacked.
    dead_letters, redriven
        Dead letters that the dead-letter queue lost and gets again, and redriven messages that the
        queue lost and gets again.
    dead_letter_queue
        The same counts of the dead-letter queue's own tables, as a dict.
    """

    forgotten: int = 0
    unread: int = 0
    skipped: int = 0
    republished: int = 0
    commits: int = 0
    history: int = 0
    dead_letters: int = 0
    redriven: int = 0
    dead_letter_queue: dict[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Return whether there was anything to recover."""
        counts = {**asdict(self), "dead_letter_queue": 0}
        return any(counts.values()) or any(self.dead_letter_queue.values())

    def __str__(self) -> str:
        counts = [f"{name.replace('_', ' ')}: {n}" for name, n in _counts(self).items()]
        more = [f"dead-letter queue's {name}: {n}" for name, n in self.dead_letter_queue.items()]
        return ", ".join([*counts, *more])


def recover(context: QueueContext, dry_run: bool) -> RecoveryReport:
    context = context.reopened()
    dead = context.existing_dead_letters() if dry_run else context.dead_letters()
    shared = dead is not None and dead.path == context.path
    own = {} if dead is None or shared else _counts(recover_tables(dead, dry_run))
    report = recover_tables(context, dry_run)
    if not shared:
        letters, redriven = _repeat_lost_transfers(context, dry_run)
        report = replace(report, dead_letters=letters, redriven=redriven)
    report = replace(report, dead_letter_queue={name: n for name, n in own.items() if n})
    if report.needed:
        _log.warning("%s of %s: %s", "recovery" if not dry_run else "dry run of a recovery",
                     context.path, report)  # fmt: skip
    return report


def _counts(report: RecoveryReport) -> dict[str, int]:
    counts = asdict(report)
    del counts["dead_letter_queue"]
    return counts


def recover_tables(context: QueueContext, dry_run: bool) -> RecoveryReport:
    """Recover the tables of one queue, in an order in which readers refuse until the end."""
    plan = context.messages.plan_recovery()
    if plan.unknown and not dry_run:
        context.messages.publish_again(plan)
    report = RecoveryReport(republished=plan.unknown_rows, commits=plan.covered - plan.agreed)
    for name in (*context.ledgers.groups(), REDRIVE, HORIZON):
        group = context.group(name)
        repair = Repair(plan, context.messages.trimmed, context.ledgers.known_horizon())
        if dry_run:
            repaired = repair.apply(group.view(repair, group.snapshot())).result
        else:
            repaired = group.run(repair)
        report = replace(
            report,
            forgotten=report.forgotten + repaired.forgotten,
            unread=report.unread + repaired.unread,
            skipped=report.skipped + repaired.skipped,
        )
    report = replace(report, history=_recover_history(context, dry_run))
    if not dry_run:
        context.messages.rewrite_commits(plan)
    return report


def _recover_history(context: QueueContext, dry_run: bool) -> int:
    agreed = context.history.agreed_up_to()
    if agreed is None:
        return 0
    archived, _ = context.history.progress()
    if not dry_run:
        context.history.truncate(agreed)
    return archived - agreed


class Repaired(NamedTuple):
    """The messages whose state a repair has changed. See :class:`RecoveryReport`."""

    forgotten: int = 0
    unread: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Repair(Command[Repaired]):
    """Make one group's ledger agree with the log."""

    plan: LogPlan
    trimmed: int  # the last trimmed sequence by ``messages/``
    horizon: int  # the trim horizon by ``leases/``

    name = "recover"
    creates = True
    exclusive = True
    whole_table = True
    adds_fingerprint = False

    def apply(self, view: View) -> Change[Repaired]:
        index, before, done = self.plan.index, view.ledger, Repaired()
        if not view.exists:
            if view.group != HORIZON or self.trimmed < 0:
                return Change(None, done)
            before = Ledger(LedgerHeader())
        after = before
        if self.plan.gap is not None:
            after, done = self._forget(view, after, done, *self.plan.gap)
        agreed = agreed_up_to(after, index)
        if agreed is not None:
            after, done = self._forget(view, after, done, agreed + 1, MAX_SEQUENCE)
        after, skipped = self._above(view, after)
        done = done._replace(skipped=skipped)
        if after is before:
            return Change(None, done)
        note = {"operation": self.name, "messages": done.forgotten + done.skipped}
        return Change(with_fingerprint(after, index), done, note)

    def _forget(
        self, view: View, ledger: Ledger, done: Repaired, first: int, last: int
    ) -> tuple[Ledger, Repaired]:
        index = self.plan.index
        reach = min(last, ledger.end_sequence)
        after, messages = forget(ledger, index, first, last)
        if view.group in (HORIZON, REDRIVE):
            return after, done
        unread = done.unread + index.count(first, reach)
        return after, done._replace(forgotten=done.forgotten + messages, unread=unread)

    def _above(self, view: View, ledger: Ledger) -> tuple[Ledger, int]:
        """Return the ledger without unsettled messages that a trim has dropped, and their count."""
        if self.trimmed <= ledger.head.start_sequence:
            return ledger, 0
        if view.group == HORIZON:
            return Ledger(replace(ledger.head, start_sequence=self.trimmed)), 0
        if self.horizon >= self.trimmed:
            return ledger, 0  # they were dropped by a hard limit
        return settle_lost(ledger, self.plan.index, self.trimmed, "skipped", CHANGEABLE)


_INSTANTS: Final = [f.name for f in RANGE_SCHEMA if pa.types.is_timestamp(f.type)]


class _Lost(NamedTuple):
    transfer: Transfer
    transfer_id: str
    ranges: list[Range]


def _repeat_lost_transfers(context: QueueContext, dry_run: bool) -> tuple[int, int]:
    """Publish lost dead letters and lost redriven messages again. Return their numbers."""
    # The old id of a transfer publishes its messages once, however often this runs.
    # None before the first dead letter, or if it is lost.
    dead = context.existing_dead_letters() if dry_run else context.dead_letters()
    publish = _size if dry_run else _repeat
    routed = sum(map(publish, _lost_routings(context, dead)))
    return routed, sum(map(publish, _lost_redrives(context)))


def _size(lost: _Lost) -> int:
    return sum(r.message_count for r in lost.ranges)


def _repeat(lost: _Lost) -> int:
    lost.transfer.publish(lost.ranges, lost.transfer_id)
    return _size(lost)


def _lost_routings(context: QueueContext, dead: QueueContext | None) -> Iterator[_Lost]:
    """Yield the lost transfers of dead letters, which are all of them without a queue for them."""
    for group in context.groups():
        routing = Routing(group, (dead or context).messages)
        yield from _lost(context, group, routing, "routed", all_lost=dead is None)


def _lost_redrives(context: QueueContext) -> Iterator[_Lost]:
    dead = context.existing_dead_letters()
    if dead is not None and (group := dead.group(REDRIVE)).exists():
        yield from _lost(dead, group, Redrive(context), "redriven", to_others=False)


def _lost(
    source: QueueContext,
    group: GroupLedger,
    transfer: Transfer,
    event: str,
    *,
    all_lost: bool = False,
    to_others: bool = True,
) -> Iterator[_Lost]:
    rows = _events(source, group.name)
    done = rows.filter(pc.equal(rows["event"], event))
    if not to_others:  # a redrive to another queue has a reason, which names it
        done = done.filter(pc.invert(pc.fill_null(goes_to_other(done["reason"]), False)))
    ids = [lease_id for lease_id in pc.unique(done["lease_id"]).to_pylist() if lease_id is not None]
    lost = [
        lease_id for lease_id in ids if all_lost or transfer.target.last_number(lease_id) is None
    ]
    index = source.messages.plan_recovery().index if lost else None
    for transfer_id in lost:
        assert index is not None
        mine = done.filter(pc.equal(done["lease_id"], transfer_id))
        ranges = list(_ranges(group, index, mine, rows))
        again = transfer.begun(ranges[0], index) if ranges else None
        if again is not None:
            yield _Lost(again, transfer_id, ranges)


def _events(source: QueueContext, group: str) -> pa.Table:
    """Return the events of a group that archive and ledgers agree on."""
    agreed = source.history.agreed_up_to()
    rows, archived = source.history.read([("consumer_group", "=", group)])
    if agreed is not None:
        rows, archived = rows.filter(pc.less_equal(rows["version"], agreed)), agreed
    recent = (
        commit.filter(pc.equal(commit["consumer_group"], group))
        for commit in commits_after(source.ledgers, archived)
    )
    return pa.concat_tables([rows, *recent])


def _ranges(
    group: GroupLedger, index: MessageIndex, done: pa.Table, rows: pa.Table
) -> Iterator[Range]:
    """Yield the transferred ranges that the source still has, in their earlier state."""
    agreed = agreed_up_to(group.ledger_in(group.snapshot()), index)
    beyond: list[Interval] = [] if agreed is None else [(agreed + 1, MAX_SEQUENCE)]
    rewound = rows.filter(pc.equal(rows["event"], REWOUND)).to_pylist()
    for row in done.to_pylist():
        later = [(r["first"], r["last"]) for r in rewound if r["version"] > row["version"]]
        trimmed = (0, group.queue.horizon())
        r = _range(row)
        for first, last in subtract([(r.first, r.last)], normalise([*beyond, *later, trimmed])):
            piece = r.slice(first, last, index)
            if piece.message_count:
                yield piece


def _range(row: dict[str, Any]) -> Range:
    fields = {name: row[name] for name in RANGE_SCHEMA.names if name in row}
    for name in _INSTANTS:
        if fields.get(name) is not None:
            fields[name] = round(fields[name].timestamp() * 1_000_000)
    return Range(**{**fields, "state": TRANSFERRING})
