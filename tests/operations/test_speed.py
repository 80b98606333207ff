"""The time of a lease and of an ack beside the same change of the same ledger by delta-rs.

Counts (test_cost) do not see code that became slow. A time means nothing without another one of the
same run. On a busy machine the best of many rounds is about what it is on an idle one, except for
delta-rs, which works in threads. So delta-rs counts by its CPU time.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest
from support.blocks import ROOT

MEMORY = Path("/dev/shm")
"""A disk in memory, because each other one has its own time for a sync."""
BLOCKS = 10
USUAL = {"lease synced": 4.8, "ack synced": 7.6}
"""How many times as fast as delta-rs. Ten runs, most of them on a busy machine, saw 4.3 to 4.9 and
7.0 to 8.1. Runs with a commit that took 1.3 ms longer saw 2.1 to 2.7 and 2.7 to 3.2.
"""


@pytest.mark.slow
@pytest.mark.skipif(not MEMORY.is_dir(), reason="this system has no disk in memory")
def test_leases_and_acks_keep_their_speed_beside_delta_rs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        times = importlib.import_module("commit_path").rounds(Path(folder), BLOCKS)
    other = min(times["delta-rs, CPU"])
    ratios = {name: other / min(times[name]) for name in USUAL}
    slow = [name for name, usual in USUAL.items() if ratios[name] < usual / 2]
    assert not slow, f"{ratios}, where {USUAL} is usual"
