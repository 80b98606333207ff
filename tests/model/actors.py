"""Who works on a queue, as programs: each operation is a method, which calls the product and says
what comes next.

A Spark driver does what Spark does around the source's hooks (DESIGN section 6): latestOffset, the
offset log, partitions, the foreachBatch function, the commit log, and so on; and the same again
after a crash, from what its checkpoint says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from support.drivers import StubAlive
from support.handles import Killed
from support.tables import context_of, group_ledger_of

from spark_mq import ConsumerGroup, Queue
from spark_mq.errors import GroupBlocked, LeaseLost, SparkMQError, StreamFenced
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettlePart
from spark_mq.spark import BatchLease, ack, for_each_batch
from spark_mq.streaming.source import BatchPlan, StreamOptions, StreamSource
from spark_mq.util import user
from spark_mq.util.clock import to_micros

from .explorer import EFFECT, FREE, Suspend, Tape
from .storage import SECOND, Rig, Store, stored_key

OFF = "off"
Event = tuple[Any, ...]
Local = tuple[tuple[str, Any], ...]


class Proc(NamedTuple):
    """A process between two steps."""

    pc: str = OFF
    local: Local = ()
    source: tuple[tuple[str, Any], ...] | None = None
    """What a runner of a stream remembers."""
    ids: int = 0
    tape: tuple[Any, ...] = ()

    def at(self, name: str) -> Any:
        return dict(self.local).get(name)


class Context:
    """The steps of an operation that do not call the product."""

    def __init__(self, rig: Rig, tape: Tape, proc: Proc, store: Store) -> None:
        self.rig, self.tape, self.store = rig, tape, store
        self.local: dict[str, Any] = dict(proc.local)
        self.source: Any = proc.source
        self.events: list[Event] = []
        self.queue: Queue = rig.queue()
        committer = context_of(self.queue).committer
        self._run_commands, committer.run = committer.run, self._run_watched

    def group(self, name: str = "g") -> ConsumerGroup:
        return self.queue.group(name)

    def _run_watched(self, unit: Any) -> list[Any]:
        """Run commands. Note each with its result, and whether it has changed the ledger."""
        ledgers = [self.rig.leases.ledgers.get(name) for name, _ in unit.commands]
        results = self._run_commands(unit)
        for (name, command), before, result in zip(unit.commands, ledgers, results, strict=True):
            if not isinstance(result, Exception):
                after = self.rig.leases.ledgers.get(name)
                self.emit("ran", name, command, result, after is not before)
        return results

    def emit(self, *event: Any) -> None:
        self.tape.call(FREE, lambda: self.events.append(event))

    def effect(self, *event: Any) -> None:
        """Something that others can see, or a place where a process may die."""
        self.tape.call(EFFECT, lambda: self.events.append(event) if event else None)

    def choose(self, options: int) -> int:
        return self.tape.choose(options)

    def now(self) -> int:
        return to_micros(self.rig.clock())


class Program:
    """A process's operations, by the name of its place (``pc``)."""

    tails: tuple[str, ...] = ("ask", "plan", "lease")
    """Operations that only read after their effect, so that nothing is seen of them in between."""

    unseen: tuple[str, ...] = (OFF,)
    """Places from which the next step touches nothing that others see: memory, or a checkpoint of
    the process's own.
    """

    def __init__(self, name: str, who: int) -> None:
        self.name, self.who = name, who

    def start(self, proc: Proc, store: Store) -> Proc | None:
        """The process as it begins (again), or None where it does not."""
        raise NotImplementedError

    def run(self, ctx: Context, pc: str) -> str:
        known, user._process_id = user._process_id, lambda _: self.name  # a patch takes longer
        try:
            return str(getattr(self, pc)(ctx))
        except Killed:
            return OFF
        finally:
            user._process_id = known

    def key(self, proc: Proc, store: Store) -> Hashable:
        now = store.now

        def reported(value: Any) -> Hashable:
            if isinstance(value, BatchPlan):
                return (
                    value.lease_id,
                    max(0, value.expires_at - now),
                    tuple((s.first, s.rows, r.delivery_count) for s, r in value.slices),
                )
            if isinstance(value, tuple):
                return tuple(reported(one) for one in value)
            return stored_key(value, store)

        tape = tuple((kind, reported(value), type(error)) for kind, value, error in proc.tape)
        source = reported(proc.source) if proc.source else None
        return proc.pc, reported(proc.local), source, proc.ids, tape


KEPT = ("_offered", "_planned", "_alive", "_bound", "_checked", "_first")
"""What a runner remembers from hook to hook."""


def saved(source: StreamSource) -> tuple[tuple[str, Any], ...]:
    # _last_view, _news and _checks only spare a stream waits for a store, and a world has none.
    # _began only spares a second warning, as _isolates does. available_count is for several queues.
    known = {
        *KEPT,
        "available_count",
        "ledger",
        "options",
        "runner",
        "_keep_alive",
        "_last_view",
        "_news",
        "_began",
        "_checks",
        "_isolates",
        "_wait_until",
    }
    assert set(vars(source)) == known, (
        f"StreamSource has {set(vars(source)) ^ known}: worlds must know what a runner remembers"
    )
    plain: dict[str, Any] = {name: getattr(source, name) for name in KEPT}
    plain["_planned"] = tuple(plain["_planned"].items())
    alive = plain["_alive"]
    plain["_alive"] = None if alive is None else (alive.lease_id, alive.timeout, alive.limit)
    return (("runner", source.runner), *plain.items())


def restored(
    group: ConsumerGroup, options: StreamOptions, kept: tuple[tuple[str, Any], ...]
) -> StreamSource:
    plain = dict(kept)
    source = StreamSource(
        group_ledger_of(group), options, keep_alive=StubAlive, runner=plain["runner"]
    )
    source._offered, source._planned = plain["_offered"], dict(plain["_planned"])
    source._alive = None if plain["_alive"] is None else StubAlive(*plain["_alive"])
    for name in ("_bound", "_checked", "_first"):
        setattr(source, name, plain[name])
    return source


# -- what stands for a DataFrame


@dataclass
class Frame:
    """Rows of a batch: sequences under one lease, with what is to become of them.

    Its session shows no plan, as over Spark Connect, so that its lease is looked up in the rows.
    """

    lease_id: str
    sequences: list[int]
    outcome: str | None = None
    columns: tuple[str, ...] = ("lease_id", "sequence")
    sparkSession: None = None

    def withColumn(self, *_: object) -> Frame:
        raise NotImplementedError

    def select(self, *_: str) -> Frame:
        return self

    where = distinct = select

    def collect(self) -> list[tuple[str]]:
        return [(self.lease_id,)] if self.sequences else []


@dataclass
class RowVerdict:
    """The columns of a row that settles it."""

    lease_id: str
    first: int
    last: int
    outcome: str | None
    delay: int | None = None
    error: str | None = None


def frame_verdicts(
    df: Frame, lease_id: str | None = None, *, reads: Sequence[str] = ()
) -> list[RowVerdict]:
    """In the place of ``spark_mq.spark.settle_rows.verdicts_of``, which asks Spark the same of a
    DataFrame.
    """
    return [RowVerdict(df.lease_id, s, s, df.outcome) for s in df.sequences]


class OwnLease:
    """What a foreachBatch function of the user's own knows of its batch, and does with it."""

    def __init__(self, lease_id: str, group: ConsumerGroup) -> None:
        stream, number, _ = lease_id.split("/")
        self.delta_options = {"txnAppId": stream, "txnVersion": number}
        self.ack = partial(ack, group=group)


# -- handlers: what a process does with a batch. Sequences in, DataFrame of failures or nothing out


Handler = Callable[["Context", Frame, Any], "Frame | None"]


def write(ctx: Context, batch: Frame, lease: BatchLease, rows: Sequence[int]) -> None:
    """Appends to a Delta sink, with the options that make it happen once for a batch."""
    options = lease.delta_options
    ctx.effect("sink", (options["txnAppId"], int(options["txnVersion"])), tuple(rows))


def good(ctx: Context, batch: Frame, lease: BatchLease) -> None:
    write(ctx, batch, lease, batch.sequences)


def flaky(ctx: Context, batch: Frame, lease: BatchLease, late: bool = False) -> None:
    """Asks an API that sometimes has no answer for a message: nacked by name, before the sink is
    written, or wrongly after it.
    """
    bad = ctx.choose(len(batch.sequences) + 1)
    failed = batch.sequences[bad - 1 : bad] if bad else []
    if failed and not late:
        lease.nack(Frame(batch.lease_id, failed))
    write(ctx, batch, lease, [s for s in batch.sequences if s not in failed])
    if failed and late:
        lease.nack(Frame(batch.lease_id, failed))


def refuses(ctx: Context, batch: Frame, lease: BatchLease) -> None:
    """Nacks all by name, now and then, before it has written anything."""
    if ctx.choose(2):
        lease.nack(Frame(batch.lease_id, batch.sequences))
        return
    write(ctx, batch, lease, batch.sequences)


def failing(ctx: Context, batch: Frame, lease: BatchLease) -> None:
    """Fails as a whole, now and then: before it has written anything."""
    if ctx.choose(2):
        raise ValueError("the sink is down")
    write(ctx, batch, lease, batch.sequences)


def releases(ctx: Context, batch: Frame, lease: BatchLease) -> None:
    """In the first batch of a run, which may be a replay, gives the lease back, now and then,
    before it has written anything.
    """
    if ctx.local["fresh"] and ctx.choose(2):
        ctx.group().release(batch.lease_id)
        return
    write(ctx, batch, lease, batch.sequences)


OUTAGES: Final = 12
"""Batches that meet an outage: more than all messages have attempts."""


def unreachable(ctx: Context, batch: Frame, lease: BatchLease) -> None:
    """Cannot read its messages, in the first batches of a stream."""
    if ctx.local["i"] < OUTAGES:
        path = group_ledger_of(ctx.group()).queue_path
        raise RuntimeError(f"a task: spark_mq.errors.StorageError: reading messages of {path}")
    write(ctx, batch, lease, batch.sequences)


class Poison:
    """A handler that cannot do with one message.

    It makes the handler ``kill`` its driver, or ``raise``; or it is rejected, returned as failed,
    or left alone where the handler acks the others itself.
    """

    def __init__(self, number: int, how: str) -> None:
        self.number, self.how = number, how
        self.sequence = -1
        """Set by the world, which knows what was published."""

    def __call__(self, ctx: Context, batch: Frame, lease: BatchLease) -> Frame | None:
        hit = self.sequence in batch.sequences
        rest = [s for s in batch.sequences if s != self.sequence]
        if hit and self.how == "kill":
            raise Killed
        if hit and self.how == "raise":
            raise ValueError("poison")
        if hit and self.how == "reject":
            lease.reject(Frame(batch.lease_id, [self.sequence]))
        write(
            ctx,
            batch,
            lease,
            rest if self.how in ("reject", "return", "leave") else batch.sequences,
        )
        if rest and self.how == "leave":
            lease.ack(Frame(batch.lease_id, rest))
        return Frame(batch.lease_id, [self.sequence]) if hit and self.how == "return" else None


# -- a driver


class Checkpoint(NamedTuple):
    """What Spark has written down of a query: the end of each batch, and how many of them were
    committed.
    """

    ends: tuple[tuple[str, int], ...] = ()
    committed: int = 0


class Driver(Program):
    """One run after the other of a streaming query on a checkpoint.

    Without a ``handler`` it is a sink of Spark's own, without foreachBatch.
    """

    unseen = (OFF, "log", "commit")

    def __init__(
        self,
        name: str,
        who: int,
        checkpoint: int,
        handler: Handler | None = good,
        *,
        on_error: str = "nack",
        late: bool = False,
        extends: bool = False,
        ack: str | None = "on_success",
        **options: Any,
    ) -> None:
        super().__init__(name, who)
        self.checkpoint, self.handler = checkpoint, handler
        self.policy = None if ack is None else {"on_error": on_error, "ack": ack}
        """It is None if the handler is the user's own foreachBatch function, which settles."""
        self.options = StreamOptions(**options)
        self.extends, self.late = extends, late
        """Whether it only starts beside another driver on its checkpoint."""

    def start(self, proc: Proc, store: Store) -> Proc:
        log: Checkpoint = store.checkpoints[self.checkpoint]
        runner = f"{self.who:x}{proc.ids + 1:x}"
        source = (("runner", runner), ("_offered", None), ("_planned", ()), ("_alive", None),
                  ("_bound", None), ("_checked", False),
                  ("_first", True))  # fmt: skip
        replay = len(log.ends) > log.committed
        number = len(log.ends) - replay
        local = {
            "i": number,
            "start": log.ends[number - 1] if number else None,
            "end": log.ends[-1] if replay else None,
            "fresh": True,
        }
        return Proc("plan" if replay else "ask", sorted_items(local), source, proc.ids + 1)

    def _source(self, ctx: Context) -> StreamSource:
        return restored(ctx.group(), self.options, ctx.source)

    def ask(self, ctx: Context) -> str:
        source = self._source(ctx)
        start = ctx.local["start"]
        if start is None:
            source.initial()
        offset = source.initial() if start is None else {"stream": start[0], "batch": start[1]}
        end = source.latest(offset)
        ctx.source = saved(source)
        if end == offset and start is not None:
            return "ask"
        ctx.local["end"] = end["stream"], end["batch"]
        return "log"

    def log(self, ctx: Context) -> str:
        ends = self._log(ctx)
        if len(ends.ends) != ctx.local["i"]:
            return OFF  # "concurrent update to the log": another driver has written this batch
        self._write(ctx, ends._replace(ends=(*ends.ends, ctx.local["end"])))
        return "plan"

    def plan(self, ctx: Context) -> str:
        source = self._source(ctx)
        (stream, n), start = ctx.local["end"], ctx.local["start"]
        of, number = (stream, 0) if start is None else start
        begin = {"stream": of, "batch": number}
        try:
            plan = source.plan(begin, {"stream": stream, "batch": n})
        except StreamFenced:
            return OFF
        again = source.plan(begin, {"stream": stream, "batch": n})
        assert again == plan, "partitions gave two answers for one batch"
        ctx.source = saved(source)
        handed = tuple(
            (s, r.delivery_count)
            for piece, r in plan.slices
            for s in range(piece.first, piece.first + piece.rows)
        )
        ctx.local["rows"], ctx.local["lease"] = tuple(s for s, _ in handed), plan.lease_id
        if self.extends:
            ctx.local["planned"] = ctx.now()
        if handed:
            ctx.emit("hand", plan.lease_id, handed, plan.expires_at)
        return "handle" if handed or self.handler is None else "commit"

    def handle(self, ctx: Context) -> str:
        rows, lease_id = list(ctx.local["rows"]), ctx.local["lease"]
        if self.handler is None:
            ctx.effect("sink", (ctx.local["end"][0], ctx.local["i"] + 1), tuple(rows))
            return "commit"
        handler = self.handler

        def process(batch: Any, lease: Any) -> Any:
            ctx.effect()  # a driver may stand still before its handler has done anything
            return handler(ctx, batch, lease)

        batch = Frame(lease_id, rows)
        try:
            if self.policy is None:
                process(batch, OwnLease(lease_id, ctx.group()))
            else:
                function: Any = for_each_batch(ctx.group(), process, **self.policy)
                if not ctx.local["fresh"]:  # this run has had a batch of its stream
                    stream, _, runner = lease_id.split("/")
                    function._finder._runners[stream] = runner
                function(batch, ctx.local["i"])
        except (Suspend, Killed):
            raise
        except SparkMQError:
            return OFF  # the query ends
        ctx.local["fresh"] = False
        return "commit"

    def commit(self, ctx: Context) -> str:
        log = self._log(ctx)
        if log.committed > ctx.local["i"]:
            return OFF
        self._write(ctx, log._replace(committed=ctx.local["i"] + 1))
        ctx.local |= {"start": ctx.local["end"], "i": ctx.local["i"] + 1, "end": None}
        for name in ("rows", "lease"):
            ctx.local.pop(name, None)
        return "ask"

    def extend(self, ctx: Context) -> None:
        """What the background extension does, while the batch runs: see KeepAlive."""
        lease_id, timeout, _ = dict(ctx.source)["_alive"]
        extend(ctx, lease_id, timeout / SECOND)

    def may_extend(self, proc: Proc, store: Store) -> bool:
        """Whether the background extension is at work, and would change anything."""
        alive = dict(proc.source or ()).get("_alive")
        if not self.extends or alive is None or proc.pc not in ("handle", "commit", "ask"):
            return False
        return proc.at("planned") < store.now < proc.at("planned") + alive[2]

    def _log(self, ctx: Context) -> Checkpoint:
        log: Checkpoint = ctx.store.checkpoints[self.checkpoint]
        return log

    def _write(self, ctx: Context, log: Checkpoint) -> None:
        every = list(ctx.store.checkpoints)
        every[self.checkpoint] = log
        ctx.store = ctx.store._replace(checkpoints=tuple(every))


def sorted_items(given: dict[str, Any]) -> Local:
    return tuple(sorted(given.items(), key=lambda item: item[0]))


def extend(ctx: Context, lease_id: str, seconds: float, *row: int) -> None:
    """Extend a lease, or one of its messages."""
    with contextlib.suppress(LeaseLost):
        ctx.group().extend(lease_id, seconds, list(row) or None)


# -- workers without Spark


class Worker(Program):
    """Leases, writes to a sink that knows nothing of versions, acks."""

    def __init__(self, name: str, who: int, *, most: int = 2) -> None:
        super().__init__(name, who)
        self.most = most

    def start(self, proc: Proc, store: Store) -> Proc | None:
        return proc._replace(pc="lease", local=())

    def lease(self, ctx: Context) -> str:
        if not self.take(ctx):
            return "lease"
        return "work"

    def take(self, ctx: Context) -> bool:
        lease = None
        with contextlib.suppress(GroupBlocked):
            lease = ctx.group().lease(self.name, max_messages=self.most)
        if lease is None:
            return False
        handed = tuple(
            (s, r.delivery_count)
            for r in lease._ranges
            for s in ctx.store.log.messages
            if r.first <= s <= r.last
        )
        ctx.emit("hand", lease.lease_id, handed, to_micros(lease.expires_at))
        ctx.local["lease"], ctx.local["rows"] = lease.lease_id, tuple(s for s, _ in handed)
        return True

    def work(self, ctx: Context) -> str:
        self.done(ctx)
        return "lease"

    def done(self, ctx: Context) -> None:
        ctx.effect("sink", ("worker", ctx.local["lease"]), ctx.local["rows"])
        self.settle(ctx, ACK)

    def settle(self, ctx: Context, verb: str, *rows: int, delay: int | None = None) -> None:
        """Of some messages by name, or of the whole lease, as :class:`~spark_mq.lease.Lease` does
        it.
        """
        intervals = [(s, s) for s in rows or ctx.local["rows"]]
        group_ledger_of(ctx.group()).settle(
            [SettlePart(verb, ctx.local["lease"], intervals, whole=not rows, delay=delay)]
        )


ANY_MOVE: Final = (NACK, "nack one", RELEASE, "extend", "leave", "ack one")
SNOOZE: Final = 100 * SECOND
"""Longer than a lease lasts."""


class Fickle(Worker):
    """Does with its lease what a worker may do, in any order, also twice and too late.

    ``moves`` of that, then it does its work.
    """

    def __init__(
        self, name: str, who: int, *, most: int = 2, moves: int = 2, verbs: Sequence[str] = ()
    ) -> None:
        super().__init__(name, who, most=most)
        self.moves = moves
        self.verbs = tuple(verbs) or (*ANY_MOVE, REJECT)

    def start(self, proc: Proc, store: Store) -> Proc | None:
        return proc._replace(pc="lease", local=(("moves", self.moves),))

    def work(self, ctx: Context) -> str:
        moves = ctx.local["moves"]
        choice = ctx.choose(1 + (len(self.verbs) if moves else 0))
        if choice == 0:
            self.done(ctx)
            return "lease"
        verb, _, one = self.verbs[choice - 1].partition(" ")
        rows = ctx.local["rows"][:1] if one else ()
        ctx.local["moves"] = moves - 1
        if verb == "leave":
            return "lease"
        if verb == "extend":  # the whole for less than it may have left: that must not shorten it
            extend(ctx, ctx.local["lease"], 90 if one else 10, *rows)
        elif verb == "snooze":
            self.settle(ctx, RELEASE, *rows, delay=SNOOZE)
        else:
            if verb == ACK:
                ctx.effect("sink", ("worker", ctx.local["lease"]), rows)
            self.settle(ctx, verb, *rows)
        return "work"
