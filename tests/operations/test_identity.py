"""A queue is known by its id, not by the text of a path."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.handles import lease, leased, take

from spark_mq import Message, Queue
from spark_mq.errors import CopiedQueue, InvalidOption


def with_letter(queue: Queue, value: str = "a") -> Queue:
    leased(queue, value).reject(error="bad")
    assert queue.sweep().routed >= 1
    return queue


def test_redrive_works_after_a_rename_by_any_text_of_the_path(tmp_path: Path) -> None:
    with_letter(Queue.create(tmp_path / "before"))
    os.rename(tmp_path / "before", tmp_path / "queue")
    os.symlink(tmp_path / "queue", tmp_path / "link")
    for text in (f"{tmp_path}/queue/", f"file://{tmp_path}//queue", tmp_path / "link"):
        assert Queue.open(text).redrive(dry_run=True).messages == 1
    queue = Queue.open(tmp_path / "link")
    assert queue.redrive(to_all_groups=True).messages == 1
    assert take(queue.group("look")) == ["a", "a"]
    with_letter(queue, "b")
    assert not (tmp_path / "before").exists()


def test_two_links_to_a_queue_are_read_as_two(tmp_path: Path) -> None:
    """Nobody who reads a queue twice by a link is refused since an update."""
    options = pytest.importorskip("spark_mq.spark.options")
    queue = Queue.create(tmp_path / "queue")
    os.symlink(tmp_path / "queue", tmp_path / "link")
    paths = json.dumps([queue.path, str(tmp_path / "link")])
    assert len(options.ReadOptions.parse({"path": paths}).paths) == 2


def copy_of(queue: Queue) -> Queue:
    path = f"{queue.path}-copy"
    shutil.copytree(queue.path, path)
    return Queue.open(path)


def test_the_dead_letter_queue_of_a_copy_is_the_copy_s(tmp_path: Path) -> None:
    """A dead-letter queue that had stored its own path put letters into the original's."""
    original = with_letter(Queue.create(tmp_path / "queue"))
    before = sorted((tmp_path / "queue").rglob("*"))
    copy = with_letter(copy_of(original), "b")
    lease(copy.dead_letters, 1).reject(error="also bad")
    copy.dead_letters.sweep()
    copy.sweep()
    assert copy.redrive().messages >= 1
    assert sorted((tmp_path / "queue").rglob("*")) == before


def test_a_copy_does_not_write_into_the_dead_letter_queue_of_its_original(tmp_path: Path) -> None:
    dead = Queue.create(tmp_path / "dead")
    original = with_letter(Queue.create(tmp_path / "queue", dead_letter_path=dead.path))
    copy = copy_of(original)
    leased(copy, "b").reject()
    for use in (copy.sweep, copy.redrive, lambda: copy.dead_letters):
        with pytest.raises(CopiedQueue, match="rehome") as caught:
            use()
        assert caught.value.home == original.path
    assert dead.stats()["published"] == 1
    assert copy.group().stats().dead == 1, "the message is still there"

    own = copy.rehome(copy=True)
    assert own.sweep().routed == 1
    assert own.settings.queue_id != original.settings.queue_id
    assert (own.redrive().messages, original.redrive().messages) == (1, 1)
    assert (dead.stats()["published"], own.dead_letters.stats()["published"]) == (1, 1)


def test_a_copy_keeps_its_dead_letters_or_has_others_elsewhere(tmp_path: Path) -> None:
    original = with_letter(Queue.create(tmp_path / "queue"))
    copy = copy_of(original).rehome(copy=True)
    assert (copy.redrive().messages, original.redrive().messages) == (1, 1)
    copy = copy.rehome(copy=True, dead_letter_path=tmp_path / "dead")
    with_letter(copy)
    assert copy.dead_letters.path == str(tmp_path / "dead")
    with pytest.raises(InvalidOption, match="copy=True"):
        copy.rehome(copy=False, dead_letter_path=tmp_path / "dead")


def test_a_queue_that_was_moved_keeps_its_dead_letter_queue(tmp_path: Path) -> None:
    queue = with_letter(Queue.create(tmp_path / "before", dead_letter_path=tmp_path / "dead"))
    os.rename(tmp_path / "before", tmp_path / "after")
    with pytest.raises(CopiedQueue):
        Queue.open(tmp_path / "after").redrive()
    moved = Queue.open(tmp_path / "after").rehome(copy=False)
    assert moved.settings.queue_id == queue.settings.queue_id
    assert moved.redrive().messages == 1


def test_a_dead_letter_queue_inside_the_queue_goes_with_it(tmp_path: Path) -> None:
    with_letter(Queue.create(tmp_path / "before", dead_letter_path=tmp_path / "before" / "letters"))
    os.rename(tmp_path / "before", tmp_path / "after")
    moved = Queue.open(tmp_path / "after")
    assert moved.dead_letters.path == str(tmp_path / "after" / "letters")
    assert moved.redrive().messages == 1


@pytest.mark.parametrize("name", ["queue", "link"])
def test_a_queue_is_not_its_own_dead_letter_queue(tmp_path: Path, name: str) -> None:
    os.symlink(tmp_path / "queue", tmp_path / "link")
    with pytest.raises(InvalidOption, match="itself") as caught:
        Queue.create(tmp_path / "queue", dead_letter_path=tmp_path / name)
    assert caught.value.option == "dead_letter_path"


# -- what anybody may have written into a dead letter


NUMBERS = ["many", "", "-1", "9" * 40, "1.5", "\x00", "1_0", "٣"]
INSTANTS = ["yesterday", "9999-12-31T23:59:59-23:00", "0001-01-01", "12"]


def forge(queue: Queue, headers: dict[str, str]) -> None:
    """Append a dead letter that no sweep has made."""
    own = {"spark_mq.queue_id": queue.settings.queue_id, "spark_mq.group": "default"}
    queue.dead_letters.publish([Message("forged", headers={**own, **headers})])


def test_forged_numbers_and_instants_break_no_redrive(tmp_path: Path) -> None:
    queue = with_letter(Queue.create(tmp_path / "queue"))
    for name in ("delivery_count", "failure_count", "sequence"):
        for text in NUMBERS:
            forge(queue, {f"spark_mq.{name}": text})
    for text in INSTANTS:
        forge(queue, {"spark_mq.first_leased_at": text, "spark_mq.last_leased_at": text})
    forged = 3 * len(NUMBERS) + len(INSTANTS)
    assert queue.redrive(dry_run=True).table.num_rows == 1 + forged
    assert queue.redrive(where="first_leased_at > '2020-01-01'").messages == 1
    assert queue.redrive().messages == forged


def test_a_letter_without_an_id_belongs_to_the_path_that_it_names(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    for path in (queue.path, "/elsewhere"):
        queue.dead_letters.publish([Message(path, headers={"spark_mq.queue": path})])
    assert queue.redrive(to_all_groups=True).messages == 1
    assert queue.redrive(to_all_groups=True).messages == 0, "it is moved once"
    assert take(queue.group("look")) == [queue.path]
