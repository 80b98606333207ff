"""Each mutant takes one rule of DESIGN sections 3, 4, 6, 7 or 8 out of the product; some world must fail without it."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_mq.ledger import acquire as selection
from spark_mq.ledger import admin as moving
from spark_mq.ledger import editor as draft
from spark_mq.ledger import log_marks, routing
from spark_mq.ledger import settle as settling
from spark_mq.ledger import transitions as ledger
from spark_mq.maintenance import dead_letters, recover, redrive, retention, transfer
from spark_mq.operations import group_ledger, shared_ledger
from spark_mq.spark import foreach_batch as foreach
from spark_mq.spark import lease_router as owners
from spark_mq.spark.batch_lease import BatchLease
from spark_mq.streaming import auto_ack
from spark_mq.streaming import source as stream

from . import actors
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
        exec(compile("from __future__ import annotations\n" + source.replace(self.old, self.new), function.__code__.co_filename, "exec"),
             names | {"IDS": IDS}, made)  # fmt: skip
        # The very function that all others call: its code alone is changed, wherever it has been imported to.
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

LEDGER, SOURCE, SETTLING, LETTERS, TRIM = "4", "6", "7", "8", "3"

# Not here, for nothing is seen of their absence alone; what stands behind each keeps the promise without it:
# - a replay is refused once a later batch was leased: what the batch held was settled, or given back, before that. It tells an operator why.
# - a driver acks no successor's lease: Spark lets it ask for more only once its own sink holds the batch; until then its query is ended.
# - a replay gives back an innocent on its last attempt: such a one was leased alone, unless the limit was another then (tests/unit/streaming/test_source.py).
# - a replay does not fold what it takes over: a stream's lease keeps one attempt back, so that nothing in it is past its limit.
# - routing looks at the mark before it publishes: a second publish under its routing id is refused. It saves writing the files.
ALL = [
    # -- section 4: the ledger
    Mutant(LEDGER, "a lease past its deadline expires", ledger.expire_leases, "now - rules.clock_skew", "0", "manual"),
    Mutant(LEDGER, "no lease expires before its deadline", ledger.expire_leases, "now - rules.clock_skew", "now + 30_000_000", "kept_alive"),
    Mutant(LEDGER, "nor before the margin for clocks has passed, too", ledger.expire_leases, "now - rules.clock_skew", "now", "capped"),
    Mutant(LEDGER, "an operation never folds the lease that it names", ledger.expire_leases, "if r.lease_id in kept:", "if False:", "fickle"),
    Mutant(LEDGER, "a lease is counted", selection._leased, "r.delivery_count + 1", "r.delivery_count", "crashes"),
    Mutant(LEDGER, "what waits is leased when it is due", selection._due_conditions, "_due_cutoff(now, request))", "_due_cutoff(now, request) + 10**12)", "raiser"),
    Mutant(LEDGER, "suspects are isolated, alone at last", selection.isolation_size, "return max(1, min(limit, int(limit**exponent + 1e-9)))",
           "return limit", "killer"),
    Mutant(LEDGER, "of suspects, a lease holds a piece of one range", selection._Acquiring._take, "rows = [row]",
           "rows = rows", "apart"),
    Mutant(LEDGER, "suspects go apart from the rest", selection._due_rows, 'clear = (*due, ("suspect", "=", False))', "clear = due", "immortal"),
    Mutant(LEDGER, "last attempts go apart from the rest", selection._due_rows, 'REST: ledger.find((WAITING,), *clear, ("delivery_count", "<", before_last))',
           "REST: ledger.find((WAITING,), *clear)", "last_attempts"),
    Mutant(LEDGER, "the kinds take turns", selection._with_next_kind, "_KINDS[(_KINDS.index(kind) + 1) % len(_KINDS)]", "SUSPECT", "immortal_and_unread"),
    Mutant(LEDGER, "without a limit, suspects take turns", selection._Acquiring._take, "if self.attempts is not None else", "if True else", "immortal"),
    Mutant(LEDGER, "what waits comes before what is unread", selection._Acquiring._take, "rows, limit = self.waiting[kind], self.limit",
           "rows, limit = self.waiting[kind] if kind != REST else [], self.limit", "capped"),
    Mutant(LEDGER, "max_in_flight cuts a lease to what fits", selection._Acquiring.__init__, "if rules.max_in_flight is not None:", "if False:", "capped"),
    Mutant(LEDGER, "expiry makes suspect", ledger._expired, "suspect=True", "suspect=r.suspect", "driver_and_worker"),
    Mutant(LEDGER, "what expired may be settled late", ledger._expired, "lease_id=r.lease_id,", "lease_id=None,", "fickle"),
    Mutant(LEDGER, "what expired is due at once", ledger._expired, "to_waiting(r, at, error)", "to_waiting(r, at + 10**10, error)", "capped"),
    Mutant(LEDGER, "no more deliveries than max_delivery_attempts", ledger.exhausted_limit, "r.delivery_count >= attempts",
           "r.delivery_count > attempts", "manual"),
    Mutant(LEDGER, "only the owner settles", settling._Settling._holds, "and r.lease_id == self.command.lease_id", "", "fickle"),
    Mutant(LEDGER, "a late settle counts", settling._Settling._holds, "(LEASED, WAITING)", "(LEASED,)", "fickle"),
    Mutant(LEDGER, "a nack gives up the lease's claim", settling._nacked, "suspect=not by_name)",
           "suspect=not by_name, lease_id=r.lease_id)", "capped"),
    Mutant(LEDGER, "a late release gives up the lease's claim", settling._Settling._after, "r._replace(lease_id=None,",
           "r._replace(lease_id=r.lease_id,", "fickle"),
    Mutant(LEDGER, "a nack of the whole lease makes suspect", settling._nacked, "suspect=not by_name)", "suspect=False)", "raiser"),
    Mutant(LEDGER, "a nack by name does not", settling._nacked, "suspect=not by_name)", "suspect=True)", "flaky_verdicts"),
    Mutant(LEDGER, "nacks back off", settling._nacked, "rules.delay(r.failure_count, command.jitter) if live else 0", "0", "raiser"),
    Mutant(LEDGER, "what is released is not counted", settling._released, "count = r.delivery_count - 1", "count = r.delivery_count", "capped"),
    Mutant(LEDGER, "a release restores no older lease id", settling._released, "back._replace(", "back._replace(lease_id=r.lease_id, ", "capped"),
    Mutant(LEDGER, "what is rejected is dead, not done", settling._Settling._after,
           "exhaust(r, rules, command.reason, command.error, may_block=False)", "r.as_settled()", "rejecter"),
    Mutant(LEDGER, "an extension revives what has expired", settling.extend, "if r.state == WAITING:", "if False:", "fickle"),
    Mutant(LEDGER, "an extension never shortens", settling.extend, "max(expires_at, r.expires_at or 0)", "expires_at", "capped"),
    Mutant(LEDGER, "what is settled already is a no-op", settling._Settling._split_at, "if r.state == SETTLED:", "if False:", "fickle"),
    Mutant(LEDGER, "neighbours that are alike are one range", draft.LedgerEditor._merge, "elif out and out[-1][0].same_state_as(piece):", "elif False:", "flaky_verdicts"),
    Mutant(LEDGER, "what is settled at the start lies below the floor", draft.LedgerEditor._raise_floor, "elif merged and merged[0].state == SETTLED:",
           "elif False:", "crashes"),
    # -- section 6: the source
    Mutant(SOURCE, "a replay never leases anew", stream.StreamSource.plan, "if key in self._offered else self.replay(stream, n)", "", "crashes"),
    Mutant(SOURCE, "nor where nothing is left of its batch", stream.StreamSource.plan, "self.replay(stream, n)",
           "(self.replay if transitions.rows_held_by_batch(self.ledger.current(), f'{stream}/{n}/') else self.lease)(stream, n)", "crashes"),
    Mutant(SOURCE, "a replay takes over what its batch holds", ledger.rows_held_by_batch, "return ledger", "return [] and ledger", "crashes"),
    Mutant(SOURCE, "a replay counts as a delivery", ledger.replay_batch, "r.delivery_count + 1", "r.delivery_count", "crashes"),
    Mutant(SOURCE, "a replay leaves its mark, even if nothing is left", stream.StreamSource.replay, "if got[2] else None",
           "if got[0] else None", "zombie"),
    Mutant(SOURCE, "a lease is refused once the batch was leased or replayed", stream.StreamSource.lease, "highest=2 * n)",
           "highest=2 * n + 2)", "zombie"),
    Mutant(SOURCE, "a batch is replayed once", stream.StreamSource.replay, "granted_before=mark == 2 * n + 2", "granted_before=False", "immortal"),
    Mutant(SOURCE, "no innocent has its last attempt in company", selection._due_rows,
           "sorted([*suspect, *innocent])", "suspect", "releasing"),
    Mutant(SOURCE, "what failed by itself stays in the replay", ledger.replay_batch, " and not _failed_by_itself(r)", "", "refusing"),
    Mutant(SOURCE, "no replay delivers past the limit", ledger.replay_batch, "_is_last(r, rules, 0)", "False", "flaky_verdicts"),
    Mutant(SOURCE, "what a replay gives back is suspect", ledger.return_as_suspect, "suspect=True", "suspect=r.suspect", "killer"),
    Mutant(SOURCE, "what a replay gives back has no lease id", ledger.return_as_suspect, "suspect=True", "suspect=True, lease_id=r.lease_id", "killer"),
    Mutant(SOURCE, "partitions gives the same answer again", stream.StreamSource.plan, "if key not in self._planned:", "if True:", "crashes"),
    Mutant(SOURCE, "a batch is acked only once Spark asks for what follows", auto_ack._committed_leases, "p[1] <= up_to", "p[1] <= up_to + 1", "crashes"),
    Mutant(SOURCE, "a driver acks at its start what its predecessors left", auto_ack._committed_leases,
           "(runner is None or p[2] == runner)", "p[2] == runner", "plain_sink"),
    Mutant(SOURCE, "in ackMode manual nothing is acked unasked", stream.StreamSource._acked, "up_to if self.options.ack_on_commit else 0", "up_to", "manual"),
    Mutant(SOURCE, "nor what a batch has left on purpose", auto_ack._committed_leases, "if n > left", "", "left"),
    Mutant(SOURCE, "one attempt is kept for a replay", stream.StreamSource._request, "reserved_attempts=REPLAY_SPARE", "reserved_attempts=0", "failing_batches"),
    # -- section 7: settling from foreachBatch
    Mutant(SETTLING, "a zombie's query ends before Spark commits its batch", owners.LeaseRouter.check,
           "if holders or mark > self._marks.get(lease_id, 2 * n + 1):", "if False:", "zombie_and_crashes"),
    Mutant(SETTLING, "a sink's transaction is the stream, never a constant", BatchLease.delta_options.fget,
           '"txnAppId": parts[0]', '"txnAppId": "app"', "company"),
    Mutant(SETTLING, "and n, which never repeats", BatchLease.delta_options.fget, "str(parts[1])", '"1"', "crashes"),
    Mutant(SETTLING, "what is settled is the lease minus the failures", foreach.ForEachBatch._run, "result = self._verdicts(returned, lease)",
           "result = []", "returner"),
    Mutant(SETTLING, "what is left on purpose is put down before Spark commits the batch", foreach.ForEachBatch.__call__,
           'if self.policy.ack == "manual":', "if False:", "left"),
    Mutant(SETTLING, "the lease is settled after the handler", foreach.ForEachBatch._run, 'if self.policy.ack == "first":', "if True:", "crashes"),
    Mutant(SETTLING, "a verdict that may differ is settled before the sink is written", actors.flaky, FLAKY, FLAKY_LATE, "flaky_verdicts"),
    Mutant(SETTLING, "an outage is no failure of the messages", foreach.ForEachBatch._run,
           "if (outage := self._outage(failure, lease)) is not None:", "if (outage := None) is not None:", "outages"),
    Mutant(SETTLING, "a batch that met an outage is released before the query ends", foreach.ForEachBatch._run,
           "self._release(lease)", "pass", "outages"),
    # -- section 8: dead letters
    Mutant(LETTERS, "a sweeper finishes the routing ids that it finds", dead_letters.route_dead_letters, "routing.finish_all()", "0", "routing"),
    Mutant(LETTERS, "each routing has a new id", transfer.Transfer.freeze, 'f"{self.prefix}-{uuid.uuid4().hex}"', '"routing-1"', "routing_goes_on"),
    Mutant(LETTERS, "a race for a routing id is refused", transfer.Transfer._publish, "mark=(transfer_id, 1), ", "", "routing"),
    Mutant(LETTERS, "dead letters are published before they are settled", transfer.Transfer.finish, "if frozen and", "if not frozen and", "routing_and_seek"),
    Mutant(LETTERS, "a routing id settles its own alone", routing.settle_routed, '("lease_id", "=", routing_id)', '("first", ">=", 0)', "routing_goes_on"),
    Mutant(LETTERS, "a seek leaves alone what is being routed", moving.seek, "ledger.ranges_at(ledger.find((ROUTING,)))", "[]", "routing_and_seek"),
    Mutant(LETTERS, "a redriver finishes what it finds", redrive.redrive, "Redrive(context).finish_all()", "0", "redriving"),
    Mutant(LETTERS, "a race for a redrive is refused", transfer.Transfer._publish, "mark=(transfer_id, 1), ", "", "redriving"),
    Mutant(LETTERS, "each redrive has an id of its own", transfer.Transfer.freeze, 'f"{self.prefix}-{uuid.uuid4().hex}"', '"redrive-1"', "redriving"),
    # -- section 3: trims
    Mutant(TRIM, "a trim waits for every group", retention.trim, "min(min(floors, default=-1), ", "max(-1, ", "trim_and_seek"),
    Mutant(TRIM, "a trim is a compare-and-swap of the whole table", retention.trim, "whole_table=True", "whole_table=False", "trim_and_new_group"),
    Mutant(TRIM, "so is making a group", group_ledger.GroupLedger.create_if_missing, "whole_table=True", "whole_table=False", "trim_and_new_group"),
    Mutant(TRIM, "so is a seek", group_ledger.GroupLedger.seek, "whole_table=True", "whole_table=False", "trim_and_seek"),
    Mutant(TRIM, "a new group starts above the horizon", group_ledger.GroupLedger.create_if_missing,
           "max(position - 1, self.horizon())", "_position(index, self.start) - 1", "trim_and_new_group"),
    Mutant(TRIM, "a seek ends above the horizon", group_ledger.GroupLedger.seek_position,
           "max(_position(index, target), lowest)", "_position(index, target)", "trim_and_seek"),
    Mutant(TRIM, "a ledger is refused that was made from another log", shared_ledger.SharedLedger.check_same_log,
           "if agreed is not None:", "if False:", "restored"),
    Mutant(TRIM, "a ledger remembers files of its log", log_marks.with_mark, "return ledger.replaced(head, ledger.events)", "return ledger", "restored"),
    Mutant(TRIM, "a recovery forgets what the log lacks", recover.LedgerRepair.compute, "agreed = agreed_up_to(after, index)", "agreed = None", "restored"),
]  # fmt: skip
