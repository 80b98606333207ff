"""Every interleaving of small worlds: the real ledger and the real rules of the source, over the
in-memory twin, without Spark.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from support.marks import slow_but
from support.rule_variants import gets, returns, rule_variant, then

from spark_mq.ledger import schedule, settle, transitions
from spark_mq.ledger.ranges import Range

from .actors import frame_verdicts
from .explorer import Violation, explore
from .mutants import ALL, Mutant
from .scenarios import MOST_STATES, SLOW, TOO_LARGE, WORLDS
from .storage import deterministic
from .tables import DOUBLES


@pytest.fixture(autouse=True)
def _same_each_time() -> Iterator[None]:
    with rule_variant("verdicts_of", lambda right: frame_verdicts), deterministic():
        yield


@pytest.mark.parametrize("name", slow_but(WORLDS.keys() - SLOW, WORLDS))
def test_no_interleaving_breaks_a_promise(name: str, request: pytest.FixtureRequest) -> None:
    large = request.config.getoption("--large-worlds")
    if name in TOO_LARGE and not large:
        pytest.skip("too large to be explored whole: make worlds WORLD=" + name)
    world = WORLDS[name](int(large))
    world.most = None if large else world.most or MOST_STATES
    found = explore(world)
    print(f"{name}: {found}")
    assert found.finished


LEFT_OUT = SLOW | TOO_LARGE | {"restored"}  # there it takes 10 seconds to find even a mutant
FIRST = {m.world: m for m in reversed(ALL) if m.world not in LEFT_OUT}.values()
"""One for each world that is explored every day."""


@pytest.mark.parametrize("mutant", slow_but(FIRST, ALL), ids=[m.name for m in ALL])
def test_no_rule_can_be_missed(mutant: Mutant) -> None:
    """Without any one rule, the world that is named beside it comes to a state that breaks a
    promise.
    """
    with mutant.applied(), pytest.raises(Violation):
        explore(WORLDS[mutant.world](0))


@pytest.mark.parametrize("double", DOUBLES)
def test_a_table_in_memory_has_the_parameters_of_the_real_one(double: type) -> None:
    def shape(method: Any) -> list[Any]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]

    for name, method in vars(double).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert shape(method) == shape(getattr(DOUBLES[double], name)), name


def test_each_mutant_finds_its_rule() -> None:
    """Most of them run in make test-all only, long after a rule was renamed."""
    for mutant in ALL:
        with mutant.applied():
            pass


def test_a_mutant_replaces_its_rule_everywhere_and_for_a_while() -> None:
    places = (transitions, settle, schedule)
    right = transitions.is_late
    with rule_variant("is_late", returns(True)):
        assert all(place.is_late is not right and place.is_late(None) for place in places)
    assert all(place.is_late is right for place in places)


def test_a_mutant_fails_if_its_rule_has_gone() -> None:
    for gone in ("no_rule", "LeaseWalker.no_rule"):
        with pytest.raises(AssertionError, match="no rule"), rule_variant(gone, returns(True)):
            pass


def test_a_mutant_fails_if_it_does_not_fit_its_rule() -> None:
    for variant in (gets(later=1), then(lambda late, a: a.later)):
        misfit = pytest.raises(AssertionError, match="does not fit")
        with misfit, rule_variant("is_late", variant), pytest.raises(Exception, match="later"):
            transitions.is_late(Range(1, 1, "leased", 1), 0, None)
