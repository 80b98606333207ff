"""No queue lies within another one, because a drop of that would take half of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.handles import memory_store
from support.rule_variants import instead, rule_variant

from spark_mq import Queue, errors


@pytest.mark.parametrize(
    "inner", ["inner", "a/b/inner", "messages/inner", "history", "leases", "../link/inner"]
)
def test_a_queue_within_another_is_refused(tmp_path: Path, inner: str) -> None:
    queue = Queue.create(tmp_path / "events")
    (tmp_path / "link").symlink_to(tmp_path / "events" / "messages")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(errors.NotAQueue, match=re.escape(queue.path)):
        Queue.create(tmp_path / "events" / inner)
    assert sorted(tmp_path.rglob("*")) == before
    assert Queue.find_all(tmp_path) == [queue.path]


@pytest.mark.parametrize("inner", ["inner", "a/b/inner", "history"])
def test_a_store_whose_folders_are_only_parts_of_names_refuses_both(inner: str) -> None:
    store = memory_store()
    with rule_variant("_checked_uri", instead(lambda right, a: a.uri)):  # it refuses memory
        below = Queue.create(f"{store.root}/team/{inner}")
        with pytest.raises(errors.NotAQueue, match="there is a queue at"):
            Queue.create(f"{store.root}/team")
        Queue.create(f"{store.root}/other")
        with pytest.raises(errors.NotAQueue, match="lies within the queue at"):
            Queue.create(f"{store.root}/other/{inner}")
    assert below.dead_letters.path == f"{below.path}/dead_letters"


def test_dead_letters_do_not_lie_within_another_queue(tmp_path: Path) -> None:
    Queue.create(tmp_path / "other")
    inner = tmp_path / "other" / "letters"
    with pytest.raises(errors.NotAQueue):
        Queue.create(tmp_path / "queue", dead_letter_path=inner)
    shutil.move(Queue.create(tmp_path / "letters").path, inner)
    Queue.create(tmp_path / "queue", dead_letter_path=inner)  # it exists already


@pytest.mark.parametrize("description", [None, "orders", "[]", '{"format": "another"}'])
def test_a_table_named_messages_makes_no_queue_of_its_folder(
    tmp_path: Path, description: str | None
) -> None:
    rows = pa.table({"id": [1]})
    write_deltalake(tmp_path / "folder" / "messages", rows, description=description)
    assert Queue.create(tmp_path / "folder" / "inner").path == str(tmp_path / "folder" / "inner")


def test_a_queue_whose_tables_are_gone_is_created_around_its_dead_letters(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "events")
    for table in ("messages", "leases"):
        shutil.rmtree(tmp_path / "events" / table)
    assert Queue.create(tmp_path / "events").dead_letters.path == queue.dead_letters.path
