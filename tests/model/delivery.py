"""The world in which messages are delivered: drivers and workers on one group, with crashes,
zombies and expiry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from spark_mq import Message
from spark_mq.errors import TablesDisagree
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, LEASED, SETTLED, TRANSFERRING
from spark_mq.ledger.slots import SlotLayout

from .actors import (
    OFF,
    Checkpoint,
    Context,
    Driver,
    Event,
    Poison,
    Proc,
    Program,
    sorted_items,
)  # fmt: skip
from .explorer import EFFECT, State, Suspend, Tape, Untaped, Violation
from .invariants import Batch, Notes, Onlooker
from .reference import ReferenceGroup, ReferenceMessage
from .storage import IDS, SECOND, Book, Rig, Store, log_key

LANES = 4
"""Of a queue whose messages have keys."""

SettleOutcome = tuple[str, Proc, Store, tuple[Event, ...]]


class Bounds(NamedTuple):
    """How often what may happen, at most."""

    crashes: int = 1
    takeovers: int = 0
    """A driver is taken for dead, and another started on its checkpoint.

    It goes on when it likes.
    """
    ticks: int = 0
    """Time passes while somebody works."""


class Delivery:
    """``programs`` over ``messages`` (so many in each commit).

    ``tick``: microseconds that pass at a time.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        bounds: Bounds,
        *,
        messages: Sequence[int] = (3,),
        attempts: int | None = 3,
        tick: int = 61 * SECOND,
        fine: bool = False,
        must_live: Sequence[int] = (),
        cap: int | None = None,
        skew: int = 0,
        setup: Sequence[Program] = (),
        retention: str = "7d",
        most: int | None = None,
        keys: str = "",
        **settings: Any,
    ) -> None:
        given: Mapping[str, Any] = {
            "visibility_timeout": "60s", "clock_skew": skew / SECOND,
            "max_delivery_attempts": attempts, "retry_delay": "10s",
            "max_in_flight": cap, "breaker_threshold": None, **settings,
        }  # fmt: skip
        self.programs, self.bounds, self.skew = tuple(programs), bounds, skew
        self.tick, self.attempts = tick, attempts
        self.rig = Rig(given, fine=fine, retention=retention, lanes=LANES if keys else 0)
        self.setup = tuple(setup)
        """Who works, one after the other and until nothing is left, before anything else
        happens.
        """
        if keys:  # one commit, in the order of lanes
            assert sorted(keys, key=SlotLayout(LANES).lane) == list(keys)
            self.log = self.rig.publish([Message(key, key=key) for key in keys])
        else:
            self.log = self.rig.publish(*([f"m{n}" for n in range(count)] for count in messages))
        self.messages = self.log.messages
        self.most = most
        """More states than it can have, if all is well."""
        self.must_live = tuple(must_live)
        """Messages (by number) that must end acked, also if others die."""
        lane = SlotLayout(LANES).lane
        reference = ReferenceGroup.of(
            self.rig.settings.group,
            by_lane=bool(keys),
            messages=[
                ReferenceMessage(m, key=key, lane=key and lane(key))
                for m, key in zip(self.messages, keys or [None] * len(self.messages), strict=True)
            ],
        )
        onlooker = Blind if isinstance(self, Trimmed | Redriven) else Onlooker
        self.onlooker = onlooker(reference, alone=len(programs) == 1)
        for program in programs:
            if isinstance(program, Driver) and isinstance(program.handler, Poison):
                program.handler.sequence = self.messages[program.handler.number]
        self._extend = lru_cache(maxsize=400_000)(self._extend_now)
        self._sweep = lru_cache(maxsize=400_000)(self._sweep_now)
        self._run = lru_cache(maxsize=400_000)(self._run_now)

    def begin(self) -> State:
        count = 1 + max((p.checkpoint for p in self.programs if isinstance(p, Driver)), default=-1)
        store = Store(now=self.rig.clock.now, log=self.log, checkpoints=(Checkpoint(),) * count)
        notes, programs, fine = self.onlooker.begin, self.programs, self.rig.fine
        self.rig.fine = False
        for program in self.setup:
            self.programs = (program,)
            state = State(store, (program.start(Proc(), store),), notes, tuple(Bounds(0, 0, 0)))
            while True:
                label, *step = self._run_now(0, state.procs[0], state.store)[0]
                ended = step[0].pc in (OFF, "ended")
                if ended or (step[0], step[1]) == (state.procs[0], state.store):
                    break
                state = self._after(state, 0, state.procs[0], *step, label)
            store, notes = state.store, state.notes
        self.programs, self.rig.fine = programs, fine
        return State(store, (Proc(),) * len(self.programs), notes, tuple(self.bounds))

    def key(self, state: State) -> Hashable:
        """Equal for states with the same future."""
        store: Store = state.store
        books = tuple((group, book.key(store.now)) for group, book in store.books)
        procs = tuple(
            program.key(proc, store)
            for program, proc in zip(self.programs, state.procs, strict=True)
        )
        marks = tuple((app, number) for app, (number, _) in store.marks)
        dead_books = tuple((group, book.key(store.now)) for group, book in store.dead_books)
        logs = log_key(store.log), log_key(store.dead)
        durable = books, marks, store.checkpoints, logs, dead_books
        return durable, procs, self.onlooker.key(state.notes, store), state.budget

    # -- what may happen

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What processes may do. Raises Violation."""
        first = self._unseen(state)
        for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
            if first not in (None, at):
                continue
            if proc.pc == OFF:
                begun = program.start(proc, state.store) if self._may_start(state, at) else None
                if begun is not None:
                    yield f"start:{program.name}", self._with(state, at, begun)
                continue
            if proc.pc == "ended":
                continue
            for label, after, store, events in self._run(at, proc, state.store):
                yield label, self._after(state, at, proc, after, store, events, label)
            if isinstance(program, Driver) and program.may_extend(proc, state.store):
                label = f"{program.name} extends"
                step = self._extend(at, proc, state.store)
                yield label, self._after(state, at, proc, proc, *step, label)

    def faults(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen to them, as far as the budget goes."""
        bounds, first = Bounds(*state.budget), self._unseen(state)
        if bounds.crashes:
            budget = tuple(bounds._replace(crashes=bounds.crashes - 1))
            for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
                if proc.pc not in (OFF, "ended") and first in (None, at):
                    yield f"crash:{program.name}", self._crashed(state, at)._replace(budget=budget)
        if bounds.takeovers:
            budget = tuple(bounds._replace(takeovers=bounds.takeovers - 1))
            for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
                if (
                    proc.pc == OFF
                    and isinstance(program, Driver)
                    and (other := self._other(state, at)) is not None
                ):
                    notes = self.onlooker.crash(state.notes, self._batch(state, other))
                    begun = program.start(proc, state.store)
                    yield (
                        f"takeover:{program.name}",
                        self._with(state, at, begun)._replace(budget=budget, notes=notes),
                    )
        if bounds.ticks and first is None:
            budget = tuple(bounds._replace(ticks=bounds.ticks - 1))
            store = state.store._replace(now=state.store.now + self.tick)
            yield f"tick:{self.tick // SECOND}s", state._replace(store=store, budget=budget)

        # Where processes are seen in the middle of looking, there is no telling that none has
        # anything to do: time may pass once one died.
        if (
            self.rig.fine
            and bounds.crashes < self.bounds.crashes
            and (passed := self.pass_time(state)) is not None
        ):
            yield passed

    def _unseen(self, state: State) -> int | None:
        """A process whose next step is nobody else's business: to look at one order of it and
        theirs is enough.
        """
        if self.bounds.takeovers:
            return None  # two drivers meet in a checkpoint
        for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
            if (
                proc.pc in program.unseen
                and not proc.tape
                and (proc.pc != OFF or program.start(proc, state.store) is not None)
            ):
                return at
        return None

    def pass_time(self, state: State) -> tuple[str, State] | None:
        """The next moment at which something changes by itself, for when no process can do
        anything.
        """
        swept, events = self._sweep(state.store)
        if swept != state.store:
            notes = self._noted(state, swept, events, "sweep")
            return "sweep", state._replace(store=swept, notes=notes)
        now = state.store.now
        rows = [r for _, book in state.store.books for r in book.rows]
        waits = [
            r.expires_at + self.skew + 1
            for r in rows
            if r.state == LEASED and r.expires_at is not None
        ]
        waits += [
            r.available_at for r in rows if r.state == AVAILABLE and r.available_at is not None
        ]
        heads = [book.head for _, book in state.store.books]
        waits += [head.breaker.next_trial_at for head in heads if head.breaker.next_trial_at]
        later = [at for at in waits if at > now]
        if not later:
            return None
        store = state.store._replace(now=min(later))
        return f"pass:{(min(later) - now) / SECOND:g}s", state._replace(store=store)

    def finished(self, state: State) -> bool:
        states = [row.state for row in state.store.view("g", self.messages)]
        ended = {SETTLED, DEAD, BLOCKED, TRANSFERRING}
        if self.attempts is not None and not ended.issuperset(states):
            return False
        return all(states[at] == SETTLED for at in self.must_live)

    def check(self, store: Store) -> None:
        """What else must hold of what is durable. Raises AssertionError."""

    def over(self, state: State) -> bool:
        """Whether nothing that matters can still happen to a finished world."""
        return self.attempts is None and bool(self.must_live)  # a poison is tried for ever

    # -- one step of a process

    def _after(
        self, state: State, at: int, proc: Proc, after: Proc, store: Store,
        events: tuple[Event, ...], label: str,
    ) -> State:  # fmt: skip
        notes = self._noted(state, store, events, label)
        moved = self._with(state, at, after)._replace(store=store, notes=notes)
        if after.pc == OFF and self._other(state, at) is None:  # a query fails, as by a crash
            moved = moved._replace(notes=self.onlooker.crash(moved.notes, self._batch(state, at)))
        return moved

    def _noted(self, state: State, store: Store, events: tuple[Event, ...], label: str) -> Notes:
        try:
            if store is not state.store:
                self.check(store)
            return self.onlooker.note(state.notes, state.store, store, events)
        except AssertionError as wrong:
            raise Violation(str(wrong), [label]) from wrong

    def _run_now(self, at: int, proc: Proc, store: Store) -> list[SettleOutcome]:
        """All ways in which a process's next step may go."""
        program = self.programs[at]
        outcomes: list[SettleOutcome] = []
        todo: list[tuple[int, ...]] = [()]
        while todo:
            picks = todo.pop()
            tape = Tape(proc.tape, self.rig.fine, picks, proc.pc in program.tails)
            self.rig.load(store, tape)
            IDS.start(program.who, proc.ids)
            ctx = Context(self.rig, tape, proc, store)
            try:
                pc = program.run(ctx, proc.pc)
                after = Proc(pc, sorted_items(ctx.local), ctx.source, IDS.drawn)
            except Suspend:
                pc, after = proc.pc, proc._replace(tape=tape.kept)
            except AssertionError as wrong:
                raise Violation(str(wrong), [f"{program.name} {proc.pc}"]) from wrong
            except Exception as error:
                raise Violation(
                    f"{type(error).__name__}: {error}", [f"{program.name} {proc.pc}"]
                ) from error
            if pc == OFF:
                after = Proc(ids=after.ids)
            saved = self.rig.save(ctx.store)
            done = any(kind == EFFECT and error is None for kind, _, error in tape.answers)
            same = (after.local, after.source) == (proc.local, proc.source)
            if pc == proc.pc and not done and same:
                after = after._replace(ids=proc.ids)  # it has only looked
            choice = f" (choice {','.join(map(str, picks))})" if picks else ""
            label = f"{program.name} {proc.pc}{choice}"
            outcomes.append((label, after, saved, tuple(ctx.events)))
            todo += [
                (*picks, *(0,) * n, option)
                for n, options in enumerate(tape.open)
                for option in range(1, options)
            ]
        return outcomes

    def _extend_now(self, at: int, proc: Proc, store: Store) -> tuple[Store, tuple[Event, ...]]:
        """What extends a driver's lease in the background, once."""
        program, tape = self.programs[at], Untaped()
        assert isinstance(program, Driver)
        self.rig.load(store, tape)
        ctx = Context(self.rig, tape, proc, store)
        program.extend(ctx)
        return self.rig.save(store), tuple(ctx.events)

    def _sweep_now(self, store: Store) -> tuple[Store, tuple[Event, ...]]:
        tape = Untaped()
        self.rig.load(store, tape)
        ctx = Context(self.rig, tape, Proc(), store)
        for name in ctx.queue.groups():
            ctx.group(name).expire()
        return self.rig.save(store), tuple(ctx.events)

    @staticmethod
    def _with(state: State, at: int, proc: Proc) -> State:
        return state._replace(procs=(*state.procs[:at], proc, *state.procs[at + 1 :]))

    def _crashed(self, state: State, at: int) -> State:
        notes = self.onlooker.crash(state.notes, self._batch(state, at))
        proc: Proc = state.procs[at]
        ids = proc.ids + (10 if proc.tape else 0)  # past what a half-done operation may have drawn
        return self._with(state, at, Proc(ids=ids))._replace(notes=notes)

    def _batch(self, state: State, at: int) -> Batch | None:
        """The batch that a process has in hand."""
        proc: Proc = state.procs[at]
        if not isinstance(self.programs[at], Driver):
            return ("worker", proc.at("lease")) if proc.at("lease") else None
        return proc.at("start" if proc.pc in ("ask", "log") else "end")

    def _other(self, state: State, at: int) -> int | None:
        """A driver at work on the same checkpoint."""
        mine = self.programs[at]
        if not isinstance(mine, Driver):
            return None
        for n, program in enumerate(self.programs):
            same = isinstance(program, Driver) and program.checkpoint == mine.checkpoint
            if n != at and same and state.procs[n].pc != OFF:
                return n
        return None

    def _may_start(self, state: State, at: int) -> bool:
        """A driver is started again when none is at work on its checkpoint.

        Of two that could be, the first.
        """
        program = self.programs[at]
        return not isinstance(program, Driver) or (
            not program.late and self._other(state, at) is None
        )

    def report(self, state: State) -> str:
        lines = [f"    {r}" for _, book in state.store.books for r in book.rows]
        return "\n".join(
            [f"  from: now={state.store.now} {state.procs}", f"    notes {state.notes}", *lines]
        )


class Blind(Onlooker):
    """Sees nothing."""

    def note(self, notes: Notes, before: Store, after: Store, events: Sequence[Event]) -> Notes:
        return notes


class Trimmed(Delivery):
    """Several groups, and files that are dropped: nobody may lose what has not been settled.

    No onlooker follows the messages.
    """

    def __init__(self, programs: Sequence[Program], bounds: Bounds, **given: Any) -> None:
        super().__init__(programs, bounds, fine=True, retention="0s", **given)

    def check(self, store: Store) -> None:
        gone = {
            m
            for f in store.log.files
            if f.path not in store.log.active
            for m in range(f.first, f.first + f.rows)
        }
        for group, book in store.books:
            if group.startswith("_"):
                continue
            for m, row in zip(self.messages, book.view(self.messages), strict=True):
                settled = m not in gone or row.state == SETTLED
                assert settled, f"message {m:x} is dropped, and group {group} needs it: {row}"

    def finished(self, state: State) -> bool:
        books = {group: book for group, book in state.store.books if not group.startswith("_")}
        settled = all(
            row.state == SETTLED for book in books.values() for row in book.view(self.messages)
        )
        return bool(books) and settled


class Restored(Trimmed):
    """The log went back and grew again: what was published since is delivered, also where the
    number of a lost message is used again.
    """

    def check(self, store: Store) -> None:
        """The ledger and the log disagree until the recovery is over."""

    def _sweep_now(self, store: Store) -> tuple[Store, tuple[Event, ...]]:
        try:
            return super()._sweep_now(store)
        except TablesDisagree:
            return store, ()

    def finished(self, state: State) -> bool:
        book = state.store.book("g")
        published = len(self.messages) + 2  # the two that came after the restore
        return book is not None and book.head.counters.get("acked", 0) >= published


class Routed(Delivery):
    """It is not enough that a message is dead: it is to be in the dead-letter queue."""

    def finished(self, state: State) -> bool:
        return all(row.state == SETTLED for row in state.store.view("g", self.messages))


class Redriven(Delivery):
    """Dead letters go back into their queue, each once."""

    def check(self, store: Store) -> None:
        again = [m for m in store.log.messages if m not in self.messages]
        letters = len(self.messages)
        assert len(again) <= letters, f"{letters} letters have become {len(again)} messages"
        settled = sum(self._settled(book, m) for book, m in self._letters(store))
        assert settled <= len(again), f"{settled} letters are redriven, {len(again)} published"

    @staticmethod
    def _letters(store: Store) -> list[tuple[Book, int]]:
        """Each letter with each ledger of their queue."""
        return [(book, m) for _, book in store.dead_books for m in store.dead.messages]

    @staticmethod
    def _settled(book: Book, m: int) -> bool:
        return book.view((m,))[0].state == SETTLED

    def finished(self, state: State) -> bool:
        again = len(state.store.log.messages) == 2 * len(self.messages)
        return again and all(self._settled(book, m) for book, m in self._letters(state.store))
