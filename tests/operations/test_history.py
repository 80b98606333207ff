"""The archive: each ledger commit once, also after crashes.

One message's life; what finished how.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from support.arrow_memory import heap_in_use
from support.byte_store import ByteStore
from support.clocks import instant
from support.handles import again, archive, archived, history, killed, lease, leased, on_commit
from support.having import having
from support.limits import Limits, keeping
from support.people import another_process, as_visitor
from support.queues import Make
from support.tables import context_of, ledgers_of, messages_of, on_commands
from support.working import drain, fail

from spark_mq import Message, Queue
from spark_mq.errors import LeaseLost
from spark_mq.testing import ManualClock


def reported(queue: Queue, **which: Any) -> list[tuple[str, str | None, str | None, int | None]]:
    """(event, state, outcome, messages) of the history."""
    rows = history(queue, **which).to_pylist()
    return [
        (r["event"], r["state"], r["outcome"], r["message_count"])
        for r in rows
        if r["event"] is not None
    ]


def released(queue: Queue, times: int, *, archived_each: bool = False) -> Queue:
    """A queue whose message was leased and released so often."""
    queue.publish(["a"])
    for _ in range(times):
        lease(queue).release()
        if archived_each:
            archive(queue)
    return queue


def history_files(queue: Queue) -> list[str]:
    return DeltaTable(f"{queue.path}/history").file_uris()


# -- whose error it was


def blamed(queue: Queue, sequence: int) -> list[tuple[str, str | None, str | None, int | None]]:
    """(event, own error, error of the batch, its size) of a message, for what failed or ended."""
    return [
        (e.event, e.error, e.batch_error, e.batch_size)
        for e in queue.trace(sequence).events
        if e.event != "leased"
    ]


def test_a_failed_batch_blames_no_single_message(queue: Queue) -> None:
    s = queue.publish([str(n) for n in range(1_000)]).sequences
    lease(queue, 1_000).nack(error="ValueError: bad 777", delay=0)
    lease(queue, 1_000).ack()
    assert blamed(queue, s[0]) == [
        ("nacked", None, "ValueError: bad 777", 1_000),
        ("acked", None, None, None),
    ]
    text = str(queue.trace(s[0]))
    assert "its batch of 1,000 failed: ValueError: bad 777" in text
    assert text.count("bad 777") == 1, "neither its next lease nor its ack repeats the error"
    queue.sweep()
    assert str(again(queue).trace(s[0])) == text


def test_a_messages_own_error_is_its_own_and_shows_again(queue: Queue) -> None:
    s = queue.publish(["a", "b"]).sequences
    taken = lease(queue, 2)
    taken.nack([s[1]], error="own", delay=0)
    taken.ack()
    lease(queue, 1).nack(error="own", delay=0)
    lease(queue, 1).reject(error="never")
    queue.sweep()
    assert blamed(queue, s[0]) == [("acked", None, None, None)]
    assert blamed(queue, s[1]) == [
        ("nacked", "own", None, None),
        ("nacked", "own", None, None),
        ("rejected", "never", None, None),
        ("routed", None, None, None),
    ]


def test_a_batch_that_expires_is_blamed_as_a_whole(queue: Queue, clock: ManualClock) -> None:
    s = queue.publish(["a", "b", "c"]).sequences
    lease(queue, 2)
    with another_process("elsewhere"):
        lease(queue, 1)
    queue.group().configure(max_delivery_attempts=1)  # else last attempts would be alone
    clock.advance("1h")
    queue.group().expire()
    ((event, own, of_batch, size),) = blamed(queue, s[0])
    assert (event, own, size) == ("lease_expired", None, 2)
    assert [place.state for place in queue.locate(s[1])] == ["dead"]
    assert of_batch.endswith("expired")
    ((event, own, of_batch, size),) = blamed(queue, s[2])
    assert (event, of_batch, size) == ("lease_expired", None, None)
    assert own is not None


@pytest.mark.parametrize("on_error", ["nack", "reject"])
def test_a_handler_that_fails_blames_its_whole_lease(queue: Queue, on_error: str) -> None:
    s = queue.publish(["a", "b"]).sequences
    drain(queue, fail, mode="batch", max_messages=2, on_error=on_error)
    assert blamed(queue, s[1]) == [(f"{on_error}ed", None, "ValueError: boom", 2)]


def test_a_part_of_the_history_is_a_part_of_the_whole(queue: Queue) -> None:
    first, second = queue.publish(["a", "b"]).sequences
    queue.group("one").ensure()
    lease(queue, 1, group="two").ack()
    lease(queue, 1, group="two")
    archive(queue)
    lease(queue, 2, group="one")
    names = ["event", "message_count", "committed_at"]
    whole, start = history(queue), context_of(queue).now() - 3_600_000_000
    assert history(queue, columns=names, since=start) == whole.select(names)
    assert history(queue, columns=["event"], group="two").num_rows == 4
    expected = ["leased", "acked", "leased"]
    assert [event for event, *_ in reported(queue, group="two")] == expected
    assert [event for event, *_ in reported(queue, within=(first, first))] == expected
    assert len(reported(queue, within=(second, second))) == 2


def test_the_kept_events_take_no_more_memory_than_they_are_counted_for(delta_queue: Make) -> None:
    """They took three times as much, so that a process that sweeps for hours grew by 100 MB."""
    queue = delta_queue()
    for n in range(20):
        leased(queue, str(n)).ack()
    table, before = ledgers_of(queue), heap_in_use()
    kept = []
    for _ in range(10):  # as many handles keep the events of the same commits
        other = ledgers_of(again(queue))
        assert list(other.commits(0, table.version()))
        kept.append(other._events)
    taken = heap_in_use() - before
    assert sum(len(events) for events in kept) > 300
    assert taken < 1.2 * sum(events._weight for events in kept)


def test_a_second_look_reads_only_the_commits_since_the_first(
    delta_queue: Make, byte_store: ByteStore, limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, whose events only the files have
    queue = delta_queue()
    taken = leased(queue, "a", "b")
    before, looking = history(queue), again(queue)
    assert history(looking) == before
    taken.ack()
    opened = byte_store.paths("read")
    assert history(looking).num_rows == before.num_rows + 1
    assert sum(path.endswith(".parquet") for path in opened) == 1


def test_only_needed_files_of_the_archive_are_read(
    delta_queue: Make, byte_store: ByteStore
) -> None:
    queue = delta_queue()
    first, _ = queue.publish(["a", "b"]).sequences
    for _ in range(2):
        lease(queue, 1).ack()
        archive(queue)
    rows = history(queue)
    instants = rows["committed_at"].cast(pa.int64())
    latest = pc.max(instants).as_py()
    opened = byte_store.paths("read_parquet")
    assert history(queue, since=latest) == rows.filter(pc.equal(instants, latest))
    assert len(opened) == 1
    assert history(queue, within=(first, first)).num_rows == 2
    assert len(opened) == 2


def test_nothing_is_cleaned_that_has_not_been_archived(delta_queue: Make, limits: Limits) -> None:
    limits(history_batch=7, history_read_batch=7)
    queue = released(delta_queue(), 30)
    expected = reported(queue)
    assert Counter(event for event, *_ in expected) == {"leased": 30, "released": 30}
    with keeping(0, 0):
        ledgers_of(queue).clean(archived(queue))
        assert reported(queue) == expected
        assert archive(queue) == 62, "in several batches"
        assert reported(queue) == expected
        assert ledgers_of(queue).clean(archived(queue)) > 30
    assert reported(again(queue)) == expected


def test_two_sweeps_that_put_files_together_at_once_double_nothing(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """Both compute the same compaction from the same state. The second must compute it again."""
    queue = released(delta_queue(), 6, archived_each=True)
    before, files = reported(queue), history_files(queue)
    limits(history_files=3)
    other = again(queue)

    def put_together() -> None:
        archive(other)
        assert len(history_files(queue)) < len(files)

    on_commit(monkeypatch, "history", before=put_together)
    archive(queue)
    assert reported(again(queue)) == before


@pytest.mark.parametrize(("size", "merges"), [(10**6, [12]), (1_800, [4, 4, 4]), (1, [])])
def test_the_files_of_the_archive_are_put_together(
    delta_queue: Make, limits: Limits, size: int, merges: list[int]
) -> None:
    """Also if what the first merge writes has more rows than fit in memory: it is a small file."""
    queue = released(delta_queue(), 12)
    limits(archive_bytes=500, history_files=12)
    archive(queue)
    assert len(history_files(queue)) == 12, "each has two commits"
    limits(history_files=3, archive_bytes=size)
    archive(queue)
    limits(archive_bytes=10**6, archive_file_bytes=1)
    archive(queue)  # large files stay
    log = context_of(queue).history.log
    commits = [one.removes for one in log.commits(0, log.refresh().version) if one.removes]
    assert [len(removes) for removes in commits] == merges
    assert not any(file.data_change for removes in commits for file in removes)
    assert len(reported(queue)) == 24


def test_the_few_files_of_a_dropped_day_are_deleted(delta_queue: Make, limits: Limits) -> None:
    limits(archive_versions=3, archive_seconds=0.0, sweep_interval=16)
    queue = released(delta_queue(history_retention="2d"), 1, archived_each=True)
    (old,) = Path(queue.path, "history").glob("day=*/*.parquet")
    DeltaTable(f"{queue.path}/history").delete()
    released(queue, 16 + 5, archived_each=True)
    assert not old.exists()
    assert len(reported(queue)) > 0


def test_nothing_of_a_dropped_day_stays_on_the_disk_of_a_queue_that_stands_still(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore
) -> None:
    """Neither its own files nor that of a sweep that was killed before its commit."""
    queue = released(delta_queue(history_retention="2d"), 1)
    with killed("history"):
        archive(queue)
    archive(again(queue))
    old = list(Path(queue.path, "history").glob("day=*/*.parquet"))
    assert len(old) == 2
    for path in old:
        os.utime(path, (1e9, 1e9))
    lease(queue).release()  # it is archived when its day has passed
    byte_store.advance(4 * 86_400)
    for _ in range(2):
        archive(again(queue))
    assert not list(Path(queue.path, "history").glob("day=*/*.parquet"))
    assert reported(queue) == []


# -- one message


def test_a_message_has_its_whole_life_in_its_trace(queue: Queue) -> None:
    s = queue.publish([Message(str(n), message_id=f"id-{n}") for n in range(3)]).sequences[0]
    taken = lease(queue, 3)
    taken.ack([s])
    taken.reject([s + 1], error="no")
    queue.sweep()
    trace = queue.trace(s + 1)
    assert trace == having(sequence=s + 1, version=s >> 32, message_id="id-1", retained=True)
    assert [(e.event, e.state, e.outcome, e.worker_id, e.delivery_count) for e in trace.events] == [
        ("leased", "leased", None, "w", 1),
        ("rejected", "dead", None, "w", 1),
        ("routed", "settled", "dead_lettered", None, 1),
    ]
    assert [e.error for e in trace.events] == [None, "no", None], "each error shows once"
    last = "  group default settled it: dead_lettered  reason: rejected  error: no"
    assert str(trace).splitlines()[-1] == last
    assert str(queue.trace(s)).endswith("\n  group default settled it: acked")
    assert queue.trace(s + 2).outcomes == ()


def test_a_trace_names_the_groups_that_are_paused_now(queue: Queue) -> None:
    before, sequence = queue.publish(["before", "a"]).sequences
    for name in ("one", "two"):
        lease(queue, 1, name).ack()
    assert queue.trace(sequence).blocked == ()
    queue.group("two").pause("broken")
    trace = queue.trace(sequence)
    ((name, why),) = trace.blocked
    assert (name, "broken" in why) == ("two", True)
    assert f"group two leases nothing now: {why}" in str(trace)
    assert queue.trace(before).blocked == ()
    queue.group("one").pause()
    assert [name for name, _ in queue.trace(sequence).blocked] == ["one", "two"]
    queue.group("one").discard(sequence)
    assert [name for name, _ in queue.trace(sequence).blocked] == ["two"]


# -- what finished


def test_finished_messages_are_reported_with_how_and_when(queue: Queue, clock: ManualClock) -> None:
    s = queue.publish([Message(str(n), key="k", message_id=f"id-{n}") for n in range(3)]).sequences
    started = clock()
    lease(queue, 3).nack([s[0]], error="once", delay=0)
    clock.advance("5s")
    lease(queue, 1).ack()
    (row,) = queue.finished(payload=True).to_pylist()
    (end,) = queue.trace(s[0]).outcomes
    assert (end.error, str(end)) == ("once", "acked"), "an earlier failure is not why"
    assert row.pop("settled_at") == end.settled_at
    assert row == {
        "sequence": s[0],
        "consumer_group": "default",
        "outcome": "acked",
        "delivery_count": 2,
        "failure_count": 1,
        "published_at": started,
        "first_leased_at": started,
        "leased_at": started + timedelta(seconds=5),
        "worker_id": "w",
        "reason": None,
        "error": "once",
        "message_id": "id-0",
        "key": "k",
        "value": b"0",
        "headers": None,
    }


def test_every_end_has_its_outcome(queue: Queue, clock: ManualClock) -> None:
    names = ("acked", "dead_lettered", "dropped", "expired", "skipped")
    messages = [Message(name, expires_at="5s" if name == "expired" else None) for name in names]
    ends = dict(zip(names, queue.publish(messages).sequences, strict=True))
    group, held = queue.group(), lease(queue, 3)
    held.ack([ends["acked"]])
    held.reject([ends["dead_lettered"]])
    group.discard(ends["dropped"], force=True)
    queue.sweep()
    clock.advance("10s")
    group.expire()
    group.seek("latest")
    for name, sequence in ends.items():
        assert queue.finished(outcome=name, first=0)["sequence"].to_pylist() == [sequence]
        assert [outcome.outcome for outcome in queue.trace(sequence).outcomes] == [name]
    some = queue.finished(first=ends["dead_lettered"], last=ends["expired"])
    assert some["outcome"].to_pylist() == [*names[1:4]]
    queue.group("other").ensure()
    assert queue.finished("other").num_rows == queue.finished(last=0).num_rows == 0
    group.seek("earliest")
    assert queue.finished().num_rows == 0, "they are unread again"


def test_a_trace_has_the_last_outcome_in_each_group(queue: Queue) -> None:
    (s,) = queue.publish("a").sequences
    lease(queue, group="two").ack()
    queue.group("one").ensure().discard(s)
    lease(queue, group="unsettled")
    ends = [(outcome.group, outcome.outcome) for outcome in queue.trace(s).outcomes]
    assert ends == [("one", "dropped"), ("two", "acked")]
    queue.group("two").seek("earliest")
    assert [outcome.group for outcome in queue.trace(s).outcomes] == ["one"]


@pytest.mark.parametrize(
    ("how", "blamed"),
    [
        ("with its batch", (None, "bad", 2)),
        ("alone", ("bad", None, None)),
        ("by its owner", ("wrong customer", None, None)),
    ],
)
def test_an_outcome_says_whether_a_whole_batch_failed(
    queue: Queue, how: str, blamed: tuple[object, ...]
) -> None:
    s, _ = queue.publish(["a", "b"]).sequences
    held = lease(queue, 2)
    if how == "with its batch":
        queue.group().configure(max_delivery_attempts=1)
    held.nack(error="bad", delay=0)
    if how == "alone":
        lease(queue, 1).reject(error="bad")
    elif how == "by its owner":
        queue.group().dead_letter(s, reason="wrong customer")
    queue.sweep()
    (end,) = queue.trace(s).outcomes
    assert (end.outcome, end.error, end.batch_error, end.batch_size) == ("dead_lettered", *blamed)
    assert ("its batch of 2 failed: bad" in str(end)) == (how == "with its batch")


def test_a_lease_that_ended_names_its_messages_though_it_is_extended_meanwhile(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _) = queue.publish(["a", "b"]).sequences
    ended, other = lease(queue, 1), lease(queue, 1)
    ended._start_limit(1)
    clock.advance("10m")

    def extend_first(run: Callable[[], Any], _: object) -> Any:
        ended._held.move_deadline(context_of(queue).now() + 1)
        return run()

    on_commands(monkeypatch, extend_first)
    with pytest.raises(LeaseLost) as lost:
        queue.group().ack([ended, other])
    reason = "since its lease reached max_lease_duration"
    assert lost.value.lost == [(first, first, reason)]


# -- a message that was redriven


def redriven(queue: Queue, clock: ManualClock) -> tuple[int, int]:
    """Redrive a message after an hour. Return the sequences that it had and has."""
    (before,) = queue.publish([Message("bad", message_id="m")]).sequences
    lease(queue).reject(error="no")
    queue.sweep()
    clock.advance("1h")
    assert as_visitor("alice", queue.redrive).messages == 1
    return before, queue.find(message_id="m")[0]


@pytest.mark.parametrize("own_id", [True, False], ids=["id of the publisher", "random id"])
def test_a_trace_follows_redrives_in_both_directions(queue: Queue, own_id: bool) -> None:
    leased(queue, "other", Message("same id", message_id="m")).ack()
    message = Message("bad", message_id="m" if own_id else None, key="k")
    sequences = [queue.publish(["another", message]).sequences[1]]
    for number in range(2):
        lease(queue).reject(error=f"no {number}")
        queue.sweep()
        assert queue.redrive().messages == 2
        sequences.append(queue.find(key="k")[0])
    lease(queue).ack()
    traces = [again(queue).trace(sequence) for sequence in sequences]
    for at, trace in enumerate(traces):
        assert [one.sequence for one in trace.chain()] == sequences
        assert [one.sequence for one in trace.later] == sequences[at + 1 :][:1]
        text = str(trace)
        places = [text.index(f"message {sequence} ") for sequence in sequences]
        assert places == sorted(places)
        assert text.count("redriven as") == 2
    assert [trace.earlier is None for trace in traces] == [True, False, False]


def test_a_broken_dead_letter_queue_hides_nothing(delta_queue: Make, clock: ManualClock) -> None:
    queue = delta_queue()
    before, after = redriven(queue, clock)
    letters = Path(queue.dead_letters.path)
    for log in Path(letters, "messages", "_delta_log").iterdir():
        log.write_text("no log")
    for end in (lambda: None, lambda: shutil.rmtree(letters)):
        end()
        for sequence in (before, after):
            chain = again(queue).trace(sequence).chain()
            assert [trace.sequence for trace in chain] == [before, after]
    assert not letters.exists()


def test_a_copy_shows_its_redrive_as_an_event(queue: Queue, clock: ManualClock) -> None:
    published = clock()
    before, after = redriven(queue, clock)
    clock.advance("1h")
    lease(queue).ack()
    queue = again(queue)
    copy = queue.trace(after)
    redrive, *_, acked = copy.events
    assert redrive == having(event="redriven", state="unread", user="alice", version=after >> 32)
    (piece,) = messages_of(queue).index(after).slices(after, after)
    assert redrive.at == instant(piece.committed_at) != published
    assert (copy.redriven_at, copy.published_at) == (redrive.at, published)
    assert acked.event == "acked"
    (letter,) = queue.dead_letters.peek()
    ends = queue.dead_letters.trace(letter.sequence).outcomes
    assert [outcome.outcome for outcome in ends] == ["redriven"]
    assert queue.trace(before).later[0].events == copy.events
    assert queue.trace(before).redriven_at is None
    html = copy._repr_html_()
    assert html.index(f"message {before} ") < html.index("no") < html.index(f"message {after} ")


def test_forged_headers_lead_a_trace_nowhere(queue: Queue) -> None:
    header = "spark_mq.redriven_from"
    texts = ["", "-1", "x", "0", str(2**62), "9" * 18]
    queue.publish([Message("a", message_id=text, headers={header: text}) for text in texts])
    own = queue.publish([Message("a", message_id="own", headers={header: "5"})]).sequences[0]
    named = own + 2**32, 2**40  # the next message itself, and none
    forged = [Message("a", headers={"spark_mq.sequence": str(sequence)}) for sequence in named]
    letters = queue.dead_letters.publish(forged).sequences
    queue.publish([Message("a", headers={header: str(letter)}) for letter in letters])
    for sequence in [m.sequence for m in lease(queue).messages]:
        assert [found.sequence for found in queue.trace(sequence).chain()] == [sequence]
    queue.publish(Message("a", message_id="own", headers={header: "5"}))
    assert (queue.trace(own).earlier, queue.trace(own).later) == (None, ())
    assert "redriven" not in [event.event for event in queue.trace(own).events]


def test_a_message_that_came_back_with_another_of_its_key_shows_why(make: Make) -> None:
    queue = make(lanes=8, order="key")
    queue.publish([Message("a", key="f", priority=3), Message("b", key="f", priority=3), "c"])
    held = queue.group("g").lease("w-1", max_messages=3)
    by_text = {message.text: message.sequence for message in held.messages}
    held.nack([by_text["a"]], error="bad")
    why = "an earlier message of its key waits"
    trace = queue.trace(by_text["b"])
    leased, returned = trace.events
    assert leased.event == "leased"
    assert returned == having(
        event="returned", state="available", delivery_count=0, reason=why,
        lease_id=held.lease_id, worker_id="w-1",
    )  # fmt: skip
    assert (trace.priority, trace.lane) == (3, 0), "the lane of f"
    assert "of messages/, priority 3, lane 0" in str(trace)
    assert f"reason: {why}" in str(trace)
    plain = queue.trace(by_text["c"])
    assert (plain.priority, plain.lane, "lane" in str(plain)) == (0, None, False)
