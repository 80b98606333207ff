"""Races on Delta tables, injected: a competing commit lands between one handle's read and its
write. No threads, no sleeps.

The last tests use real processes, for what no injection can show: that nothing gets lost, and
nobody starves.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from support.byte_store import ByteStore, Call, Injected
from support.handles import again, history, housekeep, lease, notes, on_commit
from support.limits import Limits, set_limits
from support.machines import without_locks
from support.queues import Make
from support.steps import Step
from support.tables import group_ledger_of, ledgers_of

from spark_mq import Queue, SettleResult, errors
from spark_mq.ledger.commands import Change, View
from spark_mq.ledger.ranges import SETTLED, Ledger, LedgerHeader, Range
from spark_mq.storage.commit_turn import note_of_groups, notes_by_group
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    return delta_queue()


def operations(queue: Queue, group: str = "default") -> list[str]:
    """What the commits of a group's ledger did, oldest first."""
    return [
        note["operation"]
        for reported in notes(queue)
        for note in notes_by_group(reported)
        if note.get("group") == group
    ]


@pytest.fixture
def on_ledger_write(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Injected]:
    return lambda **what: on_commit(monkeypatch, "leases", **what)


@pytest.fixture
def on_log_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Injected]:
    return lambda **what: on_commit(monkeypatch, "messages", **what)


def test_a_writer_frozen_until_the_log_was_cleaned_commits_nothing_into_the_past(
    queue: Queue, on_ledger_write: Callable[..., Injected]
) -> None:
    """Its version's number is free again, so the store takes the commit: the lease would be a
    second one of the same messages.
    """
    queue.publish([str(n) for n in range(40)])
    queue.group().ensure()
    past = Path(ledgers_of(queue).path, "_delta_log", f"{ledgers_of(queue).version() + 1:020}.json")
    other = again(queue)

    def meanwhile() -> None:
        for _ in range(5):
            lease(other, 4)
        housekeep(other, keep_versions=0, keep_seconds=0)
        assert not past.exists()

    wrapper = on_ledger_write(before=meanwhile)
    mine = lease(queue, 4)
    assert wrapper.calls == 7, "five of the other, one into the past, one that counts"
    assert not past.exists()
    assert [m.value for m in mine.messages] == [b"20", b"21", b"22", b"23"]
    assert again(queue).group().stats().leased == 24
    assert mine.ack().settled == 4


# -- one group


def test_a_lease_that_lost_takes_what_is_left(
    queue: Queue, on_ledger_write: Callable[..., Injected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it lost often, it asks the others to wait."""
    queue.publish(["a", "b", "c", "d", "e", "f"])
    queue.group().ensure()
    rival, taken = again(queue), list[bytes]()

    def win() -> None:
        taken.extend(m.value for m in lease(rival, 1).messages)
        wrapper.at = wrapper.calls + (len(taken) < 5)  # the retry
        backoff.take_over(len(taken) // 5 * 3.0)

    wrapper = on_ledger_write(before=win)
    backoff, pauses = ledgers_of(queue).backoff, list[float]()
    monkeypatch.setattr(backoff, "wait", lambda _: pauses.append(backoff.pause))
    began = time.monotonic()
    mine = lease(queue, 3)
    assert 0 < pauses[0] < 2 * (time.monotonic() - began), "about as long as the attempt that lost"
    assert taken == [b"a", b"b", b"c", b"d", b"e"]
    assert [m.value for m in mine.messages] == [b"f"]
    assert wrapper.calls == 5 + 5 + 1 + 1
    assert operations(queue) == ["create group", *["lease"] * 6]
    assert revisions(ledgers_of(rival)) == {"default": 7}
    assert ledgers_of(rival).backoff.pause == round(pauses[-1], 3), "as the last commit asks"
    assert backoff.pause == pauses[-1] / 2
    (asked,) = (one for one in notes(queue) if "group" not in one)
    assert asked == {"operation": "ask others to wait", "pause": round(pauses[4], 3)}
    mine.ack()
    assert revisions(ledgers_of(rival)) == {"default": 8}
    assert ledgers_of(rival).backoff.pause == 1.5, "as its last commit alone asks"


def test_a_settle_that_lost_is_done_on_what_the_winner_left(
    queue: Queue, on_ledger_write: Callable[..., Injected]
) -> None:
    queue.publish(["a", "b", "c"])
    mine, rival = lease(queue, 2), again(queue)
    on_ledger_write(before=lambda: rival.group().ack(mine.lease_id, [mine.messages[0].sequence]))
    assert mine.ack() == SettleResult(1, already_settled=1)
    assert queue.group().stats().acked == 2


def test_a_settle_beaten_by_the_next_holder_is_refused(
    queue: Queue, clock: Any, on_ledger_write: Callable[..., Injected]
) -> None:
    queue.publish("a")
    slow, rival, taken = lease(queue), again(queue), []
    clock.advance("1h")
    on_ledger_write(before=lambda: taken.append(lease(rival)))
    with pytest.raises(errors.LeaseLost) as caught:
        slow.ack()
    assert caught.value.lost[0][2] == f"leased by {taken[0].lease_id}"
    assert taken[0].ack() == SettleResult(1)


def test_contention_ends_with_its_data_and_no_change(
    queue: Queue, on_ledger_write: Callable[..., Injected], limits: Limits
) -> None:
    queue.publish("a")
    mine, rival = lease(queue), again(queue)
    limits(commit_seconds=0.0)
    on_ledger_write(before=lambda: rival.group().extend(mine.lease_id))
    with pytest.raises(errors.ContentionTimeout, match="group 'default': a commit lost") as caught:
        mine.ack()
    assert (caught.value.group, caught.value.attempts) == ("default", 1)
    assert operations(queue) == ["create group", "lease", "extend"]


# -- several groups


def test_a_commit_of_another_group_is_no_conflict(
    queue: Queue, on_ledger_write: Callable[..., Injected]
) -> None:
    queue.publish(["a", "b"])
    mine, theirs, rival = lease(queue, group="mine"), lease(queue, group="theirs"), again(queue)
    wrapper = on_ledger_write(before=lambda: rival.group("theirs").ack(theirs.lease_id))
    assert mine.ack() == SettleResult(2)
    assert wrapper.calls == 3, "mine is put again, with the same data file"
    assert [queue.group(name).stats().acked for name in ("mine", "theirs")] == [2, 2]
    assert [again(queue).group(name).stats().acked for name in ("mine", "theirs")] == [2, 2]


def stores(queue: Queue) -> tuple[LedgerTable, LedgerTable]:
    return ledgers_of(queue), ledgers_of(again(queue))


def put(store: LedgerTable, *seen: LedgerSnapshot, revision: int = 0, **options: Any) -> None:
    """Commit ledgers with a revision in place of those that were read."""
    ledger = Ledger(LedgerHeader(revision=revision))
    changes = ((snapshot, ledger) for snapshot in seen)
    store.write(*changes, operation_id=uuid4().hex, note={"operation": "test"}, **options)


def revisions(store: LedgerTable) -> dict[str, int]:
    ledgers = {name: store.read(name).ledger for name in store.groups()}
    return {name: ledger.head.revision for name, ledger in ledgers.items() if ledger is not None}


def data_files(queue: Queue) -> set[Path]:
    return set(Path(queue.path, "leases").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("groups", "rival_group", "options"),
    [
        pytest.param("g", "g", {}, id="its group"),  # a phantom, if neither saw a row of it
        pytest.param("g other", "g", {}, id="one of its groups"),
        pytest.param("g other", "other", {}, id="another of its groups"),
        pytest.param("g other", "__horizon", {}, id="the trim horizon"),
        pytest.param("g", "other", {"whole_table": True}, id="the table"),
        pytest.param("g", "fresh", {"whole_table": True}, id="the table, by a new group"),
        pytest.param("g", "other", {"txns": [("stream", 3)]}, id="a mark, in another group"),
    ],
)
@pytest.mark.parametrize("there", [True, False], ids=["old groups", "new groups"])
def test_a_commit_is_refused_if_another_one_changed_what_it_read(
    queue: Queue, groups: str, rival_group: str, options: dict[str, Any], there: bool
) -> None:
    one, two = stores(queue)
    if there:
        put(one, one.read("g"), one.read("other"))
    seen = [one.read(name) for name in groups.split()]
    put(two, two.read(rival_group), revision=5, **options)
    before, files = revisions(one), data_files(queue)
    with pytest.raises(errors.CommitConflict):
        put(one, *seen, revision=1, **options)
    assert revisions(one) == revisions(two) == before
    assert data_files(queue) == files, "the refused commit left no file behind"
    marks = dict(options.get("txns", ()))
    assert one.txn_number(one.read("g"), "stream") == marks.get("stream")
    assert one.txn_number(one.read("g"), "other stream") is None


def test_a_commit_passes_those_of_others_and_is_of_what_was_read(queue: Queue) -> None:
    """Threads share a handle: another one may move it on after the read."""
    one, two = stores(queue)
    older = one.read("g")
    put(two, two.read("third"), revision=2)
    newer = one.read("other")  # moves the handle on
    assert one.txn_number(older, "nobody") is None
    put(one, older, newer, revision=1)
    with pytest.raises(errors.CommitConflict):
        put(one, older, one.read("other"), revision=4)
    for store in (one, two):
        assert revisions(store) == {"g": 1, "other": 1, "third": 2}


def test_a_commit_to_two_groups_drops_one_and_changes_the_other(queue: Queue) -> None:
    one, two = stores(queue)
    put(one, one.read("g"), one.read("other"))
    changes = (one.read("g"), None), (one.read("other"), Ledger(LedgerHeader(revision=1)))
    one.write(*changes, operation_id="1", note={})
    assert revisions(one) == revisions(two) == {"other": 1}
    rows = DeltaTable(f"{queue.path}/leases").to_pyarrow_table()
    (row,) = rows.select(["consumer_group", "first", "last"]).to_pylist()
    assert list(row.values()) == ["other", -1, -1], "another engine sees the same"


@pytest.mark.parametrize("tagged", [True, False])
def test_the_history_tells_apart_what_a_commit_did_to_two_groups(
    queue: Queue, limits: Limits, tagged: bool
) -> None:
    if not tagged:
        limits(tag_bytes=0)
    leases = ledgers_of(queue)
    groups = ("a", "b")
    ledgers = [Ledger(LedgerHeader(), [], [("acked", Range(n, n, SETTLED, 1))] * n) for n in (0, 2)]
    note = note_of_groups([{"group": name, "operation": f"ack {name}"} for name in groups])
    changes = zip(map(leases.read, groups), ledgers, strict=True)
    leases.write(*changes, operation_id="all", note=note)
    names = ["ordinal", "consumer_group", "operation", "operation_id", "first"]
    for handle in (queue, again(queue)):
        rows = history(handle).select(names).to_pylist()
        assert [tuple(row.values()) for row in rows if row["operation_id"] == "all"] == [
            (0, "a", "ack a", "all", None),
            (1, "b", "ack b", "all", 2),
            (2, "b", "ack b", "all", 2),
        ]


# -- a commit that landed, and whose reply was an error

LIES = [FileExistsError("412 Precondition Failed"), OSError("connection reset by peer")]


@pytest.mark.parametrize("lie", LIES, ids=["as a lost race", "as a network error"])
@pytest.mark.parametrize("and_then", [False, True], ids=["alone", "before others"])
def test_a_ledger_commit_that_landed_is_not_repeated(
    queue: Queue, on_ledger_write: Callable[..., Injected], lie: Exception, and_then: bool
) -> None:
    queue.publish(["a", "b", "c"])
    mine, rival = lease(queue, 2), again(queue)
    # If others commit, then before the caller looks for its commit.
    wrapper = on_ledger_write(fail=lie, after=lambda: lease(rival, 1) if and_then else None)
    assert mine.ack() == SettleResult(2)
    assert wrapper.calls == 1 + and_then
    assert operations(queue).count("ack") == 1
    assert queue.group().stats().acked == 2
    assert queue.group().stats().leased == and_then


@pytest.mark.parametrize("lie", LIES, ids=["as a lost race", "as a network error"])
@pytest.mark.parametrize(
    "producer", [{}, {"producer_id": "p", "producer_sequence": 1}], ids=["plain", "with a number"]
)
def test_a_publish_that_landed_is_not_repeated(
    queue: Queue, on_log_commit: Callable[..., Injected], lie: Exception, producer: dict[str, Any]
) -> None:
    wrapper = on_log_commit(fail=lie)
    receipt = queue.publish(["a", "b"], **producer)
    assert wrapper.calls == 1
    assert [m.sequence for m in lease(queue).messages] == list(receipt.sequences)


# -- publishing


def test_a_publish_that_lost_lands_behind_the_winner(
    queue: Queue, on_log_commit: Callable[..., Injected]
) -> None:
    rival, won = again(queue), []
    wrapper = on_log_commit(before=lambda: won.append(rival.publish(["x", "y"])))
    mine = queue.publish(["a", "b"])
    assert wrapper.calls == 3
    assert mine.version == won[0].version + 1
    found = {m.sequence: m.value for m in lease(queue).messages}
    assert [found[s] for s in mine.sequences] == [b"a", b"b"]
    assert [found[s] for s in won[0].sequences] == [b"x", b"y"]


# -- housekeeping in between


def test_a_ledger_file_cleaned_under_a_read_is_read_anew(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only the file has
    queue.publish([str(n) for n in range(10)])
    mine, reader, rival = lease(queue, 2), again(queue), again(queue)

    read: list[str] = []

    def replaced(call: Call) -> Any:
        if call.path.endswith(".parquet"):
            read.append(call.path)
            if len(read) == 1:
                for _ in range(3):
                    rival.group().extend(mine.lease_id)
                housekeep(rival, keep_versions=0, keep_seconds=0)
        return call.run()

    byte_store.on("read", act=replaced, of=ledgers_of(reader).files)
    assert reader.group().stats().leased == 2
    assert len(set(read)) == 2, "the file was replaced under the first read"


# -- threads and processes


def test_threads_that_share_a_queue_lose_nothing(queue: Queue) -> None:
    queue.publish([str(n) for n in range(30)])

    def work(name: str) -> None:
        queue.publish(["more", name])
        while (mine := queue.group().lease(name, max_messages=4)) is not None:
            assert len(mine.messages) == len(mine)
            mine.ack()

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, ("t0", "t1", "t2")))
    assert queue.group().stats().acked == queue.stats()["published"] == 36


def _lease_and_ack(path: str, times: int) -> int:
    group = Queue.open(path).group()
    return sum(group.lease("w").ack().settled for _ in range(times))


def _hammer(path: str, group: str, shared: Any, commits: int) -> int:
    """Lease and give back as fast as it can. Tell when that made so many commits."""
    stop, ready, enough = shared
    fast, done = Queue.open(path).group(group), 0
    ready.wait()
    while not stop.is_set():
        mine = fast.lease("w")
        if mine is not None:
            mine.release()
            done += 2
            if done == commits:
                enough.append(done)
    return done


def _plod(path: str, name: str, times: int, shared: Any) -> float:
    """Commit so often, and until the three others have made enough commits.

    Each takes 100 ms between read and write. Returns how long it took.
    """
    stop, ready, enough = shared
    group, done = Queue.open(path).group(name).ensure(), 0
    ready.wait()
    started = time.monotonic()
    set_limits(pytest.MonkeyPatch(), commit_seconds=60.0)  # in this process only

    def step(view: View) -> Change[None]:
        time.sleep(0.1)  # the work of a slow worker
        head = view.ledger.head
        counters = {**head.counters, "steps": head.counters.get("steps", 0) + 1}
        after = Ledger(replace(head, counters=counters), view.ledger.ranges)
        return Change(after, None, {"operation": "step"})

    try:
        while done < times or len(enough) < 3:
            group_ledger_of(group).run(Step(step))
            done += 1
    finally:
        stop.set()
    return time.monotonic() - started


def _without_locks() -> None:
    without_locks(pytest.MonkeyPatch())


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Any:
    """Four processes that have spark_mq imported. Spawned: delta-rs panics in a fork.

    With the parameter True, each is on a machine of its own as far as locks on files go.
    """
    begin = _without_locks if getattr(request, "param", False) else None
    with multiprocessing.get_context("spawn").Pool(4, begin) as pool:
        yield pool


@pytest.mark.slow
def test_four_processes_lose_no_update(queue: Queue, workers: Any) -> None:
    queue.publish([str(n) for n in range(100)])
    queue.group().ensure()
    assert workers.starmap(_lease_and_ack, [(queue.path, 25)] * 4) == [25] * 4
    reported = queue.group().stats()
    assert (reported.acked, reported.ready, reported.leased) == (100, 0, 0)
    made = operations(queue)  # of which one may have the commands of several processes
    assert {part for name in made for part in name.split("+")} == {"create group", "ack", "lease"}
    assert len(made) <= 201


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "group", "commits", "seconds"),
    [
        pytest.param(False, "fast", 12, 40, id="another group"),
        pytest.param(False, "slow", 6, 60, id="its own group"),
        pytest.param(True, "slow", 6, 120, id="its own group, on several machines"),
    ],
    indirect=["workers"],
)
def test_a_slow_worker_is_not_starved_by_fast_ones(
    queue: Queue, workers: Any, group: str, commits: int, seconds: float
) -> None:
    """Without locks it waited until its patience was over: each of its commits lost to one that
    took a tenth of its time. Beside another group it must not wait for a pause in theirs.
    """
    queue.publish([str(n) for n in range(100)])
    queue.group(group).ensure()
    with multiprocessing.get_context("spawn").Manager() as manager:
        shared = manager.Event(), manager.Barrier(4), manager.list()
        hammer = (queue.path, group, shared, commits)
        fast = [workers.apply_async(_hammer, hammer) for _ in range(3)]
        try:
            plodding = workers.apply_async(_plod, (queue.path, "slow", 8, shared))
            took = plodding.get(timeout=150)
        finally:
            shared[0].set()
        hammered = [result.get(timeout=60) for result in fast]
    assert ledgers_of(queue).read("slow").ledger.head.counters["steps"] >= 8
    assert min(hammered) >= commits, hammered  # nor the fast ones by each other
    # A starved one ends with ContentionTimeout. Measured: 3 s beside another group, and apart 6 to
    # 28 s, with four busy processes on two cores.
    assert took < seconds, f"{took:.1f} s beside {hammered} commits of the others"
