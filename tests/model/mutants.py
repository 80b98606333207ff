"""Wrong versions of the rules of DESIGN sections 3, 4, 6, 7 and 8, one for each promise.

Some world must fail with each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from support.rule_variants import Variant, first, gets, instead, returns, rule_variant, then

from spark_mq.ledger.commands import Change
from spark_mq.ledger.isolation import LAST, REST, SUSPECT, Head
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, LEASED, TRANSFERRING, Ledger, Range
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.storage.publishes import PendingPublish

from .storage import SECOND

LATER = 10**12
"""Microseconds, more than any world lasts."""
END = 2**62
"""More than any sequence."""


@dataclass(frozen=True)
class Mutant:
    """A wrong version of a rule."""

    name: str
    """The promise that it breaks."""
    world: str
    """One that fails with it."""
    rule: str
    variant: Variant

    def applied(self) -> AbstractContextManager[None]:
        return rule_variant(self.rule, self.variant)


def becomes(change: Callable[[Range, Range], Range]) -> Variant:
    """What the rule makes of a range `r` is changed, if its messages are not over then."""
    return then(
        lambda after, a: change(a.r, after) if after.state in (AVAILABLE, LEASED) else after
    )


def keeps(*names: str) -> Variant:
    """These fields of a range stay as they are before the rule."""
    return becomes(lambda r, after: after._replace(**{name: getattr(r, name) for name in names}))


def uncounted(event: str) -> Variant:
    """A range has the deliveries after an event that it has before."""
    return gets(
        piece=lambda a: (
            a.piece._replace(delivery_count=a.before.delivery_count)
            if a.event == event
            else a.piece
        )
    )


def freeze_by_one_id(right: Callable[..., Any], a: Any) -> str | None:
    transfer_id = f"{a.self.prefix}-1"
    return transfer_id if a.self.source.run(a.self.freezing(transfer_id)) else None


def publish_without_an_id(_: Callable[..., Any], a: Any) -> None:
    a.self.target.commit(PendingPublish(a.self.target.files, a.self.write(a.ranges)))


def settle_every_id(right: Callable[..., Any], a: Any) -> Change[int]:
    ledger, total = a.view.ledger, 0
    for transfer_id in ledger.distinct("lease_id", (TRANSFERRING,)):
        change = right(replace(a.self, transfer_id=transfer_id), a.view._replace(ledger=ledger))
        ledger, total = change.ledger or ledger, total + change.result
    return Change(ledger if total else None, total, {"operation": a.self.event})


def without_transfers(ledger: Ledger) -> Ledger:
    ranges = [
        r._replace(state=AVAILABLE, lease_id=None) if r.state == TRANSFERRING else r for r in ledger
    ]
    return Ledger.from_ranges(ledger.head, ranges, ledger.events)


def write_without_horizon(right: Callable[..., Any], a: Any) -> None:
    given = dict(vars(a))
    changed, changes = given.pop("self").changed, given.pop("changes")
    moved = changed.pop(HORIZON, 0)
    try:
        right(a.self, *changes, **given)
    finally:
        changed.setdefault(HORIZON, moved)


# Not here, for nothing is seen of their absence alone; what stands behind each keeps the promise
# without it:
# - a replay is refused once a later batch was leased: the batch's messages were settled, or given
#   back, before that. It gives an operator the reason.
# - a driver acks no successor's lease: Spark lets it ask for more only once its own sink holds the
#   batch; until then its query is ended.
# - a replay gives back an innocent on its last attempt: such a one was leased alone, unless the
#   limit was another then (tests/unit/streaming/test_source.py).
# - a replay does not fold what it takes over: a stream's lease keeps one attempt back, so that
#   nothing in it is past its limit.
# - a lease begins with an open slot: the walk takes no message of another one. Without it a group
#   may lease nothing for a while (tests/model/test_order.py).
# - an extension revives nothing behind an expired message of its key: the next settle would return
#   it (tests/unit/ledger/test_key_order.py).
# - routing looks at the mark before it publishes: a second one under its transfer id is refused.
#   It saves writing the files.
ALL = [
    # -- section 4: the ledger
    Mutant("a lease past its deadline expires", "manual", "expire_leases", gets(now=0)),
    Mutant("no lease expires before its deadline", "kept_alive", "expire_leases",
           gets(now=lambda a: a.now + 30 * SECOND)),
    Mutant("nor before the margin for clocks has passed, too", "capped", "expire_leases",
           gets(rules=lambda a: replace(a.rules, clock_skew=timedelta()))),
    Mutant("a lease is counted", "crashes", "leased", keeps("delivery_count")),
    Mutant("what waits is leased when it is due", "raiser", "DueRanges.__init__",
           gets(cutoff=lambda a: a.cutoff + LATER)),
    Mutant("suspects are isolated, alone at last", "killer", "isolation_size",
           then(lambda size, a: a.limit)),
    Mutant("a piece of suspects grows only after others of its lease are settled", "in_pieces",
           "settled_since", then(lambda settled, a: a.r.lease_size)),
    Mutant("but it does grow", "in_pieces", "settled_since", returns(0)),
    Mutant("up to half of those that wait", "in_pieces", "isolation_size",
           gets(waiting=lambda a: 2 * a.waiting)),
    Mutant("what failed together is retried together, and apart", "apart", "failed_together",
           returns([])),
    Mutant("the first failure of a whole lease is retried whole", "apart", "isolation_size",
           gets(deliveries=lambda a: a.deliveries + 1, attempts=lambda a: a.attempts + 1)),
    Mutant("suspects go apart from the rest", "in_places", "_due_rows",
           then(lambda rows, a: rows | {REST: sorted({*rows[REST], *rows[SUSPECT]})})),
    Mutant("last attempts go apart from the rest", "last_attempts", "_due_rows",
           then(lambda rows, a: rows | {REST: sorted({*rows[REST], *rows[LAST]})})),
    Mutant("while suspects are isolated, unread gets each fourth lease", "immortal_and_unread",
           "_with_leases_without_fresh", then(lambda head, a: a.head)),
    Mutant("and no more than that", "isolated", "_with_leases_without_fresh",
           then(lambda head, a: replace(head, leases_without_fresh=0 if a.fresh else 99))),
    Mutant("what waits comes before what is unread", "singly", "LaneSelector._level",
           then(lambda level, a: (
               replace(level, head=None, rows=[], covers_all_due=True)
               if a.self._may_read else level))),
    Mutant("unread messages do not join while other work waits", "in_places", "DueRanges.are_all",
           returns(True)),
    Mutant("a suspect keeps its place", "three_in_places", "DueRanges.rows_from",
           then(lambda rows, a: rows if a.head.kind == SUSPECT else [
               row for row in a.self._rows[a.head.kind] if row >= a.head.row])),
    Mutant("the first that waits goes first", "in_places", "DueRanges.head",
           then(lambda head, a: max(
               (Head(rows[0], kind) for kind, rows in a.self._rows.items() if rows),
               default=None))),
    Mutant("max_in_flight cuts a lease to what fits", "capped", "acquire",
           gets(rules=lambda a: replace(a.rules, max_in_flight=None))),
    Mutant("expiry makes suspect", "driver_and_worker", "expired", keeps("suspect")),
    Mutant("but not a message that was alone in its lease", "snoozing", "expired",
           becomes(lambda r, after: after._replace(suspect=True))),
    Mutant("unless its worker held another lease", "singly", "without_lone_blame",
           then(lambda after, a: a.ledger)),
    Mutant("what expired may be settled late", "fickle", "expired",
           becomes(lambda r, after: after._replace(lease_id=None))),
    Mutant("an operation never folds the lease that it names", "fickle", "expire_leases",
           gets(keep=())),
    Mutant("what expired is due at once", "capped", "expired",
           becomes(lambda r, after: after._replace(available_at=r.expires_at + LATER))),
    Mutant("no more deliveries than max_delivery_attempts", "manual", "exhausted_limit",
           gets(r=lambda a: a.r._replace(delivery_count=a.r.delivery_count - 1))),
    Mutant("only the owner settles", "fickle", "LeaseWalker._holds",
           then(lambda holds, a: a.r.state in (LEASED, AVAILABLE))),
    Mutant("a late settle counts", "fickle", "LeaseWalker._holds",
           then(lambda holds, a: holds and a.r.state == LEASED)),
    Mutant("a nack gives up the lease's claim", "capped", "_nacked", keeps("lease_id")),
    Mutant("a late release gives up the lease's claim", "fickle", "released",
           becomes(lambda r, after: (
               after._replace(lease_id=r.lease_id) if r.state == AVAILABLE else after))),
    Mutant("what is released with a delay is due after it", "snoozing", "released",
           gets(delay=lambda a: None if a.r.state == LEASED else a.delay)),
    Mutant("also if it is released late", "snoozing", "released",
           gets(delay=lambda a: None if a.r.state == AVAILABLE else a.delay)),
    Mutant("an extension of one message leaves the others", "snoozing", "_extend",
           gets(intervals=None)),
    Mutant("a nack of the whole lease makes suspect", "raiser", "_nacked",
           becomes(lambda r, after: after._replace(suspect=False, lease_size=None))),
    Mutant("but not a message that was alone in it", "singly", "_nacked",
           gets(r=lambda a: a.r._replace(lease_size=2))),
    Mutant("a nack by name does not", "flaky_verdicts", "_nacked",
           becomes(lambda r, after: after._replace(suspect=r.lease_size != 1))),
    Mutant("nacks back off", "raiser", "GroupSettings.delay", returns(0)),
    Mutant("what is released is not counted", "capped", "returned",
           keeps("delivery_count", "first_leased_at")),
    Mutant("a release restores no older lease id", "capped", "returned",
           keeps("lease_id")),
    Mutant("what is rejected is dead, not done", "rejecter", "rejected",
           then(lambda after, a: a.r.as_settled())),
    Mutant("a reject is dead also if exhausted messages are dropped", "dropping",
           "rejected",
           gets(rules=lambda a: replace(a.rules, on_reject=a.rules.on_max_deliveries))),
    Mutant("a late nack or release is an expiry first", "fickle", "is_late",
           returns(False)),
    Mutant("leases that fail in a row open the breaker", "broken", "Breaker.with_failure",
           gets(rules=lambda a: replace(a.rules, breaker_threshold=10**6))),
    Mutant("an open breaker grants one message", "broken", "LaneSelector.__init__",
           gets(budget=lambda a: (
               type(a.budget)(a.index, 2) if a.ledger.head.breaker.is_open(a.rules)
               else a.budget))),
    Mutant("and only after its wait", "broken", "Breaker.blocked_because",
           gets(now=lambda a: a.now + LATER)),
    Mutant("one trial at a time", "broken", "Breaker.blocked_because", gets(on_trial=False)),
    Mutant("the wait grows with each failed trial", "broken", "_wait",
           gets(failed_trials=0)),
    Mutant("an ack of the trial closes the breaker", "broken", "Breaker.with_success",
           gets(intervals=[])),
    Mutant("no other ack does", "broken", "Breaker.with_success",
           gets(intervals=[(-1, END)])),
    Mutant("an ack starts the count again", "broken", "Breaker.with_success",
           then(lambda after, a: a.self if a.self.opened_at is None else after)),
    Mutant("only leases of different messages count", "broken", "Breaker.with_failure",
           gets(first=lambda a: (
               -len(a.self.failed) - 1 if a.self.opened_at is None else a.first))),
    Mutant("a paused group leases nothing", "paused", "Breaker.why",
           gets(self=lambda a: replace(a.self, paused_at=None))),
    Mutant("the owner takes no message from a lease unasked", "discarding",
           "Intervene.apply", gets(self=lambda a: replace(a.self, force=True))),
    Mutant("a lease that lost a message to the owner cannot settle it", "retrying",
           "_Change._after", keeps("lease_id")),
    Mutant("what the owner retries is due at once", "retrying", "_Change._after",
           becomes(lambda r, after: after._replace(available_at=r.available_at or 10 * LATER))),
    Mutant("what the owner makes dead is dead", "making_dead", "_Change._after",
           then(lambda after, a: a.r.as_settled())),
    Mutant("what the owner discards is over", "discarding", "_Change._after",
           then(lambda after, a: a.r._replace(state=AVAILABLE, available_at=a.self.now))),
    Mutant("a resumed group leases again", "paused", "Resume.apply",
           then(lambda change, a: change._replace(ledger=None))),
    Mutant("an extension revives what has expired", "fickle", "revived",
           then(lambda after, a: a.r)),
    Mutant("an extension never shortens", "capped", "_Extension.apply",
           gets(r=lambda a: a.r._replace(expires_at=None))),
    Mutant("what is settled already is a no-op", "fickle", "LeaseWalker.count_settled",
           instead(lambda right, a: (
               right(**vars(a)) if a.last <= a.self.ledger.head.start_sequence
               else a.self.outcome.add_lost(a.first, a.last, "settled")))),
    Mutant("neighbours that are alike are one range", "flaky_verdicts", "Range.same_state_as",
           returns(False)),
    Mutant("what is settled at the start lies below the start", "crashes",
           "LedgerEditor._raise_start", instead(lambda right, a: a.head)),
    # -- the order of keys (docs/explanation/order.md)
    Mutant("no two leases hold one lane", "ordered", "held_lanes", returns(0)),
    Mutant("what waits holds back its lane", "ordered", "OrderedWalk._close",
           returns(None)),
    Mutant("a nack returns what stands behind", "ordered", "_settle_part",
           gets(view=lambda a: (
               a.view._replace(settings=replace(a.view.settings, order="none"))
               if a.part.verb == "nack" else a.view))),
    Mutant("uncounted", "ordered", "LedgerEditor.add", uncounted("returned")),
    Mutant("a lease loses its claim with one of its lanes", "ordered", "claims_on_lanes",
           returns([])),
    Mutant("dead messages hold back nothing", "ordered_dead", "Candidates.__init__",
           then(lambda _, a: setattr(
               a.self, "_closing", a.ledger.find((AVAILABLE, BLOCKED, DEAD))))),
    # -- limits by key, and fair leases
    Mutant("no key is over its limit", "limited_by_key", "LaneShares._hold", returns(None)),
    Mutant("also not by one lease", "limited_by_key", "LaneShares.left",
           instead(lambda right, a: right(**vars(a)) and END)),
    Mutant("a fair lease has each key's share", "fair", "LaneShares._divide",
           instead(lambda right, a: dict.fromkeys(a.slots, a.messages))),
    # -- section 6: the source
    Mutant("a replay never leases again", "crashes", "StreamSource.replay",
           instead(lambda right, a: a.self.lease(a.stream, a.n))),
    Mutant("nor where nothing is left of its batch", "crashes", "StreamSource.replay",
           instead(lambda right, a: (right if a.self.ledger.current().find(
               (LEASED, AVAILABLE), ("lease_id", "starts with", f"{a.stream}/{a.n}/")
           ) else type(a.self).lease)(**vars(a)))),
    Mutant("a replay takes over what its batch holds", "crashes", "rows_held_by_batch",
           returns([])),
    Mutant("a replay counts as a delivery", "crashes", "LedgerEditor.add", uncounted("replayed")),
    Mutant("a replay leaves its mark, even if nothing is left", "zombie",
           "Replay.apply",
           then(lambda change, a: change if change.result.ranges else change._replace(txn=None))),
    Mutant("a lease is refused once the batch was leased or replayed", "zombie",
           "StreamBatch.check_fence",
           gets(highest=lambda a: max(a.highest, 2 * a.self.number + 2))),
    Mutant("a batch is replayed once", "immortal", "Replay._grant",
           gets(granted_before=False)),
    Mutant("no innocent has its last attempt in company", "releasing", "_due_rows",
           then(lambda rows, a: rows | {
               SUSPECT: a.ledger.find((AVAILABLE,), *a.due, ("suspect", "=", True))})),
    Mutant("what failed by itself stays in the replay", "refusing",
           "_failed_by_itself", returns(False)),
    Mutant("no replay delivers past the limit", "flaky_verdicts", "_is_last",
           then(lambda last, a: last and a.more > 0)),
    Mutant("what a replay gives back is suspect", "killer", "return_to_group",
           keeps("suspect")),
    Mutant("what a replay gives back has no lease id", "killer", "return_to_group",
           keeps("lease_id")),
    Mutant("partitions gives the same answer again", "crashes", "StreamSource.plan",
           first(lambda a: a.self._planned.clear())),
    Mutant("a batch is acked only once Spark asks for what follows", "crashes",
           "_committed_leases", gets(up_to=lambda a: a.up_to and a.up_to + 1)),
    Mutant("a driver acks at its start what its predecessors left", "plain_sink",
           "_committed_leases",
           gets(up_to=lambda a: 0 if a.runner is None else a.up_to)),
    Mutant("with ack=manual nothing is acked unasked", "manual", "StreamSource._batch",
           then(lambda batch, a: replace(batch, ack_up_to=a.n - 1))),
    Mutant("nor what a batch has left on purpose", "left", "_committed_leases",
           gets(view=lambda a: a.view._replace(numbers=dict.fromkeys(a.view.numbers)))),
    Mutant("one attempt is kept for a replay", "releasing", "acquire",
           gets(request=lambda a: replace(a.request, reserved_attempts=0))),
    # -- section 7: settling from foreachBatch
    Mutant("a zombie's query ends before Spark commits its batch", "zombie_and_crashes",
           "LeaseRouter.check", returns(None)),
    Mutant("a sink's transaction is the stream, never a constant", "company",
           "BatchLease.delta_options", then(lambda options, a: options | {"txnAppId": "app"})),
    Mutant("and n, which never repeats", "crashes", "BatchLease.delta_options",
           then(lambda options, a: options | {"txnVersion": "1"})),
    Mutant("what is settled is the lease minus the failures", "returner", "ForEachBatch._verdicts",
           returns([])),
    Mutant("what is left on purpose is put down before Spark commits the batch", "left",
           "leave_unsettled", returns(None)),
    Mutant("the lease is settled after the handler", "crashes", "ForEachBatch._run",
           first(lambda a: a.lease._ack_first())),
    Mutant("a verdict that may differ is settled before the sink is written", "flaky_verdicts",
           "model:flaky", gets(late=True)),
    Mutant("an outage is no failure of the messages", "outages", "find_outage", returns(None)),
    Mutant("a batch that met an outage is released before the query ends", "outages",
           "release_batch", returns(None)),
    # -- section 8: dead letters
    Mutant("a sweeper finishes the routing ids that it finds", "routing", "Transfer.finish_all",
           returns(0)),
    Mutant("each routing has a new id", "routing_goes_on", "Transfer.freeze",
           instead(freeze_by_one_id)),
    Mutant("a race for a transfer id is refused", "routing", "Transfer.publish",
           instead(publish_without_an_id)),
    Mutant("dead letters are published before they are settled", "routing_and_seek",
           "Transfer.publish", returns(None)),
    Mutant("a transfer id settles its own alone", "routing_goes_on", "SettleRouted.apply",
           instead(settle_every_id)),
    Mutant("a seek leaves alone what is being routed", "routing_and_seek", "Seek.apply",
           gets(view=lambda a: a.view._replace(ledger=without_transfers(a.view.ledger)))),
    Mutant("a redriver finishes what it finds", "redriving", "Transfer.finish_all", returns(0)),
    Mutant("a race for a redrive is refused", "redriving", "Transfer.publish",
           instead(publish_without_an_id)),
    Mutant("each redrive has an id of its own", "redriving", "Transfer.freeze",
           instead(freeze_by_one_id)),
    # -- section 3: trims
    Mutant("a trim waits for every group", "trim_and_seek", "lowest_start",
           returns(END)),
    Mutant("a trim is a compare-and-swap of the whole table", "trim_and_new_group",
           "operations:_Batch.__init__", then(lambda _, a: setattr(a.self, "whole_table", False))),
    Mutant("the commit that makes a group conflicts with a trim", "trim_and_new_group",
           "model:MemoryLedgers.write", instead(write_without_horizon)),
    Mutant("that of a seek conflicts with a trim", "trim_and_seek", "model:MemoryLedgers.write",
           instead(write_without_horizon)),
    Mutant("a new group starts above the horizon", "trim_and_new_group",
           "Create.apply", gets(view=lambda a: a.view._replace(horizon=-1))),
    Mutant("a seek ends above the horizon", "trim_and_seek", "seek_position",
           gets(horizon=-1)),
    Mutant("a ledger is refused that was made from another log", "restored",
           "GroupLedger.check_same_log", returns(None)),
    Mutant("a ledger remembers files of its log", "restored", "with_fingerprint",
           then(lambda after, a: a.ledger)),
    Mutant("a recovery forgets what the log lacks", "restored", "forget",
           instead(lambda right, a: (a.ledger, 0))),
]  # fmt: skip
