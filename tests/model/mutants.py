"""Each mutant takes one rule of DESIGN sections 3, 4, 6, 7 or 8 out of the product.

Some world must fail without it.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger import admin as moving
from spark_mq.ledger import (
    breaker,
    grant,
    interventions,
    key_order,
    lane_selector,
    lane_walk,
    log_fingerprints,
    order,
    routing,
)
from spark_mq.ledger import editor as draft
from spark_mq.ledger import extend as extending
from spark_mq.ledger import lease_walker as held
from spark_mq.ledger import owner_commands as owner
from spark_mq.ledger import settle as settling
from spark_mq.ledger import stream_batch as replaying
from spark_mq.ledger import transitions as ledger
from spark_mq.maintenance import dead_letters, recover, redrive, retention, transfer
from spark_mq.operations import committer, group_ledger
from spark_mq.spark import foreach_batch as foreach
from spark_mq.spark import lease_router as owners
from spark_mq.spark.batch_lease import BatchLease
from spark_mq.streaming import source as stream

from . import actors, tables
from .storage import IDS


@dataclass(frozen=True)
class Mutant:
    """``function``, with ``old`` in its source replaced by ``new``."""

    section: str
    rule: str
    function: Any
    old: str
    new: str
    world: str
    """One that fails without the rule."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        function = self.function
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, (
            f"{self.rule}: {function.__qualname__} has changed, and {self.old!r} is not in it once"
        )
        names = function.__globals__
        made: dict[str, Any] = {}
        exec(compile("from __future__ import annotations\n" + source.replace(self.old, self.new),
                     function.__code__.co_filename, "exec"),
             names | {"IDS": IDS}, made)  # fmt: skip
        # The very function that all others call: its code alone is changed, wherever it has been
        # imported to.
        code = function.__code__
        changed = made[function.__name__]
        function.__code__ = (changed.fget if isinstance(changed, property) else changed).__code__
        try:
            yield
        finally:
            function.__code__ = code


FLAKY = """    if bad:
        lease.nack(Frame(batch.lease_id, [batch.sequences[bad - 1]]))
    write(ctx, batch, lease, rows)
"""
FLAKY_LATE = """    write(ctx, batch, lease, rows)
    if bad:
        lease.nack(Frame(batch.lease_id, [batch.sequences[bad - 1]]))
"""

LEDGER, SOURCE, SETTLING, LETTERS, TRIM, ORDER = "4", "6", "7", "8", "3", "order"

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
# - a lease begins with an open band: the walk takes no message of another one. Without it a group
#   may lease nothing for a while (tests/model/test_order.py).
# - an extension revives nothing behind an expired message of its key: the next settle would return
#   it (tests/unit/ledger/test_key_order.py).
# - routing looks at the mark before it publishes: a second one under its transfer id is refused.
#   It saves writing the files.
ALL = [
    # -- section 4: the ledger
    Mutant(LEDGER, "a lease past its deadline expires", ledger.expire_leases,
           "now - rules.clock_skew // MICROSECOND", "0", "manual"),
    Mutant(LEDGER, "no lease expires before its deadline", ledger.expire_leases,
           "now - rules.clock_skew // MICROSECOND", "now + 30_000_000", "kept_alive"),
    Mutant(LEDGER, "nor before the margin for clocks has passed, too", ledger.expire_leases,
           "now - rules.clock_skew // MICROSECOND", "now", "capped"),
    Mutant(LEDGER, "an operation never folds the lease that it names", ledger.expire_leases,
           "if r.lease_id in kept:", "if False:", "fickle"),
    Mutant(LEDGER, "a lease is counted", grant._leased, "r.delivery_count + 1",
           "r.delivery_count", "crashes"),
    Mutant(LEDGER, "what waits is leased when it is due", order.DueRanges.__init__, '"<=", cutoff)',
           '"<=", cutoff + 10**12)', "raiser"),
    Mutant(LEDGER, "suspects are isolated, alone at last", order.isolation_size,
           "return max(1, min(limit, int(size + 1e-9)))",
           "return limit", "killer"),
    Mutant(LEDGER, "what failed together is retried together, and apart",
           order.DueRanges.rows_from,
           "_failed_together(self.ledger, head.row)", "rows", "apart"),
    Mutant(LEDGER, "the first failure of a whole lease is retried whole", order.isolation_size,
           "attempts - 2 if attempts >= WHOLE_RETRY_ATTEMPTS else attempts - 1", "attempts - 1",
           "apart"),
    Mutant(LEDGER, "suspects go apart from the rest", order._due_rows, "rest = (*due, _CLEAR,",
           "rest = (*due,", "in_places"),
    Mutant(LEDGER, "last attempts go apart from the rest", order._due_rows,
           'rest = (*due, _CLEAR, ("delivery_count", "<", before_last))',
           "rest = (*due, _CLEAR)", "last_attempts"),
    Mutant(LEDGER, "while suspects are isolated, unread gets each fourth lease",
           lane_selector.LaneSelector._take,
           ">= MAX_LEASES_WITHOUT_FRESH", ">= 99", "immortal_and_unread"),
    Mutant(LEDGER, "and no more than that", lane_selector.LaneSelector._take,
           ">= MAX_LEASES_WITHOUT_FRESH", ">= 1", "isolated"),
    Mutant(LEDGER, "what waits comes before what is unread", lane_selector.LaneSelector._level,
           "head = self._due.head(rows)", "head = None if self._may_read else self._due.head(rows)",
           "singly"),
    Mutant(LEDGER, "unread messages do not join while other work waits",
           order.DueRanges.are_all, "len(rows) == self.count", "True", "in_places"),
    Mutant(LEDGER, "a suspect keeps its place", order.DueRanges.rows_from,
           "if after < len(suspects)", "if False", "three_in_places"),
    Mutant(LEDGER, "the first that waits goes first", order.DueRanges.head,
           "return min(heads, default=None)",
           "return max(heads, default=None)", "in_places"),
    Mutant(LEDGER, "max_in_flight cuts a lease to what fits", lane_selector.LaneSelector.__init__,
           "if rules.max_in_flight is not None:", "if False:", "capped"),
    Mutant(LEDGER, "expiry makes suspect", ledger.expired, "suspect=r.lease_size != 1",
           "suspect=r.suspect", "driver_and_worker"),
    Mutant(LEDGER, "but not a message that was alone in its lease", ledger.expired,
           "suspect=r.lease_size != 1", "suspect=True", "singly"),
    Mutant(LEDGER, "what expired may be settled late", ledger.expired, "lease_id=r.lease_id,",
           "lease_id=None,", "fickle"),
    Mutant(LEDGER, "what expired is due at once", ledger.expired, "to_available(r, at, error)",
           "to_available(r, at + 10**10, error)", "capped"),
    Mutant(LEDGER, "no more deliveries than max_delivery_attempts", ledger.exhausted_limit,
           "r.delivery_count >= attempts",
           "r.delivery_count > attempts", "manual"),
    Mutant(LEDGER, "only the owner settles", held.LeaseWalker._holds,
           "and r.lease_id == self.lease_id", "", "fickle"),
    Mutant(LEDGER, "a late settle counts", held.LeaseWalker._holds, "(LEASED, AVAILABLE)",
           "(LEASED,)", "fickle"),
    Mutant(LEDGER, "a nack gives up the lease's claim", settling._nacked, "suspect=suspect, ",
           "suspect=suspect, lease_id=r.lease_id, ", "capped"),
    Mutant(LEDGER, "a late release gives up the lease's claim", settling._released,
           "r.error)._replace(lease_size=lease_size)",
           "r.error)._replace(lease_size=lease_size, lease_id=r.lease_id)", "fickle"),
    Mutant(LEDGER, "what is released with a delay is due after it", settling._released,
           "now + (delay or 0)", "now", "snoozing"),
    Mutant(LEDGER, "also if it is released late", settling._released,
           "if delay is None else now + delay", "", "snoozing"),
    Mutant(LEDGER, "an extension of one message leaves the others",
           extending.Extend.apply, "deadline, intervals,", "deadline, None,",
           "snoozing"),
    Mutant(LEDGER, "a nack of the whole lease makes suspect", settling._nacked,
           "not by_name and r.lease_size != 1", "False", "raiser"),
    Mutant(LEDGER, "but not a message that was alone in it", settling._nacked,
           "not by_name and r.lease_size != 1", "not by_name", "singly"),
    Mutant(LEDGER, "a nack by name does not", settling._nacked, "not by_name and r.lease_size != 1",
           "r.lease_size != 1", "flaky_verdicts"),
    Mutant(LEDGER, "nacks back off", settling._nacked,
           "rules.delay(r.failure_count, command.jitter) if live else 0", "0", "raiser"),
    Mutant(LEDGER, "what is released is not counted", key_order.returned,
           "count = r.delivery_count - 1", "count = r.delivery_count", "capped"),
    Mutant(LEDGER, "a release restores no older lease id", key_order.returned, "back._replace(",
           "back._replace(lease_id=r.lease_id, ", "capped"),
    Mutant(LEDGER, "what is rejected is dead, not done", settling._Settling._after,
           "rejected(r, rules, command.reason, command.error)", "r.as_settled()", "rejecter"),
    Mutant(LEDGER, "a reject is dead also if exhausted messages are dropped", ledger.rejected,
           'rules.on_reject == "drop"', 'rules.on_max_deliveries == "drop"', "dropping"),
    Mutant(LEDGER, "a late nack or release is an expiry first", settling._Settling.apply,
           "is_late(r, self.now, self.rules)", "False", "fickle"),
    Mutant(LEDGER, "leases that fail in a row open the breaker", breaker.Breaker.with_failure,
           "if len(failed) < rules.breaker_threshold:", "if True:", "broken"),
    Mutant(LEDGER, "an open breaker grants one message", acquiring.acquire,
           "if trials:\n        request", "if False:\n        request", "broken"),
    Mutant(LEDGER, "and only after its wait", breaker.Breaker.blocked_because,
           "if now >= (self.next_trial_at or 0):", "if True:", "broken"),
    Mutant(LEDGER, "one trial at a time", acquiring._is_leased, "return any(",
           "return False and any(", "broken"),
    Mutant(LEDGER, "the wait grows with each failed trial", breaker._wait,
           "2 ** min(failed_trials, 40)", "1", "broken"),
    Mutant(LEDGER, "an ack of the trial closes the breaker", breaker.Breaker.with_success,
           "if not any(", "if True or not any(", "broken"),
    Mutant(LEDGER, "no other ack does", breaker.Breaker.with_success, "if not any(",
           "if False and not any(", "broken"),
    Mutant(LEDGER, "an ack starts the count again", breaker.Breaker.with_success,
           "replace(self, failed=(), cause=None) if self.failed else self",
           "self", "broken"),
    Mutant(LEDGER, "only leases of different messages count", breaker.Breaker.with_failure,
           "if first in self.failed:", "if False:", "broken"),
    Mutant(LEDGER, "a paused group leases nothing", breaker.Breaker.why,
           "if self.paused_at is not None:", "if False:", "paused"),
    Mutant(LEDGER, "the owner takes no message from a lease unasked", interventions._Change.held,
           "r.state == LEASED and not force",
           "False", "discarding"),
    Mutant(LEDGER, "a lease that lost a message to the owner cannot settle it",
           interventions._Change._after,
           "lease_size=size, reason=", "lease_size=size, lease_id=r.lease_id, reason=", "retrying"),
    Mutant(LEDGER, "what the owner retries is due at once", interventions._Change._after,
           "to_available(r, self.now, r.error)",
           "to_available(r, r.available_at or self.now + 10**9, r.error)", "retrying"),
    Mutant(LEDGER, "what the owner makes dead is dead", interventions._Change._after,
           "to_dead(r, REQUESTED, self.error or r.error)",
           "r.as_settled()", "making_dead"),
    Mutant(LEDGER, "what the owner discards is over", interventions._Change._after,
           "return r.as_settled()",
           "return to_available(r, self.now, r.error)", "discarding"),
    Mutant(LEDGER, "a resumed group leases again", moving.resume, "Breaker()",
           "ledger.head.breaker", "paused"),
    Mutant(LEDGER, "an extension revives what has expired", extending._Extension.apply,
           "if r.state == AVAILABLE:", "if False:", "fickle"),
    Mutant(LEDGER, "an extension never shortens", extending._Extension.apply,
           "max(expires_at, r.expires_at or 0)", "expires_at", "capped"),
    Mutant(LEDGER, "what is settled already is a no-op", held.LeaseWalker._split_at,
           "if r.state == SETTLED:", "if False:", "fickle"),
    Mutant(LEDGER, "neighbours that are alike are one range", draft.LedgerEditor._merge,
           "elif out and out[-1][0].same_state_as(piece):", "elif False:", "flaky_verdicts"),
    Mutant(LEDGER, "what is settled at the start lies below the start",
           draft.LedgerEditor._raise_start, "elif merged and merged[0].state == SETTLED:",
           "elif False:", "crashes"),
    # -- the order of keys (docs/explanation/order.md)
    Mutant(ORDER, "no two leases hold one lane", key_order.held_lanes,
           "rows = ledger.find((LEASED,))", "rows = []", "ordered"),
    Mutant(ORDER, "what waits holds back its lane", lane_walk.LaneWalk._closed,
           "is_open & ~(bands & ~self._no_lane) if self._ordered else is_open",
           "is_open", "ordered"),
    Mutant(ORDER, "a nack returns what stands behind", settling.settle,
           "if ordered and command.verb in (NACK, RELEASE):", "if False:", "ordered"),
    Mutant(ORDER, "uncounted", key_order._split, "returned(r, now) if r.state == LEASED",
           "to_available(r, now, r.error) if r.state == LEASED",
           "ordered"),
    Mutant(ORDER, "a lease loses its claim with one of its lanes", key_order.claims_on_lanes,
           "if not lanes:", "if True:", "ordered"),
    Mutant(ORDER, "dead messages hold back nothing", lane_walk.LaneWalk.__init__,
           "ledger.find((AVAILABLE, BLOCKED))",
           "ledger.find((AVAILABLE, BLOCKED, 'dead'))", "ordered_dead"),
    # -- section 6: the source
    Mutant(SOURCE, "a replay never leases again", stream.StreamSource.plan,
           "if key == self._offered else self.replay(stream, n)", "", "crashes"),
    Mutant(SOURCE, "nor where nothing is left of its batch", stream.StreamSource.plan,
           "self.replay(stream, n)",
           "(self.replay if self.ledger.current().find(('leased', 'available'), ('lease_id', "
           "'starts with', f'{stream}/{n}/')) else self.lease)(stream, n)",
           "crashes"),
    Mutant(SOURCE, "a replay takes over what its batch holds", replaying.rows_held_by_batch,
           "return ledger", "return [] and ledger", "crashes"),
    Mutant(SOURCE, "a replay counts as a delivery", replaying.replay_batch, "r.delivery_count + 1",
           "r.delivery_count", "crashes"),
    Mutant(SOURCE, "a replay leaves its mark, even if nothing is left", replaying.Replay.apply,
           "None if number == replayed else batch.txn(2)",
           "batch.txn(2) if granted else None", "zombie"),
    Mutant(SOURCE, "a lease is refused once the batch was leased or replayed",
           acquiring.Acquire.apply, "highest=2 * self.batch.number)",
           "highest=2 * self.batch.number + 2)", "zombie"),
    Mutant(SOURCE, "a batch is replayed once", replaying.Replay.apply,
           "granted_before=number == replayed", "granted_before=False", "immortal"),
    Mutant(SOURCE, "no innocent has its last attempt in company", order._due_rows,
           "sorted({*suspect, *innocent})", "suspect", "releasing"),
    Mutant(SOURCE, "what failed by itself stays in the replay", replaying.replay_batch,
           " and not _failed_by_itself(r)", "", "refusing"),
    Mutant(SOURCE, "no replay delivers past the limit", replaying.replay_batch,
           "_is_last(r, rules, 0)", "False", "flaky_verdicts"),
    Mutant(SOURCE, "what a replay gives back is suspect", replaying.return_to_group, "suspect=True",
           "suspect=r.suspect", "killer"),
    Mutant(SOURCE, "what a replay gives back has no lease id", replaying.return_to_group,
           "suspect=True",
           "suspect=True, lease_id=r.lease_id", "killer"),
    Mutant(SOURCE, "partitions gives the same answer again", stream.StreamSource.plan,
           "if key not in self._planned:", "if True:", "crashes"),
    Mutant(SOURCE, "a batch is acked only once Spark asks for what follows",
           replaying._committed_leases, "p[1] <= up_to", "p[1] <= up_to + 1", "crashes"),
    Mutant(SOURCE, "a driver acks at its start what its predecessors left",
           replaying._committed_leases,
           "(runner is None or p[2] == runner)", "p[2] == runner", "plain_sink"),
    Mutant(SOURCE, "with ack=manual nothing is acked unasked", stream.StreamSource._batch,
           "n - 1 if self.options.ack_on_commit else 0", "n - 1", "manual"),
    Mutant(SOURCE, "nor what a batch has left on purpose", replaying._committed_leases,
           "if n > left", "", "left"),
    Mutant(SOURCE, "one attempt is kept for a replay", acquiring.Acquire._request,
           "0 if self.batch is None else RESERVED_ATTEMPTS", "0", "releasing"),
    # -- section 7: settling from foreachBatch
    Mutant(SETTLING, "a zombie's query ends before Spark commits its batch",
           owners.LeaseRouter.check,
           "if holders or number > self._numbers.get(lease_id, 2 * n + 1):", "if False:",
           "zombie_and_crashes"),
    Mutant(SETTLING, "a sink's transaction is the stream, never a constant",
           BatchLease.delta_options.fget,
           '"txnAppId": parts[0]', '"txnAppId": "app"', "company"),
    Mutant(SETTLING, "and n, which never repeats", BatchLease.delta_options.fget, "str(parts[1])",
           '"1"', "crashes"),
    Mutant(SETTLING, "what is settled is the lease minus the failures", foreach.ForEachBatch._run,
           "result = self._verdicts(returned, lease)",
           "result = []", "returner"),
    Mutant(SETTLING, "what is left on purpose is put down before Spark commits the batch",
           foreach.ForEachBatch.__call__,
           'if self.policy.ack == "manual":', "if False:", "left"),
    Mutant(SETTLING, "the lease is settled after the handler", foreach.ForEachBatch._run,
           'if self.policy.ack == "on_receive":', "if True:", "crashes"),
    Mutant(SETTLING, "a verdict that may differ is settled before the sink is written",
           actors.flaky, FLAKY, FLAKY_LATE, "flaky_verdicts"),
    Mutant(SETTLING, "an outage is no failure of the messages", foreach.ForEachBatch._run,
           "if (outage := find_outage(self._owners, failure, lease)) is not None:",
           "if (outage := None) is not None:", "outages"),
    Mutant(SETTLING, "a batch that met an outage is released before the query ends",
           foreach.ForEachBatch._run,
           "release_batch(self._owners, lease)", "pass", "outages"),
    # -- section 8: dead letters
    Mutant(LETTERS, "a sweeper finishes the routing ids that it finds",
           dead_letters.route_dead_letters, "routing.finish_all()", "0", "routing"),
    Mutant(LETTERS, "each routing has a new id", transfer.Transfer.freeze,
           'f"{self.prefix}-{uuid.uuid4().hex}"', '"routing-1"', "routing_goes_on"),
    Mutant(LETTERS, "a race for a transfer id is refused", transfer.Transfer._publish,
           "txn=(transfer_id, 1), ", "", "routing"),
    Mutant(LETTERS, "dead letters are published before they are settled", transfer.Transfer.finish,
           "if frozen and", "if not frozen and", "routing_and_seek"),
    Mutant(LETTERS, "a transfer id settles its own alone", routing.settle_routed,
           '("lease_id", "=", transfer_id)', '("first", ">=", 0)', "routing_goes_on"),
    Mutant(LETTERS, "a seek leaves alone what is being routed", moving.seek,
           "ledger.ranges_at(ledger.find((TRANSFERRING,)))", "[]", "routing_and_seek"),
    Mutant(LETTERS, "a redriver finishes what it finds", redrive.redrive,
           "Redrive(context).finish_all()", "0", "redriving"),
    Mutant(LETTERS, "a race for a redrive is refused", transfer.Transfer._publish,
           "txn=(transfer_id, 1), ", "", "redriving"),
    Mutant(LETTERS, "each redrive has an id of its own", transfer.Transfer.freeze,
           'f"{self.prefix}-{uuid.uuid4().hex}"', '"redrive-1"', "redriving"),
    # -- section 3: trims
    Mutant(TRIM, "a trim waits for every group", retention.trim, "min(lowest_start(counting), ",
           "max(-1, ", "trim_and_seek"),
    Mutant(TRIM, "a trim is a compare-and-swap of the whole table", committer._Batch.__init__,
           "any(one.whole_table for one in commands)", "False", "trim_and_new_group"),
    Mutant(TRIM, "the commit that makes a group conflicts with a trim", tables.MemoryLedgers.write,
           "(stored.group, HORIZON)", "(stored.group,)", "trim_and_new_group"),
    Mutant(TRIM, "that of a seek conflicts with a trim", tables.MemoryLedgers.write,
           "(stored.group, HORIZON)", "(stored.group,)", "trim_and_seek"),
    Mutant(TRIM, "a new group starts above the horizon", owner.Create.apply,
           "max(position - 1, view.horizon)", "_position(index, self.start) - 1",
           "trim_and_new_group"),
    Mutant(TRIM, "a seek ends above the horizon", owner.seek_position,
           "max(_position(index, target), horizon + 1)", "_position(index, target)",
           "trim_and_seek"),
    Mutant(TRIM, "a ledger is refused that was made from another log",
           group_ledger.GroupLedger.check_same_log,
           "if agreed is not None:", "if False:", "restored"),
    Mutant(TRIM, "a ledger remembers files of its log", log_fingerprints.with_fingerprint,
           "return ledger.replaced(head, ledger.events)", "return ledger", "restored"),
    Mutant(TRIM, "a recovery forgets what the log lacks", recover.Repair.apply,
           "agreed = agreed_up_to(after, index)", "agreed = None", "restored"),
]  # fmt: skip
