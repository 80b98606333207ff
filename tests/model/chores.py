"""Who looks after a queue, as programs: sweepers that route and trim, redrivers, and owners who
seek and make groups.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from support.handles import route, trim
from support.tables import context_of

from spark_mq.errors import LeaseLost, MessagesHeld, TablesDisagree
from spark_mq.ledger.message_index import MessageIndex, sequence
from spark_mq.ledger.settle import NACK, REJECT
from spark_mq.maintenance.recover import recover_tables

from .actors import Context, Fickle, Proc, Program, Worker
from .explorer import EFFECT
from .storage import Store

ENDED = "ended"
AGAIN = "again"
"""The data file that is published in place of a lost one."""


class Chore(Program):
    """Does one thing, over and over, or ``times`` times."""

    tails = ()

    def __init__(self, name: str, who: int, *, times: int | None = None) -> None:
        super().__init__(name, who)
        self.times = times

    def start(self, proc: Proc, store: Store) -> Proc | None:
        return proc._replace(pc="work", local=() if self.times is None else (("left", self.times),))

    def work(self, ctx: Context) -> str:
        self.do(ctx)
        if self.times is None:
            return "work"
        ctx.local["left"] -= 1
        return "work" if ctx.local["left"] else ENDED

    def do(self, ctx: Context) -> None:
        raise NotImplementedError


class Router(Chore):
    """Sends dead messages to the dead-letter queue."""

    def do(self, ctx: Context) -> None:
        route(ctx.group())


class Redriver(Chore):
    """Publishes dead letters into their queue again, one at a time."""

    def do(self, ctx: Context) -> None:
        ctx.queue.redrive(limit=1)


class Trimmer(Chore):
    """Drops what every group has settled."""

    def do(self, ctx: Context) -> None:
        trim(ctx.queue)


class Seeker(Chore):
    """Moves the group back to the earliest message there is, once."""

    def __init__(self, name: str, who: int) -> None:
        super().__init__(name, who, times=1)

    def do(self, ctx: Context) -> None:
        ctx.group().seek("earliest")


class Rejecter(Worker):
    """Rejects all that it gets."""

    def work(self, ctx: Context) -> str:
        self.settle(ctx, REJECT)
        return "lease"


class Joiner(Worker):
    """Works for a group of its own, which its first lease makes, at the earliest message."""

    def __init__(self, name: str, who: int, group: str) -> None:
        super().__init__(name, who, most=9)
        self.of = group

    def take(self, ctx: Context) -> bool:
        lease = ctx.group(self.of).lease(self.name, max_messages=self.most)
        if lease is not None:
            ctx.local["lease"] = lease.lease_id
        return lease is not None

    def done(self, ctx: Context) -> None:
        ctx.group(self.of).ack(ctx.local["lease"])


class Broke(Fickle):
    """Has a handler that fails, at most ``moves`` times, whichever messages it gets."""

    def work(self, ctx: Context) -> str:
        if not ctx.local["moves"] or not ctx.choose(2):
            self.done(ctx)
            return "lease"
        ctx.local["moves"] -= 1
        self.settle(ctx, NACK)
        return "lease"


class OnGroup(Chore):
    """Begins when the group is there."""

    def start(self, proc: Proc, store: Store) -> Proc | None:
        return super().start(proc, store) if store.book("g") is not None else None


class Pauser(OnGroup):
    """Pauses the group and resumes it, once."""

    def work(self, ctx: Context) -> str:
        ctx.group().pause("maintenance")
        return "resume"

    def resume(self, ctx: Context) -> str:
        ctx.group().resume()
        return ENDED


class Owner(OnGroup):
    """Changes the first message without a lease, once: as it may, and then by force."""

    def __init__(self, name: str, who: int, how: str) -> None:
        super().__init__(name, who)
        self.how = how

    def work(self, ctx: Context) -> str:
        try:
            self.change(ctx, force=False)
        except MessagesHeld:
            return "take"
        return ENDED

    def take(self, ctx: Context) -> str:
        self.change(ctx, force=True)
        return ENDED

    def change(self, ctx: Context, *, force: bool) -> None:
        change, m = getattr(ctx.group(), self.how.replace(" ", "_")), ctx.store.log.messages[0]
        change(m, force=force, by="owner")


class Restorer(Chore):
    """Sets the log back by its last commit.

    Others publish in its place, and one more. Then it recovers.
    """

    def start(self, proc: Proc, store: Store) -> Proc | None:
        done = any(f.path == AGAIN for f in store.log.files)
        return proc._replace(pc="lose" if not done else "recover", local=())

    def lose(self, ctx: Context) -> str:
        log = ctx.rig.log

        def set_back() -> None:
            *kept, last = log.held_index.files
            more = replace(last, first=sequence((last.first >> 32) + 1, 0), path="more")
            files = [*kept, replace(last, path=AGAIN), more]
            log.held_index = MessageIndex(files, more.first >> 32)
            log.active = {f.path for f in files}

        ctx.tape.call(EFFECT, set_back)
        return "recover"

    def recover(self, ctx: Context) -> str:
        recover_tables(context_of(ctx.queue), dry_run=False)
        return ENDED


class Patient(Joiner):
    """Works whenever the tables agree."""

    def take(self, ctx: Context) -> bool:
        try:
            return super().take(ctx)
        except TablesDisagree:
            return False

    def done(self, ctx: Context) -> None:
        with contextlib.suppress(TablesDisagree, LeaseLost):
            super().done(ctx)
