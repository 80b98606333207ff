"""The world in which messages are delivered: drivers and workers on one group, with crashes, zombies and expiry."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .kernel import State, Suspend, Tape, Violation, World
from .onlooker import Batch, Notes, Onlooker
from .processes import IDS, OFF, Checkpoint, Context, Driver, Event, Poison, Proc, Program
from .storage import BLOCKED, DEAD, LEASED, ROUTING, SECOND, SETTLED, WAITING, Rig, Store, log_key

Outcome = tuple[str, Proc, Store, tuple[Event, ...]]


class Bounds(NamedTuple):
    """How often what may happen, at most."""

    crashes: int = 1
    takeovers: int = 0
    """A driver is taken for dead, and another started on its checkpoint; it goes on when it likes."""
    ticks: int = 0
    """Time passes while somebody works."""


class Delivery(World):
    """``programs`` over ``messages`` (so many in each commit). ``tick``: microseconds that pass at a time."""

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
        **settings: Any,
    ) -> None:
        given: Mapping[str, Any] = {"visibility_timeout": "60s", "clock_skew": 0, "max_delivery_attempts": attempts, "retry_delay": "10s",
                                    "max_in_flight": cap, **settings}  # fmt: skip
        self.programs, self.bounds, self.tick, self.attempts = tuple(programs), bounds, tick, attempts
        self.rig = Rig(given, fine=fine)
        self.log = self.rig.publish(*([f"m{n}" for n in range(count)] for count in messages))
        self.messages = self.log.messages
        self.must_live = tuple(must_live)
        """Messages (by number) that must end acked, whatever happens to the others; others may be dead."""
        self.onlooker = Onlooker(self.messages, attempts=attempts, backoff=10 * SECOND, cap=cap)
        for program in programs:
            if isinstance(program, Driver) and isinstance(program.handler, Poison):
                program.handler.sequence = self.messages[program.handler.number]
        self._extend = lru_cache(maxsize=400_000)(self._extend_now)
        self._sweep = lru_cache(maxsize=400_000)(self._sweep_now)
        self._run = lru_cache(maxsize=400_000)(self._run_now)

    def begin(self) -> State:
        count = 1 + max((p.checkpoint for p in self.programs if isinstance(p, Driver)), default=-1)
        store = Store(now=self.rig.clock.now, log=self.log, checkpoints=(Checkpoint(),) * count)
        return State(store, (Proc(),) * len(self.programs), self.onlooker.begin, tuple(self.bounds))

    def key(self, state: State) -> Hashable:
        store: Store = state.store
        books = tuple((group, book.key(store.now)) for group, book in store.books)
        procs = tuple(program.key(proc, store) for program, proc in zip(self.programs, state.procs, strict=True))
        marks = tuple((app, number) for app, (number, _) in store.marks)
        durable = (books, marks, store.checkpoints, log_key(store.log), log_key(store.dead))
        return durable, procs, self.onlooker.key(state.notes, store), state.budget

    # -- what may happen

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        first = self._unseen(state)
        for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
            if first not in (None, at):
                continue
            if proc.pc == OFF:
                if self._may_start(state, at) and (begun := program.start(proc, state.store)) is not None:
                    yield f"start:{program.name}", self._with(state, at, begun)
                continue
            for label, after, store, events in self._run(at, proc, state.store):
                yield label, self._after(state, at, proc, after, store, events, label)
            if isinstance(program, Driver) and program.may_extend(proc, state.store):
                store, events = self._extend(at, proc, state.store)
                yield f"{program.name} extends", self._after(state, at, proc, proc, store, events, f"{program.name} extends")

    def faults(self, state: State) -> Iterator[tuple[str, State]]:
        bounds, first = Bounds(*state.budget), self._unseen(state)
        if bounds.crashes:
            budget = tuple(bounds._replace(crashes=bounds.crashes - 1))
            for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
                if proc.pc not in (OFF, "ended") and first in (None, at):
                    yield f"crash:{program.name}", self._crashed(state, at)._replace(budget=budget)
        if bounds.takeovers:
            budget = tuple(bounds._replace(takeovers=bounds.takeovers - 1))
            for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
                if proc.pc == OFF and isinstance(program, Driver) and (other := self._other(state, at)) is not None:
                    notes = self.onlooker.crash(state.notes, self._batch(state, other))
                    begun = program.start(proc, state.store)
                    yield f"takeover:{program.name}", self._with(state, at, begun)._replace(budget=budget, notes=notes)
        if bounds.ticks and first is None:
            budget = tuple(bounds._replace(ticks=bounds.ticks - 1))
            store = state.store._replace(now=state.store.now + self.tick)
            yield f"tick:{self.tick // SECOND}s", state._replace(store=store, budget=budget)

    def _unseen(self, state: State) -> int | None:
        """A process whose next step nobody else can see, nor is it any other's business: to look at one order of it and theirs is enough."""
        if self.bounds.takeovers:
            return None  # two drivers meet in a checkpoint
        for at, (program, proc) in enumerate(zip(self.programs, state.procs, strict=True)):
            if proc.pc in program.unseen and not proc.tape and (proc.pc != OFF or program.start(proc, state.store) is not None):
                return at
        return None

    def pass_time(self, state: State) -> tuple[str, State] | None:
        swept, events = self._sweep(state.store)
        if swept != state.store:
            return "sweep", state._replace(store=swept, notes=self.onlooker.note(state.notes, state.store, swept, events))
        now, book = state.store.now, state.store.book("g")
        waits = [r.expires_at + 1 for r in book.rows if r.state == LEASED and r.expires_at is not None] if book else []
        waits += [r.available_at for r in book.rows if r.state == WAITING and r.available_at is not None] if book else []
        later = [at for at in waits if at > now]
        return (f"pass:{(min(later) - now) / SECOND:g}s", state._replace(store=state.store._replace(now=min(later)))) if later else None

    def finished(self, state: State) -> bool:
        book = state.store.book("g")
        if book is None:
            return False
        view = book.view(self.messages)
        ended = (SETTLED, DEAD, BLOCKED, ROUTING)
        dead = self.attempts is None or all(r is not None and r.state in ended for r in view)
        return dead and all(view[at] is not None and view[at].state == SETTLED for at in self.must_live)  # type: ignore[union-attr]

    def over(self, state: State) -> bool:
        return self.attempts is None and bool(self.must_live)  # what is left is a poison that is tried for ever

    # -- one step of a process

    def _after(self, state: State, at: int, proc: Proc, after: Proc, store: Store, events: tuple[Event, ...], label: str) -> State:
        try:
            notes: Notes = self.onlooker.note(state.notes, state.store, store, events)
        except AssertionError as wrong:
            raise Violation(str(wrong), [label]) from wrong
        moved = self._with(state, at, after)._replace(store=store, notes=notes)
        if after.pc == OFF and self._other(state, at) is None:  # the query fails: as good as a crash of it
            moved = moved._replace(notes=self.onlooker.crash(moved.notes, self._batch(state, at)))
        return moved

    def _run_now(self, at: int, proc: Proc, store: Store) -> list[Outcome]:
        """All ways in which a process's next step may go."""
        program = self.programs[at]
        outcomes: list[Outcome] = []
        todo: list[tuple[int, ...]] = [()]
        while todo:
            picks = todo.pop()
            tape = Tape(proc.tape, self.rig.fine, picks, proc.pc in program.tails)
            self.rig.load(store, tape)
            IDS.start(program.who, proc.ids)
            ctx = Context(self.rig, tape, proc, store)
            try:
                pc = program.run(ctx, proc.pc)
                after = Proc(pc, tuple(sorted(ctx.local.items(), key=lambda item: item[0])), ctx.source, IDS.drawn)
            except Suspend:
                pc, after = proc.pc, proc._replace(tape=tape.kept)
            except AssertionError as wrong:
                raise Violation(str(wrong), [f"{program.name} {proc.pc}"]) from wrong
            except Exception as error:
                raise Violation(f"{type(error).__name__}: {error}", [f"{program.name} {proc.pc}"]) from error
            if pc == OFF:
                after = Proc(ids=after.ids)
            saved = self.rig.save(ctx.store)
            if saved == store and after._replace(ids=0) == proc._replace(ids=0):
                after = proc  # it has only looked
            label = f"{program.name} {proc.pc}" + (f" (choice {','.join(map(str, picks))})" if picks else "")
            outcomes.append((label, after, saved, tuple(ctx.events)))
            todo += [(*picks, *(0,) * n, option) for n, options in enumerate(tape.open) for option in range(1, options)]
        return outcomes

    def _extend_now(self, at: int, proc: Proc, store: Store) -> tuple[Store, tuple[Event, ...]]:
        """What extends a driver's lease in the background, once."""
        program, tape = self.programs[at], Tape((), self.rig.fine, ())
        assert isinstance(program, Driver)
        self.rig.load(store, tape)
        ctx = Context(self.rig, tape, proc, store)
        program.extend(ctx)
        return self.rig.save(store), tuple(ctx.events)

    def _sweep_now(self, store: Store) -> tuple[Store, tuple[Event, ...]]:
        tape = Tape((), self.rig.fine, ())
        self.rig.load(store, tape)
        ctx = Context(self.rig, tape, Proc(), store)
        ctx.group().expire()
        return self.rig.save(store), tuple(ctx.events)

    @staticmethod
    def _with(state: State, at: int, proc: Proc) -> State:
        return state._replace(procs=(*state.procs[:at], proc, *state.procs[at + 1 :]))

    def _crashed(self, state: State, at: int) -> State:
        notes = self.onlooker.crash(state.notes, self._batch(state, at))
        return self._with(state, at, Proc(ids=self._drawn(state.procs[at])))._replace(notes=notes)

    @staticmethod
    def _drawn(proc: Proc) -> int:
        return proc.ids + (10 if proc.tape else 0)  # past what a half-done operation may have drawn

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
        return next(
            (
                n
                for n, program in enumerate(self.programs)
                if n != at and isinstance(program, Driver) and program.checkpoint == mine.checkpoint and state.procs[n].pc != OFF
            ),
            None,
        )

    def _may_start(self, state: State, at: int) -> bool:
        """A driver is started again when none is at work on its checkpoint; of two that could be, the first."""
        program = self.programs[at]
        return not isinstance(program, Driver) or (not program.late and self._other(state, at) is None)

    def tell(self, state: State) -> str:
        lines = [f"    {r}" for _, book in state.store.books for r in book.rows]
        return "\n".join([f"  from: now={state.store.now} {state.procs}", f"    notes {state.notes}", *lines])
