"""A foreign Delta writer's deliver_at counts like ours, with statistics and without."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.tables import messages_of

from spark_mq import Queue
from spark_mq.testing import ManualClock


@pytest.mark.parametrize("with_statistics", [True, False])
def test_what_a_foreign_writer_delays_is_delayed(tmp_path: Path, with_statistics: bool) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    queue = Queue.create(tmp_path / "q", clock=clock)
    later = clock() + timedelta(seconds=30)
    rows: dict[str, Any] = {
        "value": [b"late", b"now"],
        "deliver_at": pa.array([later, None], pa.timestamp("us", "UTC")),
    }
    write_deltalake(messages_of(queue).path, pa.table(rows), mode="append", schema_mode="merge")
    if not with_statistics:
        commit = Path(messages_of(queue).path, "_delta_log", f"{1:020d}.json")
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
        queue = Queue.open(queue.path, clock=clock)
    group = queue.group()
    lease = group.lease("w", max_messages=10, auto_ack=True)
    assert [m.value for m in lease.messages] == [b"now"]
    assert group.stats().delayed == 1
    clock.advance(30)
    lease = group.lease("w", max_messages=10)
    assert [m.value for m in lease.messages] == [b"late"]
