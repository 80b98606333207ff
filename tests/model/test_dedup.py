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
from support.rule_variants import gets, instead, then

from spark_mq.delta.object_store import ObjectStore
from spark_mq.storage.id_files import IdBlock, IdFiles, IdWindow, block_path

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
    read: int | None = None
    window: IdWindow | None = None
    duplicates: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    head: int | None = None
    files: Files = ()
    log: tuple[tuple[bytes, int], ...] = ()
    """Each id that was published, and when."""
    now: int = 10
    names: int = 0
    crashes: int = 0
    publishers: tuple[Publisher, ...] = tuple(Publisher() for _ in CALLS)

    def key(self) -> Any:
        """Equal for states with the same future: names of blocks, and files of the dead, do not
        count.
        """
        blocks = window_in(self.head, self.files).blocks
        known = tuple(tuple(sorted(block.ids.items())) for block in blocks)
        procs = tuple((p.step, p.began, p.read == self.head, p.duplicates) for p in self.publishers)
        return known, tuple(sorted(self.log)), self.now, self.crashes, procs


def ids_in(files: Files) -> tuple[IdFiles, ObjectStore]:
    """The files as a new process finds them."""
    store = memory_store()
    for path, data in files:
        store.write(path, data)
    return IdFiles(store), store


@functools.cache
def window_in(head: int | None, files: Files) -> IdWindow:
    return ids_in(files)[0].load(head)


def step(state: State, who: int) -> State:
    """One read or write of a publisher."""
    own, call = state.publishers[who], CALLS[who]
    if own.step == IDLE:
        window = window_in(state.head, state.files)
        began = own.began or state.now
        duplicates = window.duplicates(call, began - WINDOW)
        for at in duplicates:
            recent = [t for one, t in state.log if one == call[at] and t > began - WINDOW]
            if not recent and call[at] not in call[:at]:
                raise Violation(f"{call[at]!r} counts as a duplicate, and was not published")
        done = len(duplicates) == len(call)
        own = Publisher(DONE if done else CHECKED, began, state.head, window, duplicates)
    elif own.step == CHECKED:
        assert own.window is not None
        fresh = [one for at, one in enumerate(call) if at not in own.duplicates]
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
            before = [t for other, t in state.log if other == one and t > state.now - WINDOW]
            if before or one in fresh[:at]:
                raise Violation(f"{one!r} is published twice within its window")
        assert own.window is not None
        state = replace(
            state,
            head=own.window.blocks[0].ref.name,
            log=(*state.log, *((one, own.began) for one in fresh)),
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


def with_newest(window: IdWindow, ids: Mapping[bytes, int]) -> IdWindow:
    """The window with other ids in its newest block."""
    newest, *older = window.blocks
    return IdWindow((IdBlock.of(newest.ref.name, ids), *older))


MUTANTS = [
    Mutant("an id of the same call is a duplicate", "", "IdWindow.duplicates",
           instead(lambda right, a: tuple(
               at for at, one in enumerate(a.ids) if right(a.self, [one], a.since)))),
    Mutant("an id that was published is a duplicate", "", "IdWindow.duplicates",
           gets(self=IdWindow())),
    Mutant("an id counts until its window ends", "", "IdWindow.duplicates",
           gets(since=lambda a: a.since + 1)),
    Mutant("and no longer", "", "IdWindow.duplicates", gets(since=0)),
    Mutant("a block takes over what it replaces", "", "IdWindow.with_ids",
           then(lambda window, a: with_newest(window, dict.fromkeys(a.fresh, a.now)))),
    Mutant("it takes over what has not expired", "", "IdWindow.with_ids",
           then(lambda window, a: with_newest(window, {
               one: at for one, at in window.blocks[0].ids.items() if at > a.since + 1}))),
    Mutant("larger blocks stay", "", "IdWindow.with_ids",
           then(lambda window, a: IdWindow(window.blocks[:1]))),
    Mutant("a block stays until its newest id has expired", "", "IdWindow.with_ids",
           gets(self=lambda a: IdWindow(tuple(
               block for block in a.self.blocks if block.ref.newest > a.since + 1)))),
    Mutant("a sweep keeps every block that the newest one names", "", "IdFiles.named",
           then(lambda paths, a: {block_path(a.head)})),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_rule_of_dedup_can_be_missed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        explore()
