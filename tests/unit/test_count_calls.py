"""How many calls between modules one message costs.

``scripts/count-calls`` prints the same figures.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "count-calls"
BELOW = {"ledger", "storage", "delta", "parquet", "util"}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        # As in a program without telemetry, also after the tests of telemetry.
        patch.delitem(sys.modules, "opentelemetry", raising=False)
        found: dict[str, Counter[Any]] = runpy.run_path(str(SCRIPT))["measure"](
            str(tmp_path_factory.mktemp("calls"))
        )
    return found


@pytest.mark.parametrize(
    ("step", "most"), [("latestOffset", 126), ("lease", 239), ("ack", 144), ("sweep", 1862)]
)
def test_no_step_gets_longer(steps: dict[str, Counter[Any]], step: str, most: int) -> None:
    assert 0 < steps[step].total() <= most


@pytest.mark.parametrize(("step", "most"), [("lease", 50), ("ack", 22), ("sweep", 260)])
def test_the_way_above_the_rules_and_the_storage_is_short(
    steps: dict[str, Counter[Any]], step: str, most: int
) -> None:
    own = sum(
        number
        for (caller, _, _), number in steps[step].items()
        if caller.split(".")[0] not in BELOW
    )
    assert 0 < own <= most
