"""Writers on one log in memory who run each other's requests.

The requests and the log are real ones. The machine knows which commit ran which request.
"""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from support.limits import keeping
from support.rule_variants import Variant, rule_variant

from spark_mq.delta.memory_files import MemoryFiles
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.storage.commit_turn import note_of_groups
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.clock import Clock, system_clock

RANGES = {"at": 3, "other": 3, "often": 10}
"""How many values each argument of a rule has."""
WRITERS = st.integers(0, 2)


class Writers(RuleBasedStateMachine):
    """Three writers, and groups that they change."""

    def __init__(self, *groups: str, clock: Clock = system_clock) -> None:
        super().__init__()
        self.files = MemoryFiles(clock)
        self.ran: Counter[str] = Counter()  # by other writers
        self.own: Counter[str] = Counter()  # by their own writers
        self.accepted: set[str] = set()
        self.cleaned = False
        self.observer = self.opened_table()
        self.observer.create("test")
        self.observer.write(
            *((self.observer.read(group), Ledger(LedgerHeader(revision=1))) for group in groups),
            operation_id="first",
            note=note_of_groups([{"group": group} for group in groups]),
        )

    def opened_table(self) -> LedgerTable:
        return LedgerTable(f"{self.files.root}/leases")

    def clean_log(self) -> None:
        """Delete all commits but the last, as the sweep does."""
        with keeping(0, 0.0):
            self.opened_table().clean(archived=2**62)
        self.cleaned = True

    @invariant()
    def nobody_runs_a_request_twice(self) -> None:
        """Only a writer whose outcome was cleaned away runs its own request again."""
        twice = "a request ran twice"
        assert max(self.ran.values(), default=0) <= 1, twice
        assert max(self.own.values(), default=0) <= 1, twice
        assert self.cleaned or not self.ran.keys() & self.own.keys(), twice

    @invariant()
    def an_outcome_is_of_a_commit(self) -> None:
        assert self.accepted <= self.ran.keys(), "the request of an outcome never ran"


def check_missed(machine: type[Writers], name: str, variant: Variant, broken: str) -> None:
    """Check that a machine breaks without the right version of a rule."""
    with rule_variant(name, variant), pytest.raises(AssertionError, match=broken):
        walk(machine, range(200))


def walk(machine: type[Writers], seeds: Iterable[int]) -> None:
    """Take random steps, most often those that take a writer further.

    Hypothesis tries many odd walks first.
    """
    for chance in map(random.Random, seeds):
        writers = machine()
        rules = [rule.function for rule in writers.rules]
        weights = [4 if "step" in rule.__name__ else 1 for rule in rules]
        try:
            for rule in chance.choices(rules, weights, k=40):
                given = list(inspect.signature(rule).parameters)[1:]
                rule(writers, **{name: chance.randrange(RANGES[name]) for name in given})
                for each in writers.invariants:
                    each.function(writers)
        finally:
            writers.teardown()
