"""Every interleaving of small worlds: the real ledger and the real rules of the source, over the
in-memory twin, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.marks import slow_but

from spark_mq.spark import settle_rows as settle

from .actors import frame_verdicts
from .explorer import Violation, explore
from .mutants import ALL, Mutant
from .scenarios import MOST_STATES, SLOW, TOO_LARGE, WORLDS
from .storage import deterministic


@pytest.fixture(autouse=True)
def _same_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settle, "verdicts_of", frame_verdicts)
    with deterministic():
        yield


@pytest.mark.parametrize("name", slow_but(WORLDS.keys() - SLOW, WORLDS))
def test_no_interleaving_breaks_a_promise(name: str, request: pytest.FixtureRequest) -> None:
    large = request.config.getoption("--large-worlds")
    if name in TOO_LARGE and not large:
        pytest.skip("too large to be explored whole: make worlds WORLD=" + name)
    world = WORLDS[name](large)
    if not large:
        world.most = world.most or MOST_STATES
    found = explore(world)
    print(f"{name}: {found}")
    assert found.finished


# One for each world is enough for every day.
LONG = ("restored",)  # even a mutant is found in this world only after 10 seconds
FIRST = {mutant.world: mutant for mutant in reversed(ALL)}.values()


@pytest.mark.parametrize(
    "mutant", slow_but([m for m in FIRST if m.world not in LONG], ALL), ids=[m.rule for m in ALL]
)
def test_no_rule_can_be_missed(mutant: Mutant) -> None:
    """Without any one rule, the world that is named beside it comes to a state that breaks a
    promise.
    """
    with mutant.applied(), pytest.raises(Violation):
        explore(WORLDS[mutant.world](False))
