"""Every interleaving of a few publishers with ids, a sweep, crashes and the clock, over the real
rules and the real files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.handles import memory_store
from support.marks import slow_but
from support.rule_variants import gets, instead, then

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import ORDINAL_BITS, sequence
from spark_mq.storage.id_files import Head, IdBlock, IdFiles, IdWindow, Published, block_path

from .explorer import Violation
from .mutants import Mutant

WINDOW = 2
"""Ticks of the clock for which an id counts."""
CALLS: tuple[tuple[bytes, ...], ...] = tuple(
    tuple(one.encode().rjust(16) for one in ids) for ids in ("aba", "ac", "a")
)
"""The ids of each publisher's one call. It calls again after a crash."""
TICKS, CRASHES = 3, 1
Files = tuple[tuple[str, bytes], ...]
IDLE, CHECKED, WRITTEN, DONE = "idle", "checked", "written", "done"


@dataclass(frozen=True)
class Publisher:
    """Where a call has come to, and what it knows."""

    step: str = IDLE
    began: int = 0
    read: Head | None = None
    window: IdWindow | None = None
    duplicates: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    head: Head | None = None
    files: Files = ()
    log: tuple[tuple[bytes, Published], ...] = ()
    """Each id that was published, when, and with which sequence."""
    now: int = 10
    names: int = 0
    crashes: int = 0
    publishers: tuple[Publisher, ...] = tuple(Publisher() for _ in CALLS)

    def key(self) -> Any:
        """Equal for states with the same future: names of blocks, sequences, and files of the dead,
        do not count.
        """
        blocks = window_in(self.head, self.files).blocks
        known = tuple(
            tuple(sorted((one, place.at) for one, place in block.ids.items())) for block in blocks
        )
        log = tuple(sorted((one, place.at) for one, place in self.log))
        procs = tuple((p.step, p.began, p.read == self.head, p.duplicates) for p in self.publishers)
        return known, log, self.now, self.crashes, procs


def ids_in(files: Files) -> tuple[IdFiles, ObjectStore]:
    """The files as a new process finds them."""
    store = memory_store()
    for path, data in files:
        store.write(path, data)
    return IdFiles(store), store


@functools.cache
def window_in(head: Head | None, files: Files) -> IdWindow:
    return ids_in(files)[0].load(head)


def step(state: State, who: int) -> State:
    """One read or write of a publisher."""
    own, call = state.publishers[who], CALLS[who]
    if own.step == IDLE:
        window = window_in(state.head, state.files)
        began = own.began or state.now
        duplicates = window.duplicates(call, began - WINDOW)
        for at, met in duplicates.items():
            there = [place for one, place in state.log if one == call[at]]
            recent = [place.sequence for place in there if place.at > began - WINDOW]
            if met not in recent and (recent or met != ~call.index(call[at])):
                raise Violation(f"{call[at]!r} counts as a duplicate of {met}, not of {recent}")
        done = len(duplicates) == len(call)
        own = Publisher(DONE if done else CHECKED, began, state.head, window, tuple(duplicates))
    elif own.step == CHECKED:
        assert own.window is not None
        left = [one for at, one in enumerate(call) if at not in own.duplicates]
        fresh = {one: row for row, one in enumerate(left)}
        window = own.window.with_ids(state.names + 1, fresh, own.began, own.began - WINDOW)
        files, store = ids_in(state.files)
        files.write(window)
        held = ((info.path, store.read(info.path)) for info in store.list_all())
        own = replace(own, step=WRITTEN, window=window)
        state = replace(state, names=state.names + 1, files=tuple(held))
    elif own.read != state.head:  # the txn of the other commit: a conflict
        own = Publisher(IDLE, own.began)
    else:
        fresh = [one for at, one in enumerate(call) if at not in own.duplicates]
        for at, one in enumerate(fresh):
            oldest = state.now - WINDOW
            before = [place for other, place in state.log if other == one and place.at > oldest]
            if before or one in fresh[:at]:
                raise Violation(f"{one!r} is published twice within its window")
        assert own.window is not None
        version = len({place.sequence >> ORDINAL_BITS for _, place in state.log}) + 1
        places = [Published(own.began, sequence(version, row)) for row in range(len(fresh))]
        state = replace(
            state,
            head=Head(own.window.blocks[0].ref.name, version),
            log=(*state.log, *zip(fresh, places, strict=True)),
        )
        own = Publisher(DONE)
    return with_publisher(state, who, own)


def with_publisher(state: State, who: int, own: Publisher) -> State:
    publishers = list(state.publishers)
    publishers[who] = own
    return replace(state, publishers=tuple(publishers))


def sweep(state: State) -> State:
    """Deletes what no block names, but the ids of publishers that still run: those are young."""
    young = {
        f"_dedup/{p.window.blocks[0].ref.name:016x}.ids"
        for p in state.publishers
        if p.step == WRITTEN and p.window is not None
    }
    kept = ids_in(state.files)[0].named(state.head) | young
    return replace(state, files=tuple(one for one in state.files if one[0] in kept))


def next_states(state: State) -> Iterator[tuple[str, State]]:
    for who, publisher in enumerate(state.publishers):
        if publisher.step != DONE:
            yield f"publisher {who} goes on from {publisher.step}", step(state, who)
        if publisher.step == WRITTEN and state.crashes < CRASHES:
            dead = replace(state, crashes=state.crashes + 1)
            yield (
                f"publisher {who} dies and is called again",
                with_publisher(dead, who, Publisher()),
            )
    if state.head is not None:
        swept = sweep(state)
        if swept != state:
            yield "a sweep", swept
    if state.now < 10 + TICKS:
        yield "a tick", replace(state, now=state.now + 1)


def explore() -> int:
    """Looks at every state. Raises Violation."""
    window_in.cache_clear()  # a mutant reads files differently
    first = State()
    seen, todo = {first.key()}, [first]
    while todo:
        state = todo.pop()
        try:
            for _, following in next_states(state):
                key = following.key()
                if key not in seen:
                    seen.add(key)
                    todo.append(following)
        except FileNotFoundError as error:
            raise Violation(f"a sweep has deleted ids that count: {error}") from error
        if all(p.step == DONE for p in state.publishers):
            missing = {one for call in CALLS for one in call} - {one for one, _ in state.log}
            if missing:
                raise Violation(f"{missing} were never published")
    return len(seen)


def test_no_interleaving_publishes_an_id_twice_or_loses_one() -> None:
    assert explore() > 1_000


def with_newest(window: IdWindow, ids: Mapping[bytes, Published]) -> IdWindow:
    """The window with other ids in its newest block."""
    newest, *older = window.blocks
    return IdWindow((IdBlock.of(newest.ref.name, ids), *older))


MUTANTS = [
    Mutant("an id of the same call is a duplicate", "", "IdWindow.duplicates",
           instead(lambda right, a: {
               at: met for at, one in enumerate(a.ids)
               for met in right(a.self, [one], a.since).values()})),
    Mutant("a duplicate is one of the message of its id", "", "IdWindow.duplicates",
           then(lambda found, a: {at: met + 1 for at, met in found.items()})),
    Mutant("a row is one of the commit of its block", "", "IdBlock.landed",
           gets(version=lambda a: a.version + 1)),
    Mutant("an id that was published is a duplicate", "", "IdWindow.duplicates",
           gets(self=IdWindow())),
    Mutant("an id counts until its window ends", "", "IdWindow.duplicates",
           gets(since=lambda a: a.since + 1)),
    Mutant("and no longer", "", "IdWindow.duplicates", gets(since=0)),
    Mutant("a block takes over what it replaces", "", "IdWindow.with_ids",
           then(lambda window, a: with_newest(window, {
               one: Published(a.now, row) for one, row in a.fresh.items()}))),
    Mutant("it takes over what has not expired", "", "IdWindow.with_ids",
           then(lambda window, a: with_newest(window, {
               one: place for one, place in window.blocks[0].ids.items()
               if place.at > a.since + 1}))),
    Mutant("larger blocks stay", "", "IdWindow.with_ids",
           then(lambda window, a: IdWindow(window.blocks[:1]))),
    Mutant("a block stays until its newest id has expired", "", "IdWindow.with_ids",
           gets(self=lambda a: IdWindow(tuple(
               block for block in a.self.blocks if block.ref.newest > a.since + 1)))),
    Mutant("a sweep keeps every block that the newest one names", "", "IdFiles.named",
           then(lambda paths, a: {block_path(a.head.name)})),
]  # fmt: skip


@pytest.mark.parametrize(
    "mutant", slow_but(MUTANTS[:1], MUTANTS), ids=[mutant.name for mutant in MUTANTS]
)
def test_no_rule_of_dedup_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        explore()
