"""The commit index: once it is written down in ``commits/``, the log's own JSON may go, and nobody
notices.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.byte_store import ByteStore
from support.handles import Killed, again, clean_messages, die, index_commits, lease, on_commit
from support.limits import Limits
from support.queues import Make
from support.rule_variants import rule_variant, then
from support.tables import add_values, checkpoint, messages_of

from spark_mq import Message, Queue, errors
from spark_mq.ledger.message_index import sequence
from spark_mq.testing import ManualClock


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    return delta_queue()


def json_versions(queue: Queue) -> list[int]:
    """The commits of messages/ whose JSON is there."""
    return sorted(
        int(path.stem)
        for path in Path(messages_of(queue).path, "_delta_log").glob("*.json")
        if path.stem.isdigit()
    )


def data_files(queue: Queue) -> set[str]:
    return {str(path) for path in Path(messages_of(queue).path).rglob("part-*.parquet")}


def index_and_clean(queue: Queue) -> None:
    """Nothing of the log but its last commit is left."""
    index_commits(queue)
    assert clean_messages(queue) > 0
    assert json_versions(queue) == [messages_of(queue).log.refresh().version]


def publish_and_index(queue: Queue, values: str) -> None:
    """Publish each value in a commit that has a checkpoint."""
    for value in values:
        queue.publish(value)
        checkpoint(messages_of(queue))
    index_commits(queue)


def test_the_ledgers_are_looked_at_again_only_if_they_seem_to_be_ahead(queue: Queue) -> None:
    queue.publish("a")
    looks = list[bool]()

    def reached(refresh: bool) -> int:
        looks.append(refresh)
        return sequence(1 + (looks == [False, False]), 0)

    for known in ([False], [False, False, True]):
        messages_of(queue).expect(reached)
        assert queue.stats()["published"] == 1
        assert looks == known


def said(queue: Queue) -> pa.Table:
    """All that the commits say, as a new handle finds it."""
    return messages_of(again(queue)).published().rows_since(-1)


def varied(queue: Queue, clock: ManualClock) -> None:
    """One of each kind of commit that there can be."""
    queue.publish(["a", "b"])
    queue.publish("c", producer_id="p", producer_sequence=4, deliver_at="1h")
    queue.publish(
        [
            Message("due later", deliver_at=clock() + timedelta(hours=1)),
            Message("soon gone", expires_at=clock()),
            "plain",
        ]
    )
    write_deltalake(
        DeltaTable(messages_of(queue).path),
        pa.table({"value": [b"foreign"]}),
        mode="append",
        schema_mode="merge",
    )
    add_values(queue, b"without statistics", b"two")
    before = DeltaTable(messages_of(queue).path).version()
    DeltaTable(messages_of(queue).path).optimize.compact()
    DeltaTable(messages_of(queue).path).restore(before)
    queue.publish("last", producer_id="q", producer_sequence=0)


# -- the same as from the JSON


def test_what_is_written_down_says_all_that_the_log_said(queue: Queue, clock: ManualClock) -> None:
    varied(queue, clock)
    before, index, files = said(queue), messages_of(again(queue)).index(), data_files(queue)
    assert len({row["kind"] for row in before.to_pylist()}) == 3
    index_and_clean(queue)
    after = messages_of(again(queue)).index()
    assert list(after.files) == list(index.files)
    assert (after.version, after.total) == (index.version, index.total)
    assert said(queue).equals(before)
    assert data_files(queue) == files
    assert DeltaTable(messages_of(queue).path).to_pyarrow_table().num_rows == 10


def test_it_grows_by_what_is_new(queue: Queue, clock: ManualClock) -> None:
    assert index_commits(queue) == 0, "nothing has been published"
    varied(queue, clock)
    assert index_commits(queue) == messages_of(queue).log.refresh().version + 1
    assert index_commits(queue) == 0
    queue.publish("x")
    queue.publish("y")
    assert index_commits(again(queue)) == 2
    messages_of(queue).change_property("key", lambda _: "publishes nothing", "test")
    assert messages_of(queue).commits.index(messages_of(queue).published(), 9) == 0
    rows, _ = messages_of(queue).commits.read_after()
    order = [("version", "ascending"), ("first", "ascending")]
    assert rows.sort_by(order).combine_chunks().equals(said(queue).combine_chunks())


# -- handles that knew the log before it was cleaned


@pytest.mark.parametrize("knows", ["nothing", "a part", "all"])
def test_an_old_handle_goes_on_after_the_log_was_cleaned(queue: Queue, knows: str) -> None:
    old, other = again(queue), again(queue)
    queue.publish("a")
    if knows != "nothing":
        assert old.stats()["published"] == 1
    for value in "bcd":
        queue.publish(value)
    if knows == "all":
        assert old.stats()["published"] == 4
    index_and_clean(other)
    queue.publish("e")
    receipt = old.publish("f", producer_id="p", producer_sequence=1)
    assert old.stats()["published"] == 6
    found = {m.sequence: m.value for m in lease(old, 100).messages}
    assert sorted(found.values()) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert found[receipt.sequences[0]] == b"f"


def test_most_looks_at_the_log_cost_none_at_the_table(queue: Queue, byte_store: ByteStore) -> None:
    """To open the table takes longer the more files it has."""
    looker = again(queue)
    queue.publish("a")
    assert messages_of(looker).index().total == 1
    listed = byte_store.paths("list", of=messages_of(looker).files)
    read = byte_store.paths("read", "open", of=messages_of(looker).files)
    assert messages_of(looker).index().total == 1
    for value in "bcd":
        queue.publish(value)
    assert messages_of(looker).index().total == 4
    assert listed == []
    assert read != []
    assert not [path for path in read if "parquet" in path], "the table was not opened again"
    assert messages_of(looker).log.state.files() == [], "they would take memory"


def test_a_publish_that_landed_is_found_though_the_log_was_cleaned_since(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost, and before it could look others published, and a sweep cleaned its commit
    away.
    """
    rival = again(queue)

    def later() -> None:
        rival.publish("rival")
        rival.publish("rival")
        index_and_clean(rival)

    on_commit(monkeypatch, "messages", after=later, fail=FileExistsError("412"))
    receipt = queue.publish("mine")
    values = {m.sequence: m.value for m in lease(again(queue), 100).messages}
    assert values[receipt.sequences[0]] == b"mine"
    assert queue.stats()["published"] == 3


def test_a_commit_that_is_gone_and_not_written_down_is_reported(queue: Queue) -> None:
    queue.publish("a")
    index_commits(queue)
    queue.publish("b")
    queue.publish("c")
    checkpoint(messages_of(queue))
    Path(messages_of(queue).path, "_delta_log", f"{2:020d}.json").unlink()
    with pytest.raises(errors.CorruptLog, match="commit 2"):
        messages_of(again(queue)).index()


# -- cleaning


def test_cleaning_takes_nothing_that_is_not_written_down(queue: Queue) -> None:
    for value in "ab":
        queue.publish(value)
    assert clean_messages(queue) == 0
    assert json_versions(queue) == [0, 1, 2]
    index_commits(queue)
    for value in "cd":
        queue.publish(value)
    assert clean_messages(queue) == 2, "all before the checkpoint of the last cleaning"
    assert json_versions(queue) == [2, 3, 4]
    index_commits(queue)
    assert clean_messages(queue) > 0
    assert again(queue).stats()["published"] == 4


def test_an_incomplete_checkpoint_frees_no_commit(queue: Queue) -> None:
    publish_and_index(queue, "abcdef")
    log = Path(messages_of(queue).path, "_delta_log")
    for version in (3, 4):  # another engine was killed before it wrote the second part
        whole = log / f"{version:020}.checkpoint.parquet"
        whole.rename(log / f"{version:020}.checkpoint.0000000001.0000000002.parquet")
    clean_messages(queue, 2)
    assert json_versions(queue) == [2, 3, 4, 5, 6]
    for version in (4, 5, 6):
        table = DeltaTable(messages_of(queue).path, version=version)
        assert table.to_pyarrow_table().num_rows == version


# -- writing it down, under faults


def counted(queue: Queue) -> list[int]:
    """Each version that is written down as a publish; twice if it is there twice."""
    return sorted(
        row["version"]
        for row in DeltaTable(f"{queue.path}/commits").to_pyarrow_table().to_pylist()
        if row["kind"] == "publish"
    )


def test_a_sweep_that_lost_its_race_leaves_no_file(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish("a")
    on_commit(monkeypatch, "commits", before=lambda: index_commits(again(queue)))
    assert index_commits(again(queue)) == 0
    assert len(list(Path(queue.path, "commits").glob("*.parquet"))) == 1


def test_a_table_whose_maker_was_killed_is_filled_by_the_next_sweep(queue: Queue) -> None:
    queue.publish("a")
    with rule_variant("create_table", then(die)), pytest.raises(Killed):
        index_commits(queue)
    queue.publish("b")
    index_and_clean(again(queue))
    assert counted(queue) == [1, 2]


def test_a_queue_made_anew_does_not_believe_what_was_written_down_of_the_old_one(
    delta_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a sweep of the old one is still under way."""
    old = delta_queue()
    old.publish("a")
    index_commits(old)
    for value in "bc":
        old.publish(value)
    commits, published = messages_of(old).commits, messages_of(old).published()
    for name in ("messages", "leases"):
        Path(old.path, name).rename(Path(old.path).parent / f"old-{name}")
    queue = delta_queue()
    queue.publish("new")
    assert [m.value for m in lease(queue).messages] == [b"new"]
    on_commit(monkeypatch, "commits", before=lambda: commits.index(published, 0))
    assert index_commits(queue) == 2
    assert counted(queue) == [1]
    index_and_clean(queue)
    assert [m.value for m in lease(again(queue), group="other").messages] == [b"new"]


def test_commits_keeps_few_files(queue: Queue, limits: Limits) -> None:
    limits(index_files=3, sweep_interval=1, archive_versions=0, archive_seconds=0.0)
    for n in range(12):
        queue.publish(str(n))
        assert index_commits(queue) == (2 if n == 0 else 1)
        before = set(Path(queue.path, "commits").rglob("*.*"))
        cleaned = messages_of(queue).clean()
        assert cleaned == len(before - set(Path(queue.path, "commits").rglob("*.*")))
        assert len(list(Path(queue.path, "commits").glob("*.parquet"))) <= 5
        assert len(DeltaTable(f"{queue.path}/commits").file_uris()) == n % 3 + 1
        assert again(queue).stats()["published"] == n + 1
    assert counted(queue) == list(range(1, 13))


def test_a_handle_that_reads_while_files_are_rewritten_reads_again(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    limits(orphan_seconds=0.0, index_files=1, sweep_interval=1, archive_versions=0)
    limits(archive_seconds=0.0)
    for value in "abc":
        queue.publish(value)
        if value != "c":
            index_commits(queue)
    assert clean_messages(queue) > 0, "so it cannot read the log instead"
    reader = again(queue)

    def rewrite() -> None:
        index_commits(queue)
        messages_of(queue).commits.clean()

    byte_store.inject("read_parquet", of=messages_of(reader).commits.files, before=rewrite)
    assert reader.stats()["published"] == 3


def test_a_process_that_slept_while_another_one_swept_opens_the_queue(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took commits/ for that of another log, because its own look was older."""
    queue.publish("a")
    fresh = again(queue)
    commits, values = messages_of(fresh).commits, iter(["bc", "de"])
    read = commits.read_after

    def slow_read(*of: Any) -> Any:
        for value in next(values, ""):
            queue.publish(value)
        index_and_clean(queue)
        return read(*of)

    monkeypatch.setattr(commits, "read_after", slow_read)
    assert fresh.stats()["published"] == 3


def test_cleaning_a_log_takes_checksums_and_old_checkpoints_along(queue: Queue) -> None:
    folder = Path(messages_of(queue).path, "_delta_log")
    (folder / f"{1:020d}.crc").write_text("{}")
    publish_and_index(queue, "abc")
    clean_messages(queue)
    left = sorted(path.name for path in folder.iterdir() if path.name[0].isdigit())
    assert left == [f"{3:020d}.checkpoint.parquet", f"{3:020d}.json"]
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 3
