"""The small worlds, by name.

With one ``more``, larger bounds, for which there is no time in every run of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_mq.ledger.settle import NACK, REJECT, RELEASE

from .actors import (
    ANY_MOVE,
    SECOND,
    Driver,
    Fickle,
    Handler,
    Poison,
    Worker,
    failing,
    flaky,
    good,
    refuses,
    releases,
    unreachable,
)
from .chores import (
    Broke,
    Joiner,
    Owner,
    Patient,
    Pauser,
    Redriver,
    Rejecter,
    Restorer,
    Router,
    Seeker,
    Trimmer,
)
from .delivery import Bounds, Delivery, Redriven, Restored, Routed, Trimmed


def _pair(handler: Handler = good, **options: Any) -> list[Driver]:
    """Two drivers on one checkpoint: one at work, and one that is started when the first is taken
    for dead.
    """
    first = Driver("A", 1, 0, handler, **options)
    return [first, Driver("B", 2, 0, handler, late=True, **options)]


def _stream(
    handler: Handler | None, bounds: Bounds, batch: int = 100_000, **given: Any
) -> Delivery:
    """One driver, whose handler gets at most so many messages at a time."""
    return Delivery([Driver("A", 1, 0, handler, max_messages=batch)], bounds, **given)


def crashes(more: int) -> Delivery:
    """One driver, which dies between any two steps, more than once; and time passes."""
    return _stream(good, Bounds(crashes=2 + more, ticks=1 + more), 2, most=8_000)


def zombie(more: int) -> Delivery:
    """A driver stands still, another takes over, and both go on."""
    return Delivery(_pair(max_messages=2), Bounds(crashes=1, takeovers=1 + more, ticks=more))


def zombie_and_crashes(more: int) -> Delivery:
    """A driver is refused by its successor while it works, and both die."""
    return Delivery(_pair(refuses), Bounds(crashes=2, takeovers=1 + more), messages=(1,))


def company(more: int) -> Delivery:
    """Two drivers with checkpoints and a worker in one group; a lease may expire at any moment."""
    drivers = [Driver("A", 1, 0, max_messages=2), Driver("B", 2, 1, max_messages=2)]
    return Delivery([*drivers, Worker("w", 3)], Bounds(crashes=more, ticks=more))


def driver_and_worker(more: int) -> Delivery:
    """A driver and a worker that take each other's messages when these have expired."""
    programs = [Driver("A", 1, 0, max_messages=2), Worker("w", 3)]
    return Delivery(programs, Bounds(ticks=1 + more), messages=(2 + more,))


def kept_alive(more: int) -> Delivery:
    """A driver whose lease is extended in the background, as long as it works and no longer than
    that may last; and a worker.
    """
    driver = Driver("A", 1, 0, extends=True, max_lease_duration=100 * SECOND)
    bounds = Bounds(crashes=more, ticks=3 + more)
    return Delivery([driver, Worker("w", 3)], bounds, messages=(2,), tick=50 * SECOND)


def fickle(more: int) -> Delivery:
    """Two workers that do with their leases what they like, in any order, also twice and too
    late.
    """
    workers = [Fickle("v", 1, moves=2 + more), Fickle("w", 2, moves=2 * more)]
    return Delivery(workers, Bounds(crashes=0, ticks=1 + more), messages=(2 + more,))


def apart(more: int) -> Delivery:
    """A worker that lets leases expire, and one that takes many at a time: each failed lease is
    retried whole, and apart.
    """
    workers = [Fickle("v", 1, most=2, moves=2, verbs=("leave",)), Worker("w", 2, most=4)]
    return Delivery(workers, Bounds(crashes=more), attempts=5, messages=(4,))


def singly(more: int) -> Delivery:
    """A worker that lets messages expire one by one or gives them back: each keeps its place,
    before what is unread.
    """
    verbs = ("leave", NACK, RELEASE)
    workers = [Fickle("v", 1, most=1, moves=2 + more, verbs=verbs), Worker("w", 2, most=3)]
    return Delivery(workers, Bounds(crashes=0, ticks=1), attempts=5, tick=11 * SECOND)


def snoozing(more: int) -> Delivery:
    """Two workers that release messages until later and extend one of two: neither counts, and
    nothing comes early.
    """
    verbs = ("snooze", "snooze one", "extend one", "leave")
    workers = [Fickle("v", 1, moves=2 + more, verbs=verbs), Worker("w", 2)]
    return Delivery(workers, Bounds(crashes=0, ticks=1), messages=(2,), tick=61 * SECOND)


def _places(givers: str, more: int) -> Delivery:
    workers = [
        *(
            Fickle(name, who, most=1, moves=1, verbs=(RELEASE,))
            for who, name in enumerate(givers, 1)
        ),
        Fickle("v", 3, most=2, moves=1, verbs=("leave",)),
    ]
    return Delivery(workers, Bounds(crashes=more, ticks=1), attempts=5, messages=(4,))


def in_places(more: int) -> Delivery:
    """A worker gives back leases of one, another lets a lease of two expire: no lease goes past a
    suspect.
    """
    return _places("t", more)


def three_in_places(more: int) -> Delivery:
    """As ``in_places``, with two workers that give back: more states than a test can visit."""
    return _places("tu", more)


def isolated(more: int) -> Delivery:
    """A message that kills its worker, among more messages than a lease takes: its pieces go before
    what is unread.
    """
    return _stream(Poison(1, "kill"), Bounds(crashes=more), 3, attempts=4, messages=(5,))


def in_pieces(more: int) -> Delivery:
    """The same among more messages: the pieces grow after those that are acked."""
    return _stream(Poison(7, "kill"), Bounds(crashes=0), 8, attempts=5, messages=(8,))


def dropping(more: int) -> Delivery:
    """A message that the handler rejects, in a group that drops messages past a limit: it is in the
    dead-letter queue at last.
    """
    workers = [Rejecter("w", 1), Router("r", 2)]
    return Routed(workers, Bounds(crashes=more), messages=(2,), on_max_deliveries="drop")


def broken(more: int) -> Delivery:
    """A handler that fails for every message, until it is repaired: the breaker grants one message
    at a time, after a wait.
    """
    workers = [Broke("v", 1, most=2, moves=4 + more), Broke("w", 2, most=1, moves=0)]
    return Delivery(
        workers, Bounds(crashes=0, ticks=1 + more), messages=(3 + more,),
        attempts=9, tick=31 * SECOND, breaker_threshold=2, breaker_reset_timeout="20s",
        breaker_max_wait="30s",
    )  # fmt: skip


def paused(more: int) -> Delivery:
    """An owner pauses the group and resumes it, while two workers work."""
    workers = [Worker("v", 1, most=1), Worker("w", 2, most=2), Pauser("o", 3)]
    return Delivery(workers, Bounds(crashes=0, ticks=more), messages=(2 + more,))


def discarding(more: int) -> Delivery:
    """An owner discards a message, by force if a worker holds it."""
    return _owned("discard", more)


def retrying(more: int) -> Delivery:
    """An owner makes a message due, by force if a worker holds it."""
    return _owned("retry now", more)


def making_dead(more: int) -> Delivery:
    """An owner makes a message dead, by force if a worker holds it."""
    return _owned("dead letter", more)


def _owned(how: str, more: int) -> Delivery:
    verbs = ("nack one", "leave", "snooze")
    workers = [Fickle("v", 1, moves=1 + more, verbs=verbs), Worker("w", 2)]
    return Delivery([*workers, Owner("o", 3, how)], Bounds(crashes=0, ticks=more), messages=(2,))


def ordered(more: int) -> Delivery:
    """Keys in order: a worker that gives back, extends and leaves messages as it likes, and one
    that works.
    """
    workers = [_any_mover(more), Worker("w", 2, most=1)]
    return Delivery(workers, Bounds(crashes=0, ticks=1), keys=KEYS, order="key", attempts=4)


def _any_mover(more: int) -> Fickle:
    return Fickle("v", 1, most=3, moves=2 + more, verbs=ANY_MOVE)


def ordered_parts(more: int) -> Delivery:
    """Keys in order: a worker extends one message of a lease, so that a part of it expires."""
    verbs = ("extend one", "ack one", "leave")
    workers = [Fickle("v", 1, most=3, moves=2 + more, verbs=verbs), Worker("w", 2)]
    return Delivery(workers, Bounds(crashes=0, ticks=1), keys=KEYS, order="key", attempts=4)


def ordered_dead(more: int) -> Delivery:
    """Keys in order: a message that fails each time is dead, and holds back its key until then."""
    first = Fickle("v", 1, most=2, moves=3, verbs=("nack one", REJECT))
    workers = [first, Worker("w", 2, most=2 + more)]
    return Delivery(workers, Bounds(crashes=more), keys=KEYS, order="key", attempts=2)


def ordered_stream(more: int) -> Delivery:
    """Keys in order: a stream that dies and replays its batch, beside a worker."""
    driver = Driver("A", 1, 0, flaky if more else good, max_messages=2)
    workers = [driver, Worker("w", 2, most=1)]
    return Delivery(workers, Bounds(crashes=1, ticks=more), keys=KEYS, order="key", attempts=4)


def limited_by_key(more: int) -> Delivery:
    """One message of each key at a time: a worker that does as it likes, and one that works."""
    workers, bounds = [_any_mover(more), Worker("w", 2, most=3)], Bounds(crashes=0, ticks=1)
    return Delivery(workers, bounds, keys=KEYS, max_in_flight_per_key=1, attempts=4)


def fair(more: int) -> Delivery:
    """Leases that are divided between two keys, of which one has more messages."""
    verbs = (RELEASE, "leave", "ack one")
    first = Fickle("v", 1, most=2, moves=2 + more, verbs=verbs)
    workers = [first, Worker("w", 2, most=2 + more)]
    return Delivery(workers, Bounds(crashes=0, ticks=1), keys="bba", order="fair", attempts=4)


def last_attempts(more: int) -> Delivery:
    """A worker that nacks messages one by one, and one that takes many at a time: last attempts go
    among themselves.
    """
    first = Fickle("u", 1, most=1, moves=1, verbs=(RELEASE,))
    second = Fickle("v", 2, most=1, moves=1, verbs=("nack one",))
    bounds = Bounds(crashes=more, ticks=1)
    return Delivery([first, second, Worker("w", 3, most=3)], bounds, attempts=2, tick=11 * SECOND)


def manual(more: int) -> Delivery:
    """Only what the handler acks itself counts.

    The rest expires, comes again, and is dead at last.
    """
    driver = Driver("A", 1, 0, Poison(1, "leave"), max_messages=2, ack=None, ack_on_commit=False)
    return Delivery([driver], Bounds(crashes=1, ticks=more))


def left(more: int) -> Delivery:
    """The same where the stream acks what Spark has committed: not what for_each_batch has left."""
    programs = [Driver("A", 1, 0, Poison(1, "leave"), max_messages=2, ack="manual")]
    return Delivery(programs, Bounds(crashes=1 + more, ticks=more))


def left_by_a_zombie(more: int) -> Delivery:
    """The same, of a driver that stands still while another takes over."""
    bounds = Bounds(crashes=more, takeovers=1)
    pair = _pair(Poison(1, "leave"), max_messages=2, ack="manual")
    return Delivery(pair, bounds, messages=(2 + more,))


def capped(more: int) -> Delivery:
    """No more messages in flight than the group allows, however they fall.

    And no lease ends before its margin has passed, too.
    """
    bounds = Bounds(crashes=more, ticks=1)
    return Delivery([Fickle("v", 1, moves=1), Worker("w", 2)], bounds, cap=2, skew=2 * SECOND)


def killer(more: int) -> Delivery:
    """A message that kills its driver, until it is dead. Nobody else may die of it."""
    bounds = Bounds(crashes=0, ticks=1 + more)
    return _stream(Poison(1, "kill"), bounds, attempts=4, must_live=(0, 2))


def immortal(more: int) -> Delivery:
    """A message that kills its driver for ever, in a group without a limit of attempts: the others
    must get through all the same.
    """
    bounds = Bounds(crashes=more)
    return _stream(Poison(1, "kill"), bounds, attempts=None, must_live=(0, 2), most=500)


def immortal_and_unread(more: int) -> Delivery:
    """The same, with a message that nobody has read yet behind it."""
    bounds = Bounds(crashes=1 + more)
    return _stream(Poison(1, "kill"), bounds, 1, attempts=None, must_live=(0, 2), most=6_000)


def killer_and_crashes(more: int) -> Delivery:
    """The same, and drivers die of other causes too: then a message alone in such a lease may be
    dead.
    """
    return _stream(Poison(1, "kill"), Bounds(crashes=1 + more, ticks=1), attempts=4)


def raiser(more: int) -> Delivery:
    """A message for which the handler raises: its lease is nacked as a whole, after a backoff."""
    return _stream(Poison(1, "raise"), Bounds(crashes=1, ticks=1 + more))


def rejecter(more: int) -> Delivery:
    """A message that the handler rejects."""
    return _stream(Poison(1, "reject"), Bounds(crashes=1 + more, ticks=1))


def returner(more: int) -> Delivery:
    """A message that the handler returns as failed, each time."""
    return _stream(Poison(1, "return"), Bounds(crashes=1 + more, ticks=1))


def flaky_verdicts(more: int) -> Delivery:
    """A handler that nacks any message by name, now and then, before it writes the others."""
    return _stream(flaky, Bounds(crashes=1 + more, ticks=more))


def flaky_zombie(more: int) -> Delivery:
    """The same, of a driver that stands still while another takes over."""
    bounds = Bounds(crashes=more, takeovers=1)
    return Delivery(_pair(flaky, max_messages=2), bounds, messages=(2 + more,))


def refusing(more: int) -> Delivery:
    """A handler that nacks a whole batch by name, now and then, so that several are on their last
    attempt together.
    """
    return _stream(refuses, Bounds(crashes=1 + more), messages=(2 + more,))


def failing_batches(more: int) -> Delivery:
    """A handler that fails as a whole, now and then, before it has written anything."""
    return _stream(failing, Bounds(crashes=1 + more), messages=(2 + more,))


def releasing(more: int) -> Delivery:
    """A handler that gives its lease back, now and then: as if it had never been leased, or not
    replayed.
    """
    return _stream(releases, Bounds(crashes=2 + more), messages=(2,))


def outages(more: int) -> Delivery:
    """A store out of reach for more batches than a message has attempts: no message may die of
    it.
    """
    return _stream(unreachable, Bounds(crashes=0, ticks=more), 2, must_live=(0, 1, 2))


def plain_sink(more: int) -> Delivery:
    """No foreachBatch: what Spark has committed is acked when it asks for more."""
    return _stream(None, Bounds(crashes=1 + more, ticks=1), 2)


def routing(more: int) -> Delivery:
    """Two sweepers route the same dead messages, and die on the way."""
    routers, bounds = [Router("r", 1), Router("s", 2)], Bounds(crashes=1 + more)
    return Routed(routers, bounds, setup=[Rejecter("w", 3)], fine=True, messages=(2,))


def routing_goes_on(more: int) -> Delivery:
    """Two sweepers route what a worker rejects, one message after the other."""
    programs = [Router("r", 1), Router("s", 2), Rejecter("w", 3, most=1)]
    return Routed(programs, Bounds(crashes=more), messages=(2 + more,))


def routing_and_seek(more: int) -> Delivery:
    """A sweeper routes, its group is sought back meanwhile, and a worker does what is there
    again.
    """
    programs = [Router("r", 1), Seeker("o", 2), Worker("w", 3, most=9)]
    return Routed(
        programs, Bounds(crashes=1), setup=[Rejecter("x", 4)], fine=bool(more), messages=(2,)
    )


def redriving(more: int) -> Delivery:
    """Two redrivers of the same dead letters, which die on the way."""
    redrivers, fine = [Redriver("d", 1), Redriver("e", 2)], bool(more)
    setup = [Rejecter("w", 3), Router("r", 4, times=1)]
    return Redriven(redrivers, Bounds(crashes=1), setup=setup, fine=fine, messages=(2,))


def trim_and_new_group(more: int) -> Delivery:
    """Files are dropped while a group comes to be."""
    programs, setup = [Trimmer("t", 1), Joiner("n", 2, "new")], [Joiner("w", 3, "g")]
    bounds, messages = Bounds(crashes=more), (1,) * (2 + more)
    return Trimmed(programs, bounds, setup=setup, messages=messages)


def trim_and_new_group_and_crashes(more: int) -> Delivery:
    """One file is dropped while a group comes to be, and a process dies."""
    programs = [Trimmer("t", 1), Joiner("n", 2, "new")]
    setup = [Joiner("w", 3, "g")]
    return Trimmed(programs, Bounds(crashes=1), setup=setup, messages=(1,) * (1 + more))


def trim_and_seek(more: int) -> Delivery:
    """Files are dropped while a group goes back to the earliest message."""
    programs = [Trimmer("t", 1), Seeker("o", 2), Joiner("n", 4, "g")]
    return Trimmed(programs, Bounds(crashes=more), setup=[Joiner("w", 3, "g")], messages=(1, 1))


def restored(more: int) -> Delivery:
    """``messages/`` is restored alone, others publish, and it is recovered while a worker waits.

    Processes die.
    """
    programs, setup = [Restorer("r", 1), Patient("n", 2, "g")], [Joiner("w", 3, "g")]
    bounds, messages = Bounds(crashes=1 + more), (1,) * (2 + more)
    return Restored(programs, bounds, setup=setup, messages=messages)


KEYS = "baa"
"""Two messages of one key and one of another, in the order of their lanes."""

WORLDS: dict[str, Callable[[int], Delivery]] = {
    build.__name__: build
    for build in (
        crashes, zombie, zombie_and_crashes, company, driver_and_worker, kept_alive, fickle, manual,
        left, left_by_a_zombie, capped, apart,
        singly, snoozing, in_places, three_in_places, isolated, in_pieces, dropping, broken, paused,
        discarding, retrying, making_dead,
        last_attempts, ordered, ordered_parts, ordered_dead, ordered_stream, limited_by_key, fair,
        killer, immortal, immortal_and_unread, killer_and_crashes, raiser, rejecter, returner,
        refusing, flaky_verdicts, flaky_zombie,
        failing_batches, releasing, outages, plain_sink,
        routing, routing_goes_on, routing_and_seek, redriving, trim_and_new_group,
        trim_and_new_group_and_crashes, trim_and_seek, restored,
    )
}  # fmt: skip

SLOW: set[str] = {
    "zombie_and_crashes", "fickle", "driver_and_worker", "routing_goes_on",
    "trim_and_new_group_and_crashes", "redriving", "zombie", "crashes", "capped",
    "last_attempts", "raiser", "releasing", "routing", "kept_alive", "killer_and_crashes",
    "flaky_verdicts", "flaky_zombie", "company", "failing_batches",
    "in_places", "broken", "singly", "ordered", "ordered_parts", "ordered_stream",
    "limited_by_key", "fair", "snoozing",
}  # fmt: skip
"""Explored as a whole in make test-all only. A mutant is found in each of them in a second."""

TOO_LARGE: set[str] = {"three_in_places"}
"""Explored as a whole with ``--large-worlds`` alone. A mutant is found there in seconds."""

MOST_STATES = 150_000
"""No world of small bounds may have more: a growing world must fail before it takes the machine's
memory.
"""
