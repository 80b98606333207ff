"""Random steps of writers that delegate, run each other's requests, die, and meet a cleaned log.

The requests and the log are real ones, in memory. The model knows which commit ran which request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import rule
from support.rule_variants import Variant, returns, then

from spark_mq.errors import CommitConflict
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.storage.commit_turn import SERVED, DelegatedRequest
from spark_mq.storage.delegated_commands import FOLDER, DelegationTurn
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.clock import system_clock

from .writers import WRITERS, Writers, check_missed

GROUP = "g"


@dataclass
class Writer:
    """A handle of its own, with at most one request."""

    table: LedgerTable
    turn: DelegationTurn | None = None
    leads: bool = False
    requests: Sequence[DelegatedRequest] = ()
    deletes: list[DelegatedRequest] = field(default_factory=list)


class Requests(Writers):
    """Three writers on one group."""

    def __init__(self) -> None:
        ticks = itertools.count(1)  # each file is older than the next
        super().__init__(GROUP, clock=lambda: system_clock() + timedelta(seconds=next(ticks)))
        self.revision = 1
        self.writers = [self.opened() for _ in range(3)]

    def opened(self) -> Writer:
        return Writer(self.opened_table())

    @rule(at=WRITERS)
    def step(self, at: int) -> None:
        """A writer delegates, looks, or commits: it does what comes next."""
        writer = self.writers[at]
        if writer.turn is None:
            self.delegate(at)
        elif writer.leads:
            self.commit(at)
        else:
            self.look(at)

    @rule(at=WRITERS)
    def step_twice(self, at: int) -> None:
        """It is faster than the others."""
        self.step(at)
        self.step(at)

    def delegate(self, at: int) -> None:
        """A writer that has lost races delegates its commands."""
        writer = self.writers[at]
        writer.table.log.refresh()
        writer.turn = DelegationTurn(writer.table.files, writer.table.log, [{"x": at}])
        writer.turn.delegate()

    def look(self, at: int) -> None:
        """It looks for commits and requests, and finds its outcome or leads."""
        writer = self.writers[at]
        assert writer.turn is not None
        listed = writer.turn._look()
        if writer.turn.request_id in writer.turn._ran:
            self.accepted.add(writer.turn.request_id)
            writer.turn = None
        elif writer.turn._is_turn(listed, 1e9):
            writer.leads = True
            writer.requests = writer.turn.requests_to_run()

    def commit(self, at: int) -> None:
        """It commits its own request and those that it has read."""
        writer = self.writers[at]
        assert writer.turn is not None
        writer.leads = False
        snapshot = writer.table.read(GROUP, refresh=False)
        writer.requests = writer.turn.not_run(writer.requests)
        if writer.turn.outcome is not None:
            self.accepted.add(writer.turn.request_id)
            writer.turn = None
            return
        turn, requests = writer.turn, writer.requests
        if self.write(writer, snapshot, [turn._request, *requests], {turn.request_id: None}):
            self.own[turn.request_id] += 1
            writer.deletes += [turn._request, *requests]
            writer.turn = None

    def write(
        self, writer: Writer, snapshot: LedgerSnapshot, requests: Sequence[DelegatedRequest],
        served: dict[str, Any],
    ) -> bool:  # fmt: skip
        """Commit requests. Return whether nobody was faster."""
        others = {one.request_id for one in requests} - served.keys()
        self.revision += 1
        try:
            writer.table.write(
                (snapshot, Ledger(LedgerHeader(revision=self.revision))),
                operation_id=f"op{self.revision}",
                note={"group": GROUP, SERVED: served | {key: ["done"] for key in others}},
            )
        except CommitConflict:
            return False
        self.ran.update(others)
        return True

    @rule(at=WRITERS)
    def another_thread_looks(self, at: int) -> None:
        """Its process works for other groups too."""
        self.writers[at].table.log.refresh()

    @rule(at=WRITERS)
    def delete(self, at: int) -> None:
        """Its thread deletes what its commits ran, late."""
        writer = self.writers[at]
        writer.table.files.delete_many([f"{FOLDER}/{one.name}" for one in writer.deletes])
        writer.deletes.clear()

    @rule(at=WRITERS)
    def die(self, at: int) -> None:
        """It dies. Its request stays, and so do the files that it had to delete."""
        self.writers[at] = self.opened()

    @rule()
    def clean(self) -> None:
        self.clean_log()


class Leaders(Requests):
    """Three writers, of which a thread makes more commits for others."""

    def __init__(self) -> None:
        super().__init__()
        self.led: dict[int, tuple[Writer, DelegationTurn, Sequence[DelegatedRequest]]] = {}

    def commit(self, at: int) -> None:
        writer, turn = self.writers[at], self.writers[at].turn
        super().commit(at)
        if turn is not None and self.own[turn.request_id] and writer.requests:
            self.led[at] = writer, turn, ()

    @rule(at=WRITERS)
    def lead(self, at: int) -> None:
        """The thread of a writer that ran requests of others looks for more, or commits them."""
        writer, turn, requests = self.led.pop(at, (None, None, ()))
        if writer is None or turn is None or writer is not self.writers[at]:
            return
        if not requests:
            turn.find_more_requests(0)
            if found := turn.requests_to_run():
                self.led[at] = writer, turn, found
            return
        snapshot = writer.table.read(GROUP, refresh=False)
        if self.write(writer, snapshot, turn.not_run(requests), {}):
            writer.deletes += requests
            self.led[at] = writer, turn, ()


TestRequests = Requests.TestCase
TestRequests.settings = settings(
    max_examples=15 * settings.default.max_examples // 8, stateful_step_count=40
)
TestLeaders = Leaders.TestCase
TestLeaders.settings = settings(
    max_examples=3 * settings.default.max_examples // 4, stateful_step_count=40
)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("DelegationTurn._known_after", returns(-1)),
        ("CommitTurn._read_note", returns(None)),
        ("CommitTurn.not_run", then(lambda new, a: a.requests)),
    ],
)
def test_no_rule_can_be_missed(name: str, variant: Variant) -> None:
    check_missed(Requests, name, variant, "ran")


def test_a_request_that_a_cleaned_commit_ran_is_not_run_again() -> None:
    """A leader whose ledger was cleaned reads a newer one, and misses a note in between."""
    requests = Requests()
    requests.step(0)
    requests.step(1)
    requests.step_twice(2)  # it has read the requests of the others
    requests.step(1)
    requests.step_twice(1)  # runs the request of 0
    requests.step_twice(1)
    requests.clean()
    requests.step(2)
    requests.nobody_runs_a_request_twice()
