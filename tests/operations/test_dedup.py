"""Deduplication: within its window an id is published once, by any publisher at any time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import ByteStore
from support.handles import again, killed, lease, on_commit, once
from support.limits import Limits
from support.queues import Make
from support.tables import messages_of, on_publish

from spark_mq import Message, Queue
from spark_mq.errors import CorruptLog, InvalidOption, StorageError
from spark_mq.testing import ManualClock


@pytest.fixture
def queue(make: Make) -> Queue:
    return make(dedup_window="1h")


def message(dedup_id: str, value: str | None = None) -> Message:
    return Message(value or f"value of {dedup_id}", dedup_id=dedup_id)


def published(queue: Queue) -> list[str]:
    """Return the values of all messages, in order."""
    return [message.value.decode() for message in queue.peek(1_000)]


def by_sequence(queue: Queue) -> dict[int, str]:
    return {message.sequence: message.text for message in lease(queue, 1_000).messages}


def make_old(queue: Queue) -> None:
    """Let the files of ids seem years old, as a clock that steps does."""
    for path in id_paths(queue):
        os.utime(path, (1e9, 1e9))


def id_paths(queue: Queue) -> list[Path]:
    return sorted(Path(queue.path, "messages", "_dedup").glob("*.ids"))


# -- what a publish does


@pytest.mark.parametrize("position", [-1, 3, 9, True, "0"])
def test_a_position_that_no_given_message_has_is_refused(queue: Queue, position: Any) -> None:
    receipt = queue.publish([message("a"), message("b"), message("b")])
    with pytest.raises(InvalidOption, match="3 messages: give a whole number from 0 to 2") as found:
        receipt.sequence_of(position)
    assert (found.value.option, found.value.value) == ("position", position)
    with pytest.raises(InvalidOption, match="position=0 is not in this receipt"):
        queue.publish([]).sequence_of(0)


def test_a_second_publish_of_an_id_publishes_nothing_and_says_so(queue: Queue) -> None:
    first = queue.publish([message("a", "1"), message("b", "2")])
    assert (first.duplicate, first.duplicates, len(first.sequences)) == (False, (), 2)
    second = again(queue).publish([message("a", "3"), message("b", "4")])
    assert (second.duplicate, second.duplicates) == (True, (0, 1))
    assert (second.version, second.published, list(second.sequences)) == (None, 0, [])
    assert messages_of(queue).index().version == first.version
    assert second.duplicate_of == {0: first.sequences[0], 1: first.sequences[1]}
    assert published(queue) == ["1", "2"]


def test_only_the_duplicates_of_a_publish_are_left_out(queue: Queue) -> None:
    a = queue.publish(message("a")).sequences[0]
    batch = ["no id", message("a"), message("b"), message("c"), message("b"), "no id"]
    receipt = queue.publish(batch)
    assert (receipt.published, receipt.duplicate, receipt.duplicates) == (4, False, (1, 4))
    assert published(queue)[1:] == ["no id", "value of b", "value of c", "no id"]
    places = [receipt.sequence_of(at) for at in range(6)]
    first = receipt.sequences[0]
    assert places == [first, None, first + 1, first + 2, None, first + 3]
    assert receipt.duplicate_of == {1: a, 4: first + 1}
    assert lease(queue, 10).messages[1].sequence == first


def test_an_id_counts_for_the_window_after_its_publish(queue: Queue, clock: ManualClock) -> None:
    queue.publish(message("a"))
    clock.advance(3600 - 1e-6)
    assert queue.publish(message("a")).duplicate
    clock.advance(1e-6)
    assert not queue.publish(message("a")).duplicate  # the duplicate did not renew it
    clock.advance(3599)
    assert again(queue).publish(message("a")).duplicate
    assert len(published(queue)) == 2


def test_a_queue_without_a_window_refuses_ids(make: Make) -> None:
    queue = make()
    with queue.publisher() as publisher:
        for publish in (queue.publish, publisher.publish):
            with pytest.raises(InvalidOption, match=r"no dedup_window.*queue\.configure"):
                publish(message("a"))
    assert published(queue) == []
    assert queue.publish(pa.table({"value": ["x"], "dedup_id": pa.nulls(1, pa.string())})).version


@pytest.mark.parametrize("producer", [None, "p"])
def test_a_publisher_leaves_duplicates_out(queue: Queue, producer: str | None) -> None:
    a = queue.publish(message("a")).sequences[0]
    with queue.publisher(linger="1d", producer_id=producer) as publisher:
        pending = [publisher.publish(message(one)) for one in ("b", "a", "c")]
        publisher.flush()
        pending.append(publisher.publish(message("a")))
    assert [one.duplicate_of() for one in pending] == [None, a, None, a]
    found = {sequence: value for sequence, value in by_sequence(queue).items() if sequence != a}
    assert found == {pending[0].result(): "value of b", pending[2].result(): "value of c"}
    assert (pending[1].result(), pending[3].result()) == (None, None)
    assert publisher.last_number == queue.last_producer_sequence("p") == (4 if producer else None)


# -- rivals, crashes, sweeps


def test_a_rival_keeps_its_ids_although_only_messages_without_one_are_left(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = again(queue)
    on_commit(monkeypatch, "messages", before=lambda: rival.publish([message("a"), message("b")]))
    with queue.publisher(linger="1d") as publisher:
        for one in (message("a"), "plain"):
            publisher.publish(one)
    assert published(queue) == ["value of a", "value of b", "plain"]
    assert len(messages_of(queue).files.list("")) == 2
    assert len(list(messages_of(queue).ids.listed())) == 1, "its own"
    assert rival.publish(message("b")).duplicate


@pytest.mark.parametrize("rivals", [1, 3])
def test_a_rival_that_comes_between_check_and_commit_is_seen(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, rivals: int
) -> None:
    queue.publish(message("old"))
    rival = again(queue)

    def race() -> None:
        for number in range(rivals):
            rival.publish([message("a", "rival"), message(f"r{number}")])

    on_commit(monkeypatch, "messages", before=race)
    receipt = queue.publish([message("a"), message("b")])
    assert receipt.duplicates == (0,)
    assert by_sequence(queue)[receipt.duplicate_of[0]] == "rival"
    assert published(queue).count("rival") == 1
    assert len(messages_of(queue).files.list("")) == rivals + 2, "the first try left no file"
    assert receipt.sequence_of(1) == receipt.sequences[0]


def test_a_publish_without_ids_is_no_rival_and_takes_the_next_version(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore
) -> None:
    """So the ids, which are written then, do not know the version of their commit."""
    rival, used = again(queue), byte_store.paths("write", "read", of=messages_of(queue).files)
    on_commit(monkeypatch, "messages", before=lambda: rival.publish("plain"))
    receipt = queue.publish(message("a"))
    for handle in (queue, rival, again(queue)):
        assert handle.publish(message("a")).duplicate_of == {0: receipt.sequences[0]}
    assert sum(path.startswith("_dedup") for path in used) == 1, "it knows what it has written"
    assert by_sequence(queue)[receipt.sequences[0]] == "value of a"


def test_a_lost_reply_is_neither_a_duplicate_nor_a_second_publish(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher tries again: its own ids are in the log then."""
    on_publish(monkeypatch, queue, once(fail=OSError("connection reset by peer")))
    with queue.publisher() as publisher:
        pending = publisher.publish(message("a"))
    assert by_sequence(queue) == {pending.result(): "value of a"}


@pytest.mark.parametrize("lanes", [0, 8])
def test_a_duplicate_names_the_message_that_it_met(make: Make, lanes: int) -> None:
    """Blocks of ids take each other over, files are sorted by lane, others publish meanwhile."""
    queue, rival = make(dedup_window="1h", lanes=lanes), None
    for n in range(9):
        queue.publish(f"plain {n}")
        ids = [f"{n}-{at}" for at in range(n % 4 + 1)]
        queue.publish([Message(one, key=one, dedup_id=one) for one in ids])
        rival = again(queue)
        rival.publish([Message(f"own {n}", key=f"own {n}"), message(f"own {n}", f"own {n}")])
    found = by_sequence(queue)
    wanted = [value for value in found.values() if "-" in value]
    for handle in (queue, rival, again(queue)):
        receipt = handle.publish([message(one) for one in wanted])
        assert receipt.duplicate
        assert [found[receipt.duplicate_of[at]] for at in range(len(wanted))] == wanted


@pytest.mark.parametrize("lanes", [0, 8])
@pytest.mark.parametrize("numbered", [False, True])
def test_a_publish_whose_reply_was_lost_names_its_messages_when_it_is_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch, lanes: int, numbered: bool
) -> None:
    queue = make(dedup_window="1h", lanes=lanes)
    old = queue.publish(Message("old", dedup_id="old")).sequences[0]
    values = ["a", "b", "old", "c", "a", "d", "e"]
    batch = [Message(value, key=f"key of {value}", dedup_id=value) for value in values]
    number: dict[str, Any] = {"producer_id": "p", "producer_sequence": 1} if numbered else {}
    skip = {"on_duplicate": "skip"} if numbered else {}
    on_publish(monkeypatch, queue, once(fail=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        queue.publish(batch, **number)
    receipt = again(queue).publish(batch, **number, **skip)
    assert receipt.duplicate
    found = by_sequence(queue)
    places = [receipt.duplicate_of.get(at, receipt.sequence_of(at)) for at in range(len(batch))]
    assert [found[place] for place in places if place is not None] == values
    assert places[2] == old
    assert receipt.duplicates == ((2, 4) if numbered else tuple(range(len(batch))))


def test_a_crash_leaves_the_id_free(queue: Queue) -> None:
    with killed("messages"):
        queue.publish(message("a"))
    assert not again(queue).publish(message("a")).duplicate
    assert published(queue) == ["value of a"]


def test_sweeps_trims_and_purges_forget_no_id(
    make: Make, clock: ManualClock, limits: Limits
) -> None:
    limits(orphan_seconds=-1.0)
    queue = make(dedup_window="1h", retention="0s")
    for n in range(20):
        queue.publish(message(str(n)))
    lease(queue, 100).ack()
    clock.advance(60)
    queue.sweep()
    assert queue.horizon() >= 0
    assert len(messages_of(queue).files.list("_dedup")) == 2  # 16 and 4 ids
    assert again(queue).publish([message(str(n)) for n in range(20)]).duplicate
    queue.purge(queue.name)
    assert again(queue).publish([message(str(n)) for n in range(20)]).duplicate
    assert not again(queue).publish(message("new")).duplicate


def test_the_files_of_ids_are_bounded(delta_queue: Make, clock: ManualClock) -> None:
    queue = delta_queue(dedup_window="100s")
    queue.publish([message(f"first {n}") for n in range(500)])
    for n in range(300):
        clock.advance(1)
        queue.publish(message(str(n)))
    messages = messages_of(queue)
    blocks = messages.load_ids(messages.log.refresh()).blocks
    assert sum(block.ref.count for block in blocks) <= 2 * 100 + 1
    assert len(blocks) <= 8
    assert messages.clean_ids() == 0, "the publishes of some may still run"
    make_old(queue)
    assert messages.clean_ids() == 301 - len(blocks)
    assert len(id_paths(queue)) == len(blocks)
    fresh = again(queue)
    assert fresh.publish([message(str(n)) for n in range(201, 300)]).duplicate
    assert not fresh.publish([message(str(n)) for n in range(190)]).duplicates


def test_a_publish_whose_ids_a_sweep_took_for_orphans_writes_them_again(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze between its ids and its commit, or the clock jumped."""
    queue = delta_queue(dedup_window="1h")
    queue.publish(message("a"))

    def clean() -> None:
        before = set(id_paths(queue))
        make_old(queue)
        messages_of(again(queue)).clean_ids()
        assert len(before - set(id_paths(queue))) == 1

    on_commit(monkeypatch, "messages", before=clean)
    queue.publish(message("b"))
    assert again(queue).publish([message("a"), message("b")]).duplicate
    assert sorted(published(queue)) == ["value of a", "value of b"]


# -- damage


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "of a later version"])
def test_a_damaged_file_is_named_and_may_be_given_up(delta_queue: Make, damage: str) -> None:
    queue = delta_queue(dedup_window="1h")
    queue.publish([message("a"), message("b")])
    (old,) = id_paths(queue)
    queue.publish(message("c"))
    queue.publish("no id")
    data = old.read_bytes()
    if damage == "gone":
        old.unlink()
    elif damage == "of a later version":
        old.write_bytes(data.replace(b'{"format":', b'{"format":9', 1))
    else:
        old.write_bytes(data[:-1] + b"?" if damage == "flipped" else data[:-5])
    with pytest.raises((CorruptLog, StorageError), match="put an empty file in its place") as found:
        again(queue).publish(message("a"))
    assert old.name in str(found.value)
    again(queue).publish("plain publishes go on")
    old.write_bytes(b"")
    receipt = again(queue).publish([message("a"), message("c")])
    assert receipt.duplicates == (1,)
