"""Make a queue's tables agree after some were restored alone.

No existing message is lost. A message may be delivered again. Each step can be repeated, so a
killed recovery continues when it is run again. Workers must not run meanwhile.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from spark_mq.ledger import admin
from spark_mq.ledger.commands import Change, Command, View
from spark_mq.ledger.log_marks import MAX_SEQUENCE, agreed_up_to, forget, with_fingerprint
from spark_mq.ledger.ranges import SETTLED, TRANSFERRING, Ledger, LedgerHeader
from spark_mq.maintenance.lost_transfers import count_lost_transfers, repeat_lost_transfers
from spark_mq.maintenance.redrive import REDRIVE
from spark_mq.operations.context import QueueContext
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.storage.log_recovery import LogPlan
from spark_mq.util.records import Record

__all__ = ["RecoveryReport", "Repair", "recover", "recover_tables"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport(Record):
    """The effects of a recovery, or of a dry run.

    Attributes
    ----------
    forgotten : int
        Messages whose state the groups forget, added up over the groups. ``messages/`` lacks
        them, or has other messages in their place.
    unread : int
        Messages that a group gets, again or for the first time, because it forgets their state.
    skipped : int
        Trimmed messages that an older ledger took for unsettled.
    republished : int
        Messages that are published again, because nothing knows their sequences any longer.
    commits, history : int
        Commits that ``commits/`` described and ``messages/`` lacked, and those that ``history/``
        described and ``leases/`` lacked.
    dead_letters, redriven : int
        Dead letters that the dead-letter queue lost and gets again, and redriven messages that the
        queue lost and gets again.
    dead_letter_queue : dict
        The same counts of the dead-letter queue's own tables.
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
    context = _unchecked(context.reopened())
    dead = context.existing_dead_letters() if dry_run else context.dead_letters()
    shared = dead is not None and dead.path == context.path
    own = {} if dead is None or shared else _counts(recover_tables(_unchecked(dead), dry_run))
    report = recover_tables(context, dry_run)
    if not shared:
        transfers = count_lost_transfers if dry_run else repeat_lost_transfers
        letters, redriven = transfers(context)
        report = replace(report, dead_letters=letters, redriven=redriven)
    report = replace(report, dead_letter_queue={name: n for name, n in own.items() if n})
    if report.needed:
        _log.warning("%s of %s: %s", "recovery" if not dry_run else "dry run of a recovery",
                     context.path, report)  # fmt: skip
    return report


def _unchecked(context: QueueContext) -> QueueContext:
    context.messages.expect(lambda look: -1)
    return context


def _counts(report: RecoveryReport) -> dict[str, int]:
    counts = asdict(report)
    del counts["dead_letter_queue"]
    return counts


def recover_tables(context: QueueContext, dry_run: bool) -> RecoveryReport:
    """Recover the tables of one queue, without its dead letters.

    The order of the steps matters: if it is killed in between, readers still refuse.
    """
    plan = context.messages.plan_recovery()
    if plan.unknown and not dry_run:
        context.messages.publish_again(plan)
    report = RecoveryReport(
        republished=plan.unknown_rows, commits=max(0, plan.covered - plan.agreed)
    )
    for name in (*context.ledgers.groups(), REDRIVE, HORIZON):
        group = context.group(name)
        repair = Repair(plan, context.messages.trimmed, context.ledgers.known_horizon())
        if dry_run:
            found = repair.apply(group.view(repair, group.snapshot())).result
        else:
            found = group.run(repair)
        report = replace(
            report,
            forgotten=report.forgotten + found.forgotten,
            unread=report.unread + found.unread,
            skipped=report.skipped + found.skipped,
        )
    report = replace(report, history=_recover_history(context, dry_run))
    if not dry_run:
        context.messages.rewrite_commits(plan)
    return report


def _recover_history(context: QueueContext, dry_run: bool) -> int:
    agreed = context.history.agreed_up_to()
    if agreed is None:
        return 0
    archived = context.history.read([("version", ">=", agreed + 1)])[1]
    if not dry_run:
        context.history.truncate(agreed)
    return max(1, archived - agreed)


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
    alone = True
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
        return admin.settle_lost(
            ledger, self.plan.index, self.trimmed, "skipped", (SETTLED, TRANSFERRING)
        )
