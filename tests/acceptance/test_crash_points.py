"""Kill a real process before and after each commit and each file that an operation writes.

Then restart, drain and check the queue.

A run that does not die reports the points, so their list cannot grow stale. ``WANTED`` has those
that there must be at least.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from crash_points import CASES, Case, StoredCheckpoint, child, run
from support.checker import check, check_queue, dead_letters, history, published
from support.handles import lease, leased
from support.order_checker import check_order_of_queue, keys_of
from support.tables import messages_of

from spark_mq import Queue, errors

pytestmark = pytest.mark.usefixtures("failing_calls")

PUBLISH = ["replace of a data file of messages/", "commit 'publish' of messages/"]
OF_LEDGERS = {"group": "create group", "seek": "seek", "configure": "configure",
              "drop": "drop group", "unblock": "unblock: drop", "expire": "expire"}  # fmt: skip
"""What the only commit of a case does to the ledgers."""
WANTED = {
    **dict.fromkeys(("publish", "publish with a producer's number", "buffered publisher"), PUBLISH),
    **{name: [f"commit '{commit}' of leases/"] for name, commit in OF_LEDGERS.items()},
    "lease and extend": [
        f"commit '{verb}' of leases/" for verb in ("create group", "lease", "extend")],
    "settle": [f"commit '{verb}' of leases/" for verb in ("ack", "nack", "reject", "release")],
    "work": [f"commit '{name}' of leases/" for name in ("lease", "ack+lease", "ack")],
    "checkpoint": ["commit 'lease' of leases/", "commit 'ack' of leases/",
        "replace of a checkpoint of leases/", "replace of a hint of leases/"],
    "purge": ["commit 'seek' of leases/", "commit 'trim' of leases/", "commit 'trim' of messages/",
        "unlink of a data file of messages/"],
    "route": ["commit 'freeze dead' of leases/", "commit 'route' of messages/",
        "commit 'routed' of leases/"],
    "redrive": ["commit 'freeze redrive' of leases/", "commit 'redrive' of messages/",
        "commit 'redriven' of leases/"],
    "trim": ["commit 'trim' of leases/", "commit 'trim' of messages/",
        "unlink of a data file of messages/"],
    "index": ["creation of commits/", "replace of a data file of commits/",
        "commit 'index commits' of commits/"],
    "archive": ["creation of history/", "commit 'archive' of history/"],
    "housekeeping": [
        *(f"replace of a {what} of {table}/" for what in ("checkpoint", "hint")
          for table in ("messages", "leases")),
        "unlink of a data file of leases/", "unlink of a commit of leases/",
    ],
    "sweep": ["commit 'route' of messages/", "commit 'index commits' of commits/",
        "commit 'archive' of history/"],
    "stream": ["commit 'lease' of leases/", "commit 'ack' of leases/", "checkpoint's offset",
        "checkpoint's sink", "checkpoint's commit"],
    "ordered stream": ["commit 'lease' of leases/", "commit 'nack' of leases/",
        "commit 'ack' of leases/", "checkpoint's offset", "checkpoint's sink",
        "checkpoint's commit"],
}  # fmt: skip


def prepared(case: Case, folder: Path) -> tuple[Path, Path]:
    """Make the queue of a case, and a copy of it."""
    settings = {"visibility_timeout": "10m", "retry_delay": "1s", **(case.settings or {})}
    case.prepare(Queue.create(folder / "queue", **settings))
    return folder / "queue", Path(shutil.copytree(folder / "queue", folder / "template"))


def drain(queue: Queue) -> None:
    """Drain each group after all leases have run out, and run the chores."""
    for name in {"default", *queue.groups()}:
        queue.group(name).work(lambda lease: None, mode="batch", max_messages=100, until="empty")
    queue.sweep()


# Odd, so that some of them lie before a call and some after one. `make fault` kills at each.
SOME = 75
MORE = 1 if os.environ.get("CRASHES") == "all" else 5


@pytest.mark.parametrize(
    "step", [pytest.param(SOME, id="some"), pytest.param(MORE, id="more", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_killed_at_every_point_nothing_is_lost_and_nothing_owned_twice(
    case: Case, step: int, tmp_path: Path
) -> None:
    path, template = prepared(case, tmp_path)
    code, reported = run(child, case.name, str(path), None)
    assert code == 0
    points = reported["points"]
    for wanted in WANTED[case.name]:
        assert {f"before {wanted}", f"after {wanted}"} <= set(points), points
    found: Counter[str] = Counter()
    for at, point in list(enumerate(points))[len(points) // 2 % step :: step]:
        shutil.rmtree(path)
        shutil.copytree(template, path)
        code, reported = run(child, case.name, str(path), at)
        assert code == -signal.SIGKILL, f"it did not die {point} (number {at})"
        found += checked(case, path, reported["reported"], f"killed {point} (number {at})")
    print(f"{case.name}: {len(points)} points, {dict(found)}")


def checked(case: Case, path: Path, reported: list[int], killed: str) -> Counter[str]:
    """Restarts, drains, and checks the tables."""
    later = partial(case.opened, path, 7200)
    before = set(published(path))
    assert set(reported) <= before, f"{killed}: what was confirmed is not there"
    if case.repeated:
        case.act(later(), lambda _: None)
    drain(later())
    # A clock that is 2 hours ahead of the one that dates commits expires the killed one's lease.
    groups = [name for name in later().groups() if name != "late"]
    rows, sequences = history(path), set(published(path)) | before
    if case.name == "drop":
        rows = [row for row in rows if row["consumer_group"] != "other"]
        groups = ["default"]
    found = check(sequences, rows, skew=timedelta(hours=-4), drained=groups)
    assert found.wrong == [], f"{killed}: {found.wrong}"
    EXTRA.get(case.name, lambda *_: None)(later(), path, killed)
    return found.counts


# -- what else must be


def all_or_nothing(queue: Queue, path: Path, killed: str) -> None:
    assert len(published(path)) in (0, 5), killed


def each_number_once(queue: Queue, path: Path, killed: str) -> None:
    assert len(published(path)) == 12, killed
    assert queue.last_producer_sequence("p") == 2, killed


def routed_once(queue: Queue, path: Path, killed: str) -> None:
    assert check_queue(path, skew=timedelta(hours=-4), drained=[]).wrong == [], killed
    routed = Counter(group for group, _ in dead_letters(path))
    assert routed == {"default": 4, "other": 4}, killed
    assert set(dead_letters(path).values()) == {1}, killed


def redriven_once(queue: Queue, path: Path, killed: str) -> None:
    assert len(published(path)) == 12 + 8, killed
    redriven = queue.dead_letters.group("spark_mq.redrive")
    assert not redriven.exists() or redriven.stats().ready in (0, 8), killed


def all_gone(queue: Queue, path: Path, killed: str) -> None:
    left = Path(path, "messages").rglob("*.parquet")
    assert [p for p in left if p.parent.name != "_delta_log"] == [], killed
    assert queue.horizon() == messages_of(queue).index().last_sequence, killed


def dropped(queue: Queue, path: Path, killed: str) -> None:
    """Check that it is gone or as it was. Then a new one of its name starts at the beginning."""
    with contextlib.suppress(errors.GroupNotFound):
        queue.drop_group("other")
    assert queue.groups() == ["default"], killed
    assert len(lease(queue, 100, "other")) == 12, killed


def delivered_once(queue: Queue, path: Path, killed: str) -> None:
    """With an idempotent sink, each message lands once across one crash."""
    landed = Counter(seq for rows in StoredCheckpoint.of(queue).sink.values() for seq in rows)
    assert sorted(landed) == sorted(published(path)), killed
    assert set(landed.values()) == {1}, killed


def in_order(queue: Queue, path: Path, killed: str) -> None:
    """Each message lands once, each key in order, and no lease broke the order on the way."""
    delivered_once(queue, path, killed)
    sink = StoredCheckpoint.of(queue).sink
    landed = [seq for n in sorted(sink, key=int) for seq in sink[n]]
    slots = keys_of(path)
    for slot in set(slots.values()):
        mine = [seq for seq in landed if slots[seq] == slot]
        assert mine == sorted(mine), f"{killed}: {slot} landed as {mine}"
    found = check_order_of_queue(path, ["default"])
    assert found.wrong == [], f"{killed}: {found.wrong}"
    assert found.counts["holds"] >= len(slots), killed


def small(queue: Queue, path: Path, killed: str) -> None:
    """Run again, housekeeping leaves no more than in a queue in which nobody died."""
    queue.sweep()
    left = [p.name for p in Path(path, "leases", "_delta_log").iterdir() if p.suffix == ".json"]
    assert len(left) < 30, f"{killed}: {len(left)}"


EXTRA = {
    "publish": all_or_nothing,
    "publish with a producer's number": each_number_once,
    "route": routed_once,
    "sweep": routed_once,
    "redrive": redriven_once,
    "trim": all_gone,
    "purge": all_gone,
    "drop": dropped,
    "stream": delivered_once,
    "ordered stream": in_order,
    "housekeeping": small,
}


def test_a_queue_whose_creation_was_killed_can_be_created(tmp_path: Path) -> None:
    code, reported = run(child, None, str(tmp_path / "whole"), None)
    assert code == 0
    points = reported["points"]
    created = [p for p in points if p.startswith("before creation") and p.endswith("/")]
    assert created == ["before creation of messages/", "before creation of leases/"] * 2
    for at, point in enumerate(points):
        if point.startswith("after") and at + 1 < len(points):
            continue  # nothing changes until the next step, so the disk is as before that
        path = tmp_path / str(at)
        assert run(child, None, str(path), at)[0] == -signal.SIGKILL, point
        use(path, point)


def use(path: Path, where: str) -> None:
    """Create the queue if need be, and use it."""
    queue = Queue.create(path, exist_ok=True)
    assert leased(queue, "a").ack().settled == 1, where
    assert queue.dead_letters.stats()["published"] == 0, where
