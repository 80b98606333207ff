"""Redrive: dead letters go back where they came from, each once, also if a process crashes in
between.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from letters import back, die_in_a_redrive, with_dead
from support.arrow_memory import at_most
from support.handles import again, lease, on_commit
from support.having import having
from support.limits import Limits
from support.queues import Make, beside
from support.rule_variants import first, rule_variant
from support.tables import messages_of, put_back

from spark_mq import Queue
from spark_mq.errors import InvalidOption
from spark_mq.testing import ManualClock, memory_queue


@pytest.mark.parametrize("names_itself", [False, True])
def test_a_redriven_message_is_as_it_was_first_published(queue: Queue, names_itself: bool) -> None:
    with_dead(queue, ["boom"])
    assert queue.redrive(to=again(queue) if names_itself else None).messages == 1
    (message,) = lease(queue).messages
    assert message == having(message_id="id-0", key="k0", value=b"0", delivery_count=1)
    assert message.headers.items() >= {"own": "1", "spark_mq.group": "default"}.items()
    assert set(message.headers) == {"own", "spark_mq.group", "spark_mq.redriven_from"}


def test_a_condition_chooses_what_goes_back(queue: Queue) -> None:
    """What a condition may be, test_condition shows."""
    with_dead(queue, ["a timeout", "bad", "timeout", "other"])
    where = "last_leased_at >= first_leased_at AND sequence % 2 = 0 AND delivery_count = 1"
    assert queue.redrive(where=where).messages == 2
    assert back(queue) == ["0", "2"]
    assert queue.redrive().messages == 2, "the others are there still"


def test_a_condition_that_fails_at_a_later_letter_redrives_nothing(
    queue: Queue, limits: Limits
) -> None:
    with_dead(queue, ["7", "7", "seven", "7"])
    limits(redrive_chunk=1)
    sql = "CAST(error AS INT) = 7"
    for where, limit in ((sql, 3), (lambda letter: int(letter["error"]) == 7, None)):
        with pytest.raises(ValueError, match=r"ConversionException|invalid literal"):
            queue.redrive(where=where, limit=limit)
        assert back(queue) == []
    # The limit is reached before the letter that does not fit.
    assert queue.redrive(where=sql, limit=2).messages == 2
    assert queue.redrive(where="error = '7'").messages == 1
    assert queue.redrive(where="TRY_CAST(error AS INT) = 7 OR error LIKE 's%'").messages == 1


def test_a_rate_spreads_the_redrive_over_rounds(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dead(queue, ["a"] * 7)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert queue.redrive(rate=2, limit=5).messages == 5
    assert [pause for pause in pauses if pause] == [1.0, 1.0], "2, 2 and 1: none after the last"
    assert queue.redrive(rate=0.5).messages == 2
    assert [pause for pause in pauses if pause] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_each_goes_back_once(make: Make, at: int, when: str) -> None:
    """Nobody else has the transform of a repair, so its letters are given back if unpublished."""
    queue = with_dead(make(), ["a", "b", "c"])
    die_in_a_redrive(queue, at, when, transform="value || 'first'")
    second = again(queue).redrive(transform="value || 'second'")
    assert second.messages == (0 if (at, when) == (3, "after") else 3), "what it has finished"
    is_published = at == 3 or (at, when) == (2, "after")
    assert back(queue) == [f"{n}{'first' if is_published else 'second'}" for n in range(3)]
    assert again(queue).redrive().messages == 0


@pytest.mark.parametrize("repair", [{}, {"transform": "value"}])
def test_two_redrives_at_once_publish_each_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, repair: dict[str, str]
) -> None:
    queue, got = with_dead(make(), ["a", "b", "c"]), list[int]()
    other = again(queue)

    def overtake() -> None:
        got.append(other.redrive(where="error <> 'b'").messages)

    on_commit(monkeypatch, "dead_letters/leases", before=overtake)
    got.append(queue.redrive(**repair).messages)
    assert got == [2, 1]
    assert sorted(back(queue)) == ["0", "1", "2"]


def test_a_fenced_repair_settles_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other redrive prevents its publish, and dies before it gives the letters back."""
    queue = with_dead(make(), ["a"])
    on_commit(monkeypatch, "messages", before=lambda: die_in_a_redrive(again(queue), 1, "after"))
    assert queue.redrive(transform="value").messages == 0
    assert again(queue).redrive().messages == 1


@pytest.mark.parametrize(("at", "repair"), [(2, {}), (3, {"transform": "value"})])
def test_queues_that_share_a_dead_letter_queue_change_their_own(
    delta_queue: Make, tmp_path: Path, clock: ManualClock, at: int, repair: dict[str, str]
) -> None:
    shared = delta_queue().path
    one, two, three = (
        Queue.create(tmp_path / name, dead_letter_path=shared, clock=clock)
        for name in ("one", "two", "three")
    )
    for queue, errors in ((one, "a"), (two, "bc"), (three, "d")):
        with_dead(queue, [*errors])
    assert one.discard_dead_letters(where="true").messages == 1
    die_in_a_redrive(three, at, **repair)
    assert one.redrive().messages == 0, "the third queue finishes its own"
    assert (two.redrive().messages, three.redrive().messages) == (2, 1)
    assert (back(one), back(two), back(three)) == ([], ["0", "1"], ["0"])
    assert not one.recover(dry_run=True).needed


def test_a_purged_dead_letter_queue_is_no_damage(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with_dead(queue, ["earlier"])
    assert queue.redrive().messages == 1
    assert back(queue) == ["0"]
    with_dead(queue, ["a", "b"])
    assert queue.dead_letters.purge("dead_letters").messages == 3
    assert queue.redrive(dry_run=True).messages == 0
    with_dead(queue, ["c"])
    assert queue.redrive().messages == 1
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


def test_old_letters_go_if_their_queue_has_a_hard_retention_and_is_swept() -> None:
    clock = ManualClock()
    queue = memory_queue(clock)
    for value in ("old", "new"):
        clock.advance("100d")
        queue.publish(value)
        lease(queue).reject()
        queue.sweep()
    letters = queue.dead_letters
    letters.configure(hard_retention="90d")
    queue.sweep()
    assert queue.redrive(dry_run=True).messages == 2
    letters.sweep()
    assert [letter.value for letter in letters.peek(10)] == [b"new"]
    assert queue.redrive().messages == 1


def test_letters_that_are_purged_during_a_redrive_stop_no_later_one(delta_queue: Make) -> None:
    queue = with_dead(delta_queue(), ["a"])
    die_in_a_redrive(queue)
    letters = messages_of(queue.dead_letters)
    letters.drop(letters.index().last_sequence)
    again(queue).redrive()
    assert queue.stats()["published"] == 1, "there was nothing left to publish"
    with_dead(queue, ["b"])
    assert queue.redrive().messages == 1


def test_the_warning_about_dead_messages_names_ten_groups(
    delta_queue: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = delta_queue()
    queue.publish("a")
    for number in range(12):
        queue.group(f"group-{number:02}").lease("w").reject(error="bad")
    queue.redrive()
    (warning,) = [line for line in caplog.messages if "left out" in line]
    assert "12 dead messages" in warning
    assert "'group-09' and 2 more" in warning


def test_a_damaged_letter_is_named_and_the_others_are_redriven(
    delta_queue: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = delta_queue()
    for number in range(3):
        with_dead(queue, [f"error {number}"])
    die_in_a_redrive(queue, transform="value")
    damaged = messages_of(queue.dead_letters).index().files[0].path
    file = Path(queue.dead_letters.path, "messages", damaged)
    file.write_bytes(bytes(file.stat().st_size))
    assert again(queue).redrive().messages == 2
    (line,) = [line for line in caplog.messages if "cannot be redriven" in line]
    assert damaged in line
    assert again(queue).redrive().messages == 0


@pytest.mark.parametrize("where", [None, "error = 'boom'"])
def test_a_large_value_is_held_no_more_often_while_it_is_redriven(
    delta_queue: Make, where: str | None
) -> None:
    """As it is found, read and written. One more copy was held meanwhile, two with a condition."""
    queue, size = delta_queue(), 2**23
    with_dead(queue, ["boom"], [os.urandom(size)])
    with at_most(3.5 * size):
        assert queue.redrive(where=where).messages == 1


# -- to another queue, and until it is stopped


@pytest.mark.on_both_storages
def test_letters_go_to_another_queue_with_headers_of_their_origin(queue: Queue) -> None:
    with_dead(queue, ["a", "b"])
    (letter, _) = queue.redrive(dry_run=True).table["dead_letter_sequence"].to_pylist()
    other = beside(queue, lanes=4)
    assert queue.redrive(to=other, where="error = 'a'").messages == 1
    assert queue.redrive(to=other, limit=2**63 - 1).messages == 1
    assert queue.redrive(to=other).messages == queue.redrive().messages == 0
    assert back(queue) == []
    first, _ = lease(other, 5).messages
    assert first == having(message_id="id-0", key="k0", value=b"0", delivery_count=1)
    assert first.headers == {
        "own": "1",
        "spark_mq.dead_letter": str(letter),
        "spark_mq.queue": queue.path,
        "spark_mq.group": "default",
        "spark_mq.reason": "rejected",
    }
    assert other.trace(first.sequence).earlier is None
    assert f"error = 'a' to {other.path}" in [change.detail for change in queue.changes()]


def test_another_queue_is_named_by_its_path_so_none_is_in_memory(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = with_dead(delta_queue(), ["a"])
    with pytest.raises(InvalidOption, match="is kept in memory"):
        queue.redrive(to=memory_queue(clock))
    other = beside(queue)
    assert queue.redrive(to=other.path).messages == 1
    assert lease(other).messages[0].value == b"0"


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("next_to", [True, False])
def test_killed_at_any_step_each_goes_to_the_other_queue_once(
    make: Make, at: int, when: str, next_to: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The next redrive may be to the queue itself."""
    caplog.set_level("INFO", "spark_mq.maintenance.dead_letters")
    queue = with_dead(make(), ["a", "b", "c"])
    other = beside(queue)
    die_in_a_redrive(queue, at, when, to=other)
    again(queue).redrive(to=other if next_to else None)
    begun = next_to or (at, when) != (1, "before")
    assert (back(other), back(queue)) == ((["0", "1", "2"], []) if begun else ([], ["0", "1", "2"]))
    assert again(queue).redrive().messages == 0
    assert "has published" not in caplog.text, "nobody has written them for a second time"


def test_letters_for_a_queue_that_is_gone_wait_in_transfer_and_stop_no_others(
    delta_queue: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = with_dead(delta_queue(), ["a", "b"])
    other = beside(queue)
    die_in_a_redrive(queue, to=other, limit=1)
    shutil.rmtree(other.path)
    assert queue.redrive().messages == 1
    assert f"stay in transfer to {other.path}" in caplog.text
    assert back(queue) == ["1"]
    other = beside(queue)
    assert again(queue).redrive().messages == 1
    assert back(other) == ["0"]


def test_a_recovery_does_not_publish_what_went_to_another_queue(delta_queue: Make) -> None:
    queue = with_dead(delta_queue(), ["a", "b"])
    with put_back(queue, "messages"):
        assert queue.redrive(to=beside(queue), limit=1).messages == 1
        assert queue.redrive().messages == 1
    restored = again(queue)
    assert restored.recover().redriven == 1
    assert back(restored) == ["1"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_recovery_loses_no_letter_of_a_lost_repair(delta_queue: Make, killed: bool) -> None:
    """The queue lost the commit that published it, before or after the letters were settled."""
    queue = with_dead(delta_queue(), ["a", "b", "c"])
    repair = {"where": "error <> 'c'", "transform": "value || ' first'"}
    with put_back(queue, "messages"):
        if killed:
            die_in_a_redrive(queue, at=2, when="after", **repair)
        else:
            queue.redrive(**repair)
    restored = again(queue)
    lost = 0 if killed else 2  # those of a killed repair are in transfer still
    assert restored.recover(dry_run=True).redriven == lost
    assert restored.recover().redriven == lost
    assert not restored.recover(dry_run=True).needed
    assert again(restored).redrive(transform="value || ' second'").messages == 3 - lost
    # The transform is lost, so what was settled comes as it died.
    expected = ["0 second", "1 second", "2 second"] if killed else ["0", "1", "2 second"]
    assert back(restored) == expected
    assert again(restored).redrive().messages == 0


def test_a_stop_ends_a_redrive_after_the_round_in_hand(queue: Queue, limits: Limits) -> None:
    with_dead(queue, ["a"] * 5)
    limits(redrive_chunk=2)
    stop = threading.Event()
    with rule_variant("maintenance:_redrive", first(lambda _: stop.set())):
        assert queue.redrive(stop=stop).messages == 2
        assert queue.redrive(stop=stop).messages == 0
        assert queue.redrive(dry_run=True, stop=stop).messages == 0
    assert queue.redrive(stop=threading.Event()).messages == 3
    assert back(queue) == ["0", "1", "2", "3", "4"]
