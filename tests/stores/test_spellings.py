"""All spellings of a queue's path are one queue: in the API, in commands, on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.commands import Run, in_this_process
from support.forms import client_of
from support.handles import lease
from support.stores import RemoteStore
from support.tables import ledgers_of, messages_of

from spark_mq import Message, Queue
from spark_mq.errors import InvalidOption, QueueExists

Open = Callable[[str], Queue]


@pytest.fixture
def path(remote: RemoteStore) -> str:
    return f"{remote.new_path()} ä"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_this_process(tmp_path, capsys)


@pytest.fixture
def reopen(remote: RemoteStore) -> Open:
    return lambda path: Queue.open(path, storage_options=remote.options)


def others(remote: RemoteStore, path: str) -> list[str]:
    return [*remote.spellings(path), path.replace(" ä", "%20%C3%A4")]


def test_each_spelling_opens_the_queue(remote: RemoteStore, path: str, reopen: Open) -> None:
    options = remote.options
    queue = Queue.create(path, storage_options=options)
    for text in others(remote, path):
        queue.publish([text])
        found = reopen(text)
        assert found.settings.queue_id == queue.settings.queue_id
        assert [m.text for m in lease(found).messages] == [text]
        assert Queue.create(text, storage_options=options, exist_ok=True).groups() == ["default"]
        with pytest.raises(QueueExists):
            Queue.create(text, storage_options=options)
    assert queue.group().stats().leased == len(others(remote, path))
    for text in remote.spellings(path.rpartition("/")[0]):
        (one,) = Queue.find_all(text, storage_options=options)
        assert reopen(one).settings.queue_id == queue.settings.queue_id


def test_handles_of_all_spellings_share_what_a_process_has_of_a_table(
    remote: RemoteStore, path: str, reopen: Open
) -> None:
    """A publish by one wakes who waits by another, and all of them look at the store once."""
    queue = Queue.create(path, storage_options=remote.options)
    for text in others(remote, path):
        found = reopen(text)
        for table in (messages_of, ledgers_of):
            assert table(found).notifier is table(queue).notifier
            assert table(found).shared_look is table(queue).shared_look
        assert ledgers_of(found).commit_lock() is ledgers_of(queue).commit_lock()


def test_dead_letters_are_the_queue_s_under_each_spelling(
    remote: RemoteStore, path: str, reopen: Open
) -> None:
    options, letters = remote.options, remote.new_path()
    queue = Queue.create(path, storage_options=options, dead_letter_path=letters)
    for text, place in zip(remote.spellings(path), remote.spellings(letters), strict=True):
        again = {"storage_options": options, "dead_letter_path": place, "exist_ok": True}
        assert Queue.create(text, **again).settings.queue_id == queue.settings.queue_id
        queue.publish([text])
        lease(reopen(text)).reject(error="bad")
        assert reopen(text).sweep().routed == 1, "the queue is not taken for a copy"
        # Letters of writers that do not know the queue's id.
        for name in (path, reopen(text).path, f"{path}2"):
            headers = {"spark_mq.queue": name, "spark_mq.group": "default"}
            reopen(place).publish([Message("x", headers=headers)])
        assert reopen(text).redrive().messages == 3
        assert lease(queue).ack().settled == 3
        with pytest.raises(InvalidOption, match="is the queue itself"):
            Queue.create(f"{letters}2", storage_options=options, dead_letter_path=f"{place}"
                         .rstrip("/") + "2")  # fmt: skip


def test_commands_take_each_spelling(remote: RemoteStore, path: str, run: Run) -> None:
    Queue.create(path, storage_options=remote.options)
    pairs = [f"{name}={value}" for name, value in remote.options.items()]
    options = [word for pair in pairs for word in ("--storage-option", pair)]
    for text in others(remote, path):
        run("publish", "-q", text, "--raw", *options, stdin=text)
        done = run("peek", "-q", text, "-o", "json", *options)
        assert done.rows[-1]["value"] == text
    described = run("queue", "describe", path, "-o", "json", *options)
    assert described.row["published"] == len(others(remote, path))
    for text in remote.spellings(path.rpartition("/")[0]):
        assert len(run("queue", "list", text, "-o", "json", *options).rows) == 1


def test_the_page_shows_the_queue_under_each_spelling(remote: RemoteStore) -> None:
    path = remote.new_path()
    Queue.create(path, storage_options=remote.options).publish(["a"])
    parent = path.rpartition("/")[0]
    for text in (parent, *remote.spellings(parent), path, *remote.spellings(path)):
        client = client_of(text, remote.options)
        for page in ("/", "/queue/queue"):
            shown = client.get(page)
            assert shown.status_code == 200, (text, page)
            assert 'href="/queue/queue"' in shown.text


# -- the names of Azure's options


@pytest.mark.only_on("azurite")
def test_the_documented_options_are_those_of_delta_rs_too(remote: RemoteStore) -> None:
    options = {k: v for k, v in remote.options.items() if k != "allow_http"}
    options["azure_allow_http"] = "true"
    queue = Queue.create(remote.new_path(), storage_options=options)
    table = f"{queue.path}/messages"
    write_deltalake(
        table, pa.table({"value": [b"x"]}), mode="append", schema_mode="merge",
        storage_options=options,
    )  # fmt: skip
    assert [m.text for m in lease(queue).messages] == ["x"]
    assert DeltaTable(table, storage_options=options).version() >= 1


@pytest.mark.only_on("azurite")
def test_the_emulator_is_where_its_variable_says(
    remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", remote.url)
    path = remote.new_path()
    queue = Queue.create(path, storage_options={"use_emulator": "true"})
    found = Queue.open(path, storage_options=remote.options)
    assert found.settings.queue_id == queue.settings.queue_id
