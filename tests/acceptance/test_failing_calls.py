"""Each call of the C library on a queue's files fails, fails after it has done its work, as over
NFS, or is the last one of its process.

`make test` tries a few of them, the slow tests some more. ``TRIES=100`` tries so many of each case
and kind of fault, and ``TRIES=10000`` all.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_points import CASES, Case, publish, take
from failing_calls import Try, attempt
from support.handles import take_all
from support.tables import put_back
from test_crash_points import checked, prepared, use

from spark_mq import Queue

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.usefixtures("failing_calls"),
]

CHANGES = {"open64", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir", "close"}
"""The calls that can fail after their work."""
CHORES = {"route", "trim", "index", "archive", "housekeeping"}
"""Parts of a sweep, which turns the errors of the store into its own."""
ONE_COMMIT = {"publish", "seek", "configure", "unblock", "expire"}
"""Cases of a single commit: if nothing landed, no log has a new entry."""


def entries(path: Path) -> set[str]:
    """The names of all entries of the logs."""
    return {str(file.relative_to(path)) for file in path.rglob("_delta_log/*.json")}


def tries(case: str | None, path: Path, template: Path, count: int) -> Iterator[tuple[Try, str]]:
    """Run a case so many times for each kind of fault, at another call each time."""
    whole = attempt(case, path)
    assert not whole.error, whole.error
    assert len(whole.calls) > 40, whole.calls
    every = range(len(whole.calls))
    changes = [at for at in every if whole.calls[at].split()[0] in CHANGES]
    for mode, calls in (("fails", every), ("fails after its work", changes), ("kills", every)):
        step = max(1, len(calls) // count)
        for at in calls[step // 2 :: step]:
            shutil.rmtree(path, ignore_errors=True)
            if template.exists():
                shutil.copytree(template, path)
            found = attempt(case, path, at=at, mode=mode, number=errno.EIO)
            call = found.calls[at] if at < len(found.calls) else whole.calls[at]
            where = f"{case}: call {at}, {call}, {mode}"
            assert mode == "kills" or found.exit_code == 0, where
            yield found, where


def check_error(
    found: Try, where: str, entries_before: set[str] | None, path: Path, *, chore: bool = False
) -> str:
    """Check that a failure is a StorageError that is true. Return what it said."""
    error = found.error
    if not error:
        return "killed" if found.exit_code else "done"
    if chore and error["kind"] == "OSError":
        return "OSError"
    assert error["kind"] == "StorageError", f"{where}: {error['trace']}"
    assert error["landed"] in (True, False, None), where
    if error["landed"] is not None and entries_before is not None:
        assert error["landed"] is (entries(path) != entries_before), f"{where}: {error['text']}"
    return f"landed={error['landed']}"


TRIES = int(os.environ.get("TRIES", "2"))
SOME = [
    pytest.param(case, TRIES, id=f"{case.name}-some", marks=pytest.mark.slow) for case in CASES
] + [pytest.param(case, 1, id=case.name) for case in CASES if case.name == "publish"]


@pytest.mark.parametrize(("case", "count"), SOME)
def test_each_call_may_fail_and_nothing_is_lost_owned_twice_or_left_half_done(
    case: Case, count: int, tmp_path: Path
) -> None:
    path, template = prepared(case, tmp_path)
    before = entries(path) if case.name in ONE_COMMIT else None
    said: Counter[str] = Counter()
    for found, where in tries(case.name, path, template, count):
        said[check_error(found, where, before, path, chore=case.name in CHORES)] += 1
        checked(case, path, found.reported, where)
    print(f"{case.name}: {dict(said)}")


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="few"), pytest.param(TRIES, id="some", marks=pytest.mark.slow)]
)
def test_each_call_of_a_create_may_fail_and_the_next_create_completes_it(
    count: int, tmp_path: Path
) -> None:
    path = tmp_path / "queue"
    for found, where in tries(None, path, tmp_path / "none", count):
        check_error(found, where, None, path)
        use(path, where)


@pytest.mark.slow
@pytest.mark.parametrize("older", [["leases"], ["messages"], ["messages", "history"]], ids="+".join)
def test_each_call_of_a_recovery_may_fail_and_the_next_recovery_completes_it(
    older: list[str], tmp_path: Path
) -> None:
    path, template = tmp_path / "queue", tmp_path / "template"
    make_older(path, older)
    shutil.copytree(path, template)
    expected = Queue.open(path).recover(dry_run=True)
    assert expected.needed
    for found, where in tries("recover", path, template, TRIES):
        check_error(found, where, None, path)
        Queue.open(path).recover()
        assert not Queue.open(path).recover(dry_run=True).needed, where
        queue = Queue.open(path)
        queue.publish("after")
        values = {*take_all(queue.group())}
        assert {"after", *(f"m{n}" for n in range(2, 12))} <= values, where


def make_older(path: Path, older: list[str]) -> None:
    """Make a queue of which some tables are of before its last changes."""
    queue = Queue.create(path, retry_delay=0)
    publish(queue, 12)
    take(queue, 2).ack()
    queue.sweep()
    with put_back(queue, *older):
        publish(queue, 4)
        take(queue, 3).nack(delay=0)
        queue.sweep()
