"""Commits in ``messages/`` by somebody who may append and means harm: they are refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.arrow_memory import at_most
from support.clocks import instant
from support.handles import again, lease
from support.queues import Make
from support.tables import checkpoint, commit_file, ledgers_of, messages_of

from spark_mq import Queue
from spark_mq.errors import CorruptLog
from spark_mq.testing import ManualClock


def messages_folder(queue: Queue) -> Path:
    return Path(messages_of(queue).path)


def append(queue: Queue, *adds: dict[str, Any], more: Sequence[dict[str, Any]] = ()) -> int:
    """Write a commit that adds files, as any writer can. Returns its version."""
    version = messages_of(again(queue)).log.refresh().version + 1  # type: ignore[attr-defined]
    lines = [{"add": {**add, "partitionValues": {}, "modificationTime": 1}} for add in adds]
    lines += more
    text = "\n".join(json.dumps(line) for line in lines)
    commit_file(messages_folder(queue), version).write_text(text)
    return int(version)


def add_of(path: str, rows: int = 1, size: int = 1) -> dict[str, Any]:
    stats = json.dumps({"numRecords": rows})
    return {"path": path, "size": size, "dataChange": True, "stats": stats}


def parquet(path: Path, rows: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"value": [b"secret"] * rows}), path)
    return path


OUTSIDE = {
    "absolute": "{root}/outside/secret.parquet",
    "a URI": "file:{root}/outside/secret.parquet",
    "above": "a/../../../outside/secret.parquet",
    "encoded dots": "%2e%2e/%2E%2E/outside/secret.parquet",
    "the log": "_delta_log/00000000000000000000.json",
    "nothing": "",
    "NUL": "a\x00.parquet",
}


@pytest.mark.parametrize("path", OUTSIDE.values(), ids=OUTSIDE)
def test_only_files_inside_the_table_count(tmp_path: Path, delta_queue: Make, path: str) -> None:
    queue = delta_queue()
    queue.publish(["before"])
    parquet(tmp_path / "outside" / "secret.parquet")
    version = append(queue, add_of(path.format(root=tmp_path)))
    fresh = again(queue)
    assert [m.value for m in lease(fresh).messages] == [b"before"]
    with pytest.raises(CorruptLog, match=f"commit {version} of .*messages.* is refused") as caught:
        fresh.group().lease("w")
    assert caught.value.version == version
    with pytest.raises(CorruptLog, match="refused"):
        again(queue).stats()
    fresh.publish(["after"])
    # The hint of the error: give the commit up.
    commit_file(messages_folder(queue), version).write_text('{"commitInfo":{}}')
    assert [m.value for m in lease(again(queue)).messages] == [b"after"]


NOWHERE = {
    "a name of 300 bytes": "x" * 300,
    "a hundred thousand": "a/" * 100_000 + "f.parquet",
    "half a character": "a\ud800.parquet",
    "the other half": "a\udc80.parquet",
}
"""Names that no store can hold."""


@pytest.mark.parametrize("path", NOWHERE.values(), ids=NOWHERE)
def test_a_name_that_no_store_can_hold_is_a_missing_file(
    delta_queue: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Each of them stopped the queue, also for messages before it."""
    queue = delta_queue(retention=0)
    queue.group().ensure()
    queue.publish(["before"])
    version = append(queue, add_of(path))
    queue.publish(["after"])
    held = lease(again(queue))
    assert [m.value for m in held.messages] == [b"before", b"after"]
    held.ack()
    clock.advance(60)
    swept = again(queue).sweep()
    assert (swept.routed, swept.trimmed_files) == (1, 3), "no chore stops at the name"
    (letter,) = lease(queue.dead_letters).messages
    assert letter.headers["spark_mq.sequence"] == str(version << 32)
    assert "missing" in letter.headers["spark_mq.error"]
    assert max(map(len, caplog.messages)) < 1_000
    checkpoint(messages_of(again(queue)))
    queue.publish(["more"])
    assert [m.value for m in lease(again(queue)).messages] == [b"more"]


@pytest.mark.parametrize(
    "path", ["x" * 5_000, "a\ud800", "/etc/passwd", "../../x", "a\0b"], ids=ascii
)
def test_a_hostile_name_in_leases_breaks_its_group_alone(delta_queue: Make, path: str) -> None:
    queue = delta_queue()
    queue.publish(["a"])
    for name in ("hurt", "well"):
        queue.group(name).ensure()
    ledgers = ledgers_of(queue)
    add = {**add_of(path), "partitionValues": {"consumer_group": "hurt"}, "modificationTime": 1}
    add["tags"] = {"spark_mq.reached": "x"}
    commit_file(ledgers.path, ledgers.version() + 1).write_text(json.dumps({"add": add}))
    fresh = again(queue)
    with pytest.raises(CorruptLog, match="ledger of group 'hurt' cannot be read") as caught:
        fresh.group("hurt").lease("w")
    assert len(str(caught.value)) < 1_500
    assert lease(fresh, group="well").ack().settled == 1
    fresh.drop_group("hurt")
    again(queue).group("hurt").ensure()
    assert lease(again(queue), group="hurt").ack().settled == 1


@pytest.mark.parametrize("tag", ["x", str(9 << 32)])
def test_a_tag_replaces_only_messages_that_came_before(delta_queue: Make, tag: str) -> None:
    queue = delta_queue(dedup_window="1h", dedup_replaces=True)
    queue.publish(["before"])
    size = parquet(messages_folder(queue) / "f.parquet").stat().st_size
    append(queue, {**add_of("f.parquet", size=size), "tags": {"spark_mq.replaces": tag}})
    assert [m.value for m in lease(again(queue)).messages] == [b"before", b"secret"]
    assert not messages_of(again(queue)).index().files[1].replaces


def test_half_characters_stop_no_checkpoint(delta_queue: Make) -> None:
    """Those of numbers, tags and values of partitions, too."""
    queue, half = delta_queue(), "a\ud800"
    parquet(messages_folder(queue) / "f.parquet")
    stats = {"numRecords": 1, "minValues": {"key": half}, "maxValues": {"key": half}}
    append(
        queue,
        {**add_of("f.parquet"), "tags": {half: half}, "stats": json.dumps(stats)},
        more=[
            {"txn": {"appId": half, "version": 1}},
            {"commitInfo": {"operation": half, "userMetadata": json.dumps({half: half})}},
        ],
    )
    fresh = again(queue)
    assert [m.value for m in lease(fresh).messages] == [b"secret"]
    checkpoint(messages_of(fresh))
    fresh.sweep()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_no_link_leads_out_of_the_table(tmp_path: Path, delta_queue: Make, kind: str) -> None:
    queue = delta_queue(retention=0)
    secret = parquet(tmp_path / "outside" / "secret.parquet")
    target, name = (
        (secret, "link.parquet") if kind == "file" else (secret.parent, "link/secret.parquet")
    )
    os.symlink(target, messages_folder(queue) / name.partition("/")[0])
    append(queue, add_of(name))
    queue.publish(["own"])
    assert [m.value for m in lease(again(queue)).messages] == [b"own"]
    queue.sweep()
    (letter,) = lease(queue.dead_letters).messages
    assert not letter.value
    assert "link" in letter.headers["spark_mq.error"]
    queue.purge(queue.name)
    assert secret.exists(), "nor does a trim delete through it"


def test_a_link_inside_the_table_is_a_file_also_if_the_queue_lies_behind_one(
    tmp_path: Path, delta_queue: Make
) -> None:
    queue = delta_queue()
    parquet(messages_folder(queue) / "there" / "own.parquet")
    os.symlink("there/own.parquet", messages_folder(queue) / "link.parquet")
    append(queue, add_of("link.parquet"), add_of("there/own.parquet"))
    os.symlink(queue.path, tmp_path / "link")
    for group, path in {"here": queue.path, "behind": tmp_path / "link"}.items():
        assert [m.value for m in lease(Queue.open(path), group=group).messages] == [b"secret"] * 2


@pytest.mark.parametrize(
    ("files", "rows", "there"),
    [
        pytest.param(1, 2**20 + 1, True, id="few rows"),
        pytest.param(1, 4_000_000_000, False, id="no file"),
        pytest.param(8, 2**19, True, id="many files"),
    ],
)
def test_a_commit_that_claims_more_rows_than_its_files_have_is_refused(
    delta_queue: Make, files: int, rows: int, there: bool
) -> None:
    """One lease took such messages one by one, and found each of them unreadable."""
    queue = delta_queue()
    queue.publish(["before"])
    names = [f"lie-{n}.parquet" for n in range(files)]
    for name in names if there else ():
        parquet(messages_folder(queue) / name, 3)
    version = append(queue, *(add_of(name, rows) for name in names))
    fresh = again(queue)
    assert [m.value for m in lease(fresh).messages] == [b"before"]
    with pytest.raises(CorruptLog, match=rf"commit {version} .*refused.* claims {rows}"):
        fresh.group().lease("w")
    assert lease(queue, group="other").messages


def test_an_honest_large_commit_is_published(delta_queue: Make) -> None:
    queue = delta_queue()
    path = messages_folder(queue) / "large.parquet"
    rows = 2**20 + 5
    pq.write_table(pa.table({"value": pa.repeat(pa.scalar(b"x"), rows)}), path)
    append(queue, add_of("large.parquet", rows, path.stat().st_size))
    fresh = again(queue)
    assert fresh.stats()["published"] == rows
    assert [m.published_at for m in lease(fresh, 7).messages] == [instant(1_000)] * 7


# -- files that are larger than they look


def test_a_value_that_all_rows_share_is_held_once(delta_queue: Make) -> None:
    """A file of 100 kB decoded to 2 GB, for a lease of one message."""
    queue, rows, large = delta_queue(), 2_000, "x" * 1_000_000
    path = messages_folder(queue) / "bomb.parquet"
    once = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([large]))
    pq.write_table(pa.table({"value": once, "key": once}), path, store_schema=False)
    assert path.stat().st_size < 2**20
    append(queue, add_of("bomb.parquet", rows, path.stat().st_size))
    with at_most(512 * 2**20):
        read = lease(again(queue), 3).table()
    assert read["value"].to_pylist() == [large.encode()] * 3
    assert read["key"].to_pylist() == [large] * 3


@pytest.mark.parametrize(
    "digits", ["²" * 20, "٣" * 20, "0" * 19 + "٣"], ids=["superscript", "arabic", "one"]
)
@pytest.mark.parametrize("kind", [".json", ".crc", ".checkpoint.parquet"])
def test_a_file_whose_name_has_other_digits_is_none_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, digits: str, kind: str
) -> None:
    """int() refuses some digits, and reads others as a version far ahead."""
    queue = Queue.create(tmp_path / "queue", durable=False)
    queue.publish(["a", "b"])
    lease(queue, 1).reject(error="no")
    for log in (tmp_path / "queue").rglob("_delta_log"):
        (log / f"{digits}{kind}").write_text("{}\n")
    for _ in range(2):
        again(queue).sweep()
    again(queue).publish("c")
    assert again(queue).redrive().messages == 1
    assert [m.value for m in lease(again(queue), 9).messages] == [b"b", b"c", b"a"]
    assert not again(queue).describe().damaged
    assert not caplog.records, "no chore failed"
