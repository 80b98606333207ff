"""The path of a queue means the same at each door."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq import Queue, errors

DOORS: dict[str, Callable[[str, Queue], object]] = {
    "create": lambda path, _: Queue.create(path),
    "open": lambda path, _: Queue.open(path),
    "find_all": lambda path, _: Queue.find_all(path),
    "drop_at": lambda path, _: Queue.drop_at(path, "q"),
    "dead_letter_path": lambda path, _: Queue.create("other", dead_letter_path=path),
    "sink": lambda path, queue: queue.group().configure(sink=path),
    "redrive": lambda path, queue: queue.redrive(to=path),
    "close_batch": lambda path, queue: queue.close_batch("b", to=path),
}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Queue.create("given")


@pytest.mark.parametrize("path", ["$HOME/q", "~nobody-here/q", ""])
@pytest.mark.parametrize("door", DOORS)
def test_a_path_that_nobody_means_makes_no_folder(
    queue: Queue, tmp_path: Path, door: str, path: str
) -> None:
    with pytest.raises((errors.InvalidOption, TypeError)):
        DOORS[door](path, queue)
    assert os.listdir(tmp_path) == ["given"]


@pytest.mark.parametrize("name", ["a b", "a+b", "ü"])
def test_each_spelling_of_a_path_opens_the_queue(queue: Queue, tmp_path: Path, name: str) -> None:
    created = Queue.create(f"~/{name}")
    for group in (created.group(), queue.group()):
        group.ensure()
    assert created.path == str(tmp_path / name)
    for path in (Path("~", name), (tmp_path / name).as_uri(), f"file:{tmp_path}/{name}", name):
        Queue.open(path).publish("a")
    assert created.group().stats().ready == 4
    queue.group().configure(sink=(tmp_path / name).as_uri())
    assert queue.group().settings.sink == created.path
    assert created.path in Queue.find_all("~")
