"""Workers that append to a sink and die, sleep or give back, in random order.

In the end the sink, a table or a queue, has each message once that was not rejected, and the dead
letters have each rejected one. Some seed must fail with each wrong version of a rule.
"""

from __future__ import annotations

import contextlib
import pkgutil
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.marks import slow, slow_but
from support.rule_variants import Variant, instead, returns, rule_variant, then
from support.sinks import SCHEMA, make_sink, values

from spark_mq import Lease, errors
from spark_mq.testing import ManualClock, memory_queue

DAILY = range(3)
MESSAGES = 24
WRITERS = {
    "table": "deltalake.write_deltalake",
    "queue": "spark_mq.operations.sinks.publish_messages",
}
"""What writes into a sink of each kind."""

FATES = (
    "acks", "acks", "dies", "dies after", "nacks", "nacks after", "sleeps", "names late",
    "sleeps before its commit", "fails", "lands, then fails",
)  # fmt: skip


class Died(Exception):
    """The worker is gone."""


class World:
    """A group with a sink, and workers whose fates a seed draws."""

    def __init__(
        self, folder: Path, seed: int, fates: Sequence[str] = FATES, kind: str = "table"
    ) -> None:
        self.fates, self.writer = fates, WRITERS[kind]
        self.write_really = pkgutil.resolve_name(self.writer)
        self.random, self.clock = random.Random(seed), ManualClock()
        self.sink = make_sink(folder, kind)
        self.queue = memory_queue(clock=self.clock, max_delivery_attempts=None)
        self.group = self.queue.group()
        self.group.configure(sink=self.sink, breaker_threshold=None)
        self.texts = [f"{n:02}" for n in range(MESSAGES)]
        for at in range(0, MESSAGES, 4):
            self.queue.publish(self.texts[at : at + 4])
        self.bad = set(self.random.sample(self.texts, 3))  # no handler ever writes them
        self.asleep: list[Iterator[None]] = []
        self.meanwhile: Callable[[], None] | None = None

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.writer, self._write)
            for _ in range(40):
                self._step()
            while self.asleep:
                self._wake()
        for _ in range(200):
            if not self.group.stats().unsettled:
                break
            self._finish(self._lease(), "acks")
        self.queue.sweep()

    def check(self) -> None:
        assert not self.group.stats().unsettled
        assert values(self.sink) == sorted(set(self.texts) - self.bad)
        letters = self.queue.list_dead_letters().to_pylist()
        assert sorted(one["value"].decode() for one in letters) == sorted(self.bad)

    def _step(self) -> None:
        if self.asleep and self.random.random() < 0.25:
            self._wake()
            return
        self._finish(self._lease(), self.random.choice(self.fates))

    def _wake(self) -> None:
        sleeper = self.asleep.pop(self.random.randrange(len(self.asleep)))
        with contextlib.suppress(StopIteration, errors.LeaseLost):
            next(sleeper)

    def _lease(self) -> Lease | None:
        self.clock.advance(self.random.choice(["1s", "20s", "2m"]))
        return self.group.lease("w", max_messages=self.random.randint(1, 7))

    def _finish(self, lease: Lease | None, fate: str) -> None:
        if lease is None:
            return
        life = self._live(lease, fate)
        with contextlib.suppress(StopIteration, Died, errors.LeaseLost, errors.StorageError):
            next(life)
            self.asleep.append(life)

    def _live(self, lease: Lease, fate: str) -> Iterator[None]:
        """Handle a lease. Yield while the worker sleeps."""
        rows = {m.text: m.sequence for m in lease.messages}
        if fate == "sleeps" and self.random.random() < 0.5:
            yield
        if fate == "names late":
            yield
        for text in list(rows):
            self._name(lease, rows, text, late=fate == "names late")
        if fate == "dies":
            raise Died
        if fate == "nacks":
            lease.nack(delay=0)
            return
        if fate == "sleeps":
            yield
        at = {"sleeps before its commit": self._others, "fails": self._die}
        self.meanwhile, self.lands = at.get(fate), fate == "lands, then fails"
        lease.append(pa.table({"value": list(rows)}, SCHEMA))
        if fate == "dies after":
            raise Died
        if fate == "nacks after":
            lease.nack(delay=0)
            return
        lease.ack()

    def _name(self, lease: Lease, rows: dict[str, int], text: str, *, late: bool) -> None:
        """Perhaps settle a message by itself, and so leave it out of the rows."""
        how = self.random.choice(["nack", "release", *["keep"] * (2 if late else 7)])
        how = "reject" if text in self.bad else how
        if how == "keep":
            return
        sequence = rows.pop(text)
        with contextlib.suppress(errors.LeaseLost):  # a user may go on after that
            getattr(lease, how)([sequence])

    def _others(self) -> None:
        """Let others take the messages of a worker that is about to commit."""
        for _ in range(3):
            self.clock.advance("2m")
            self._finish(self._lease(), self.random.choice(["acks", "dies after", "nacks after"]))

    def _die(self) -> None:
        raise Died

    def _write(self, *arguments: Any, **options: Any) -> Any:
        meanwhile, self.meanwhile = self.meanwhile, None
        lands, self.lands = self.lands, False
        if meanwhile is not None:
            meanwhile()
        result = self.write_really(*arguments, **options)
        if lands:
            raise errors.StorageError("the reply was lost", path=self.sink, landed=None)
        return result

    lands = False


def number_of(a: Any) -> int:
    return int(a.self._number(a.self.open(), a.write, ""))


def takes_fences_for_writes(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, write: Any) -> bool:
        there = self._number(self.open(), write, "") >= write.number
        return there or bool(rule(self, write))

    return wrong


MUTANTS: list[tuple[str, str, Variant]] = [
    ("a lease looks for the writes before it", "DeltaSink._has", returns(False)),
    ("what is not there is fenced", "DeltaSink._has",
     instead(lambda _, a: number_of(a) >= a.write.number)),
    ("a fence is no write", "DeltaSink._has", takes_fences_for_writes),
    ("a fenced lease has not written", "DeltaSink._check_own", returns(None)),
    ("a writer serves one lease at a time", "next_write",
     then(lambda write, _: write._replace(writer=0))),
    ("a message keeps all writes of earlier leases", "with_write",
     instead(lambda _, a: str(a.write))),
    ("a message that its lease named is not written", "without_last_write",
     instead(lambda _, a: a.r.sink_writes)),
    ("a lease that is given back whole may have written", "ledger:_Settling._unwritten",
     instead(lambda _, a: a.r._replace(sink_writes=None))),
    ("the messages of a lease have the same writes", "DueRanges.rows_from",
     instead(lambda _, a: a.self._rows_of_kind(a.head, a.available))),
    ("unread messages do not join written ones", "DueRanges.reads_after", returns(True)),
    ("a lease whose named messages were lost writes nothing", "AppendGuard.naming",
     instead(lambda _, a: contextlib.nullcontext())),
]  # fmt: skip


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("seed", slow_but(DAILY, range(80)))
def test_the_sink_has_each_message_once(tmp_path: Path, seed: int, kind: str) -> None:
    world = World(tmp_path / "sink", seed, kind=kind)
    world.run()
    world.check()


@pytest.mark.parametrize(
    ("name", "rule", "variant"),
    [MUTANTS[0], *(slow(*mutant) for mutant in MUTANTS[1:])],
    ids=[m[0] for m in MUTANTS],
)
def test_each_rule_is_needed(tmp_path: Path, name: str, rule: str, variant: Variant) -> None:
    # Few worlds have a worker that sleeps through the naming of another one.
    fates = ("acks", "sleeps", "sleeps", "names late") if rule == "AppendGuard.naming" else FATES
    for seed in range(60):
        world = World(tmp_path / str(seed), seed, fates)
        with rule_variant(rule, variant):
            try:
                world.run()
                world.check()
            except (AssertionError, errors.SparkMQError):
                return
    pytest.fail(f"no seed fails without the rule that {name}")
