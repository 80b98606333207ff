"""Random steps of writers in the line of a local disk, who die, freeze, and pass a frozen one.

The line, the requests and the log are real ones. The model knows which commit ran which request,
and who is dead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from support.limits import Limits
from support.rule_variants import Variant, instead, returns, then

from spark_mq.errors import CommitConflict
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.storage.commit_turn import GROUPS as LEDGERS
from spark_mq.storage.commit_turn import SERVED, DelegatedRequest, note_of_groups
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.local_turn import LocalTurn

from .writers import WRITERS, Writers, check_missed

GROUPS = ("g", "h")


@dataclass
class Writer:
    """A process, with at most one turn."""

    table: LedgerTable
    turn: LocalTurn | None = None
    is_first: bool = False  # or goes on without the line, after a conflict
    requests: Sequence[DelegatedRequest] | None = None
    ran: Sequence[DelegatedRequest] | None = None  # in its commit, whose answers are not given yet


class Line(Writers):
    """Three processes on two groups of a local disk."""

    def __init__(self) -> None:
        super().__init__(*GROUPS)
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.commits = 0
        self.changes: Counter[str] = Counter(GROUPS)  # by group
        self.dead: set[str] = set()
        self.for_the_dead: set[str] = set()  # read by others after the death
        self.writers = [self.opened() for _ in range(3)]

    def teardown(self) -> None:
        for writer in self.writers:
            if writer.turn is not None:
                kill(writer.turn)
        shutil.rmtree(self.folder)

    def opened(self) -> Writer:
        return Writer(self.opened_table())

    @rule(at=WRITERS)
    def step(self, at: int) -> None:
        """A process does what comes next. One whose turn never comes is frozen."""
        writer = self.writers[at]
        if writer.turn is None:
            self.stand_in_line(at)
        elif not writer.is_first:
            self.look(at)
        elif writer.requests is None:
            writer.requests = writer.turn.requests_to_run()
            self.for_the_dead |= {request.request_id for request in writer.requests} & self.dead
        elif writer.ran is None:
            self.commit(at)
        else:
            self.answer(at)

    @rule(at=WRITERS)
    def three_steps(self, at: int) -> None:
        """It is faster than the others."""
        for _ in range(3):
            self.step(at)

    def stand_in_line(self, at: int) -> None:
        writer = self.writers[at]
        path, command = f"{self.folder}/line", [GROUPS[at % 2], {"x": at}]
        turn = LocalTurn(path, writer.table.log, lambda: [command])
        writer.turn = turn
        writer.is_first = turn._step_up()
        if not writer.is_first:
            turn.wait(0.0)

    def look(self, at: int) -> None:
        """It finds its outcome, or the line free."""
        writer = self.writers[at]
        assert writer.turn is not None
        writer.turn.wait(0.0)
        if writer.turn.outcome is not None:
            self.accept(at)
        elif writer.turn.is_first:
            writer.is_first = True

    @rule(at=WRITERS)
    def pass_the_holder(self, at: int) -> None:
        """It has waited for long enough."""
        writer = self.writers[at]
        if writer.turn is not None and not writer.is_first:
            writer.turn._pass_holder()
            self.look(at)

    @rule(at=WRITERS)
    def lose_patience(self, at: int) -> None:
        """It goes on without the line, as one on a disk without locks."""
        writer = self.writers[at]
        if writer.turn is not None and not writer.is_first:
            writer.is_first = True

    def accept(self, at: int) -> None:
        turn = self.writers[at].turn
        assert turn is not None
        assert turn._request is not None
        self.accepted.add(turn._request.request_id)
        turn.close()
        self.writers[at] = Writer(self.writers[at].table)

    def commit(self, at: int) -> None:
        writer = self.writers[at]
        turn, requests = writer.turn, writer.requests
        assert turn is not None
        assert requests is not None
        own = GROUPS[at % 2]
        groups = list(
            dict.fromkeys([own, *(group for each in requests for group, _ in each.commands)])
        )
        snapshots = [writer.table.read(group) for group in groups]
        requests = turn.not_run(requests)
        if turn.outcome is not None:
            self.accept(at)
            return
        self.commits += 1
        operation_id = f"op{self.commits}"
        served: dict[str, Any] = {request.request_id: ["done"] for request in requests}
        note = note_of_groups([{"group": group} for group in groups])
        note[SERVED] = {**turn.own_outcome, **served}
        # Another process may commit meanwhile.
        if self.between is not None:
            between, self.between = self.between, None
            between()
        try:
            writer.table.write(
                *((snapshot, next_ledger(snapshot)) for snapshot in snapshots),
                operation_id=operation_id,
                note=note,
            )
        except CommitConflict:
            writer.requests = None
            return
        self.changes.update(groups)
        self.own.update(own_id(turn))
        self.ran.update(served.keys())
        writer.ran = requests

    between: Callable[[], object] | None = None

    @rule(at=WRITERS, other=WRITERS)
    def meet(self, at: int, other: int) -> None:
        """Two holders commit at the same time."""
        both = self.writers[at], self.writers[other]
        if at != other and all(
            writer.requests is not None and writer.ran is None for writer in both
        ):
            self.between = lambda: self.commit(other)
            self.commit(at)
            self.between = None

    @rule(at=WRITERS, other=WRITERS)
    def be_passed(self, at: int, other: int) -> None:
        """A writer loses patience while the holder commits."""
        if other != at and self.writers[at].requests is not None:
            self.lose_patience(other)
            if self.writers[other].is_first and self.writers[other].requests is None:
                self.step(other)
            self.meet(at, other)

    def answer(self, at: int) -> None:
        writer = self.writers[at]
        assert writer.turn is not None
        assert writer.ran is not None
        writer.turn.close(writer.ran)
        self.writers[at] = Writer(writer.table)

    @rule(at=WRITERS)
    def die(self, at: int) -> None:
        """It dies, perhaps between its commit and its answers. The system frees its locks."""
        turn = self.writers[at].turn
        if turn is not None:
            kill(turn)
            self.dead |= own_id(turn)
        self.writers[at] = self.opened()

    @rule(often=st.integers(0, 9))
    def clean(self, often: int) -> None:
        if not often:
            self.clean_log()

    @invariant()
    def no_change_is_lost(self) -> None:
        files = {group: len(paths) for group, paths in dict[str, Any](self.observer.tags()).items()}
        assert files == dict.fromkeys(GROUPS, 1), "a change is lost"
        ledgers = [self.observer.read(group).ledger for group in GROUPS]
        revisions = [-1 if ledger is None else ledger.head.revision for ledger in ledgers]
        assert revisions == [self.changes[group] for group in GROUPS], "a change is lost"

    @invariant()
    def nobody_runs_what_a_dead_writer_wanted(self) -> None:
        """A delivery would be counted that nobody gets."""
        assert not self.for_the_dead


def next_ledger(snapshot: LedgerSnapshot) -> Ledger:
    assert snapshot.ledger is not None
    return Ledger(LedgerHeader(revision=snapshot.ledger.head.revision + 1))


def own_id(turn: LocalTurn) -> set[str]:
    return set() if turn._request is None else {turn._request.request_id}


def kill(turn: LocalTurn) -> None:
    """Do what the system does with the files of a dead process."""
    for file in (turn._line, turn._file):
        if file is not None:
            file.close()


@pytest.fixture(autouse=True)
def at_once(limits: Limits) -> None:
    limits(line_gather=0.0, line_poll=0.0)


TestLine = Line.TestCase
TestLine.settings = settings(
    max_examples=5 * settings.default.max_examples // 4, stateful_step_count=40
)


@pytest.mark.parametrize(
    ("name", "variant", "broken"),
    [
        # A holder that died after its commit, or was passed, and a commit that lost a race.
        ("LocalTurn.not_run", then(lambda new, a: a.requests), "ran"),
        ("CommitTurn._read_note", returns(None), "ran"),
        # A reader that follows one group, and knows no commit to several.
        (
            "CommitTurn._read_note",
            instead(lambda right, a: None if LEDGERS in a.note else right(**vars(a))),
            "ran",
        ),
        # A conflict check that looks at the first group of a commit.
        (
            "Commit.conflict_with",
            instead(
                lambda right, a: right(
                    a.self,
                    replace(
                        a.change,
                        partitions=a.change.partitions[:1],
                        removes=a.change.removes[:1],
                    ),
                )
            ),
            "ran|lost",
        ),
        # A frozen holder runs the request of a writer that has passed it.
        ("CommitTurn.own_outcome", returns({}), "ran"),
        # A writer that takes the line although a commit ran its commands.
        ("CommitTurn._read_note", then(lambda _, a: setattr(a.self, "outcome", None)), "ran"),
        # A writer that died while it waited.
        (
            "local_turn:_lock",
            instead(lambda right, a: a.kind is None and right(**vars(a))),
            "dead",
        ),
    ],
)
def test_no_rule_can_be_missed(name: str, variant: Variant, broken: str) -> None:
    check_missed(Line, name, variant, broken)
