"""A queue's tables are ordinary Delta tables: what other engines and their users do to them ends
well, or in an error that helps.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from support.handles import again, history, housekeep, index_commits, lease
from support.limits import Limits
from support.marks import slow_but
from support.queues import Make
from support.tables import add_file, checkpoint, ledgers_of, messages_of, put_back
from support.working import leave_heartbeat

from spark_mq import GroupStats, Lease, Queue, errors
from spark_mq.ledger.message_index import sequence
from spark_mq.testing import ManualClock


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    return delta_queue()


def drain(queue: Queue, group: str = "default") -> list[bytes]:
    """The values of all that is due; acked."""
    found = []
    while (taken := queue.group(group).lease("w", max_messages=1_000)) is not None:
        found += [m.value for m in taken.messages]
        taken.ack()
    return found


def messages(queue: Queue) -> DeltaTable:
    return DeltaTable(messages_of(queue).path)


def leases(queue: Queue) -> DeltaTable:
    return DeltaTable(ledgers_of(queue).path)


def foreign(queue: Queue, *values: bytes | None, **columns: Any) -> None:
    """What a plain delta-rs writer does."""
    table = pa.table({"value": pa.array(values, pa.binary()), **columns})
    write_deltalake(messages(queue), table, mode="append", schema_mode="merge")


def vacuum(path: str, full: bool = False) -> list[str]:
    return DeltaTable(path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=full
    )


def entry(queue: Queue, version: int, table: str = "messages") -> Path:
    return Path(queue.path, table, "_delta_log", f"{version:020d}.json")


def data_file(queue: Queue, sequence: int) -> Path:
    return Path(messages_of(queue).path, messages_of(queue).index().file_at(sequence).path)


def dead(queue: Queue) -> list[tuple[bytes | None, str]]:
    """The dead letters: value, and why there is none."""
    queue.sweep()
    found = lease(queue.dead_letters, 1_000, "look")
    return [(m.value, m.headers.get("spark_mq.payload", "")) for m in found.messages]


# -- other writers, and users who tidy up, while work goes on


def test_foreign_writers_publish_while_workers_lease(queue: Queue) -> None:
    """Somebody optimizes and vacuums the tables all the time. The VACUUM of ``messages/`` needs no
    option to keep what is needed, because the table says how long to keep it.
    """
    wanted, settled, done = 60, [], threading.Event()

    def publish_foreign(mine: Queue) -> None:
        for n in range(wanted // 2):
            for _ in range(20):
                # deltalake gives up after 15 lost races: here three others commit without a pause.
                with suppress(CommitFailedError):
                    foreign(mine, b"foreign-%d" % n)
                    break
            else:
                raise AssertionError("a foreign writer lost 20 times 15 races")

    def publish(mine: Queue) -> None:
        for n in range(wanted // 2):
            mine.publish(f"own-{n}")

    def work(mine: Queue) -> None:
        while not done.is_set():
            if (taken := mine.group().lease("w", max_messages=5, wait=0.2)) is not None:
                taken.ack()
                settled.extend(message.text for message in taken.messages)
                if len(settled) >= wanted:
                    done.set()

    def tidy(mine: Queue) -> None:
        while not done.wait(0.05):
            # It is the user's OPTIMIZE that loses against a worker's commit.
            with suppress(DeltaError):
                messages(mine).optimize.compact()
                messages(mine).vacuum(dry_run=False)
            with suppress(DeltaError):
                leases(mine).optimize.compact()
                vacuum(ledgers_of(mine).path)

    calls = [publish_foreign, publish, work, work, tidy]
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(call, again(queue)) for call in calls]
        try:
            assert wait(running, 60, FIRST_EXCEPTION).not_done == set()
        finally:
            done.set()
    for ended in running:
        ended.result()
    names = ("foreign", "own")
    assert sorted(settled) == sorted(f"{name}-{n}" for name in names for n in range(wanted // 2))
    stats = again(queue).group().stats()
    assert (stats.acked, stats.dead, stats.ready, stats.leased) == (wanted, 0, 0, 0)


def test_a_rewrite_under_a_lease_changes_nothing(queue: Queue) -> None:
    for value in "abc":
        queue.publish([value, value])
    held, late = lease(queue, 3), again(queue)
    leave_heartbeat(queue, "default", "w-1")
    messages(queue).optimize.z_order(["published_at"])
    messages(queue).vacuum(dry_run=False)
    leases(queue).optimize.z_order(["first"])
    vacuum(ledgers_of(queue).path, full=True)
    assert "w-1" in {worker.worker_id for worker in queue.group().workers()}
    assert [m.value for m in held.messages] == [b"a", b"a", b"b"]
    assert held.ack().settled == 3
    assert drain(late) == [b"b", b"c", b"c"]
    assert drain(again(queue), "other") == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert queue.stats()["published"] == 6


def test_a_vacuum_of_the_ledgers_past_is_archived_as_far_as_it_is_known(
    queue: Queue, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, whose events only the files have
    queue.publish(["a", "b"])
    lease(queue, 1).ack()
    leases(queue).optimize.z_order(["first"])
    vacuum(ledgers_of(queue).path, full=True)
    assert queue.sweep().archived_commits > 0
    assert f"the history of commit 1 of {ledgers_of(queue).path} is lost" in caplog.text
    assert drain(again(queue)) == [b"b"]
    assert queue.sweep().archived_commits > 0, "the sweep goes on behind it"


def test_messages_cannot_be_changed_by_accident(queue: Queue) -> None:
    queue.publish(["a", "b"])
    table, rows = messages(queue), pa.table({"value": [b"x"]})
    changes: list[Callable[[], object]] = [
        lambda: table.delete("value = 'a'"),
        table.delete,
        lambda: table.update(updates={"key": "'x'"}),
        lambda: write_deltalake(table, rows, mode="overwrite", schema_mode="merge"),
    ]
    for change in changes:
        with pytest.raises(DeltaError, match="append-only"):
            change()
    assert drain(queue) == [b"a", b"b"]


def test_a_forced_update_or_delete_publishes_nothing_and_is_reported(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b"])
    queue.publish("c")
    messages(queue).alter.set_table_properties({"delta.appendOnly": "false"})
    messages(queue).update(updates={"key": "'x'"}, predicate="value = 'a'")
    messages(queue).delete("value = 'c'")
    with caplog.at_level(logging.WARNING):
        assert drain(queue) == [b"a", b"b", b"c"]
    for version, what in ((4, "UPDATE"), (5, "DELETE")):
        commit = f"commit {version} of {messages_of(queue).path}"
        assert f"{commit} rewrites messages, or deletes some ({what})" in caplog.text
    queue.publish("d")
    assert drain(queue) == [b"d"]
    assert again(queue).stats()["published"] == 4


def test_a_column_more_disturbs_neither_publishers_nor_readers(queue: Queue) -> None:
    queue.publish("a")
    worker = again(queue)
    assert drain(worker) == [b"a"]
    foreign(queue, b"b", None, extra=pa.array([1, 2]))
    messages(queue).alter.add_columns([Field("more", PrimitiveType("string"))])
    queue.publish("c")
    worker.publish("d")
    assert drain(worker) == [b"b", None, b"c", b"d"]
    assert drain(again(queue), "other") == [b"a", b"b", None, b"c", b"d"]


@pytest.mark.parametrize(
    "value", [pa.array([b"a"], pa.binary()), pa.array(["a"], pa.string())], ids=["binary", "text"]
)
def test_delta_rs_publishes_the_value_alone_with_schema_mode_merge_only(
    queue: Queue, value: pa.Array
) -> None:
    """Once it is not refused without, the documentation can drop schema_mode.

    Merging changes nothing in the schema.
    """
    rows, before = pa.table({"value": value}), messages(queue).schema().to_json()
    with pytest.raises(DeltaError, match="number of fields does not match: 1 vs 8"):
        write_deltalake(messages(queue), rows, mode="append")
    write_deltalake(messages(queue), rows, mode="append", schema_mode="merge")
    assert messages(queue).schema().to_json() == before
    assert drain(queue) == [b"a"]


def test_delta_rs_publishes_all_columns_without_a_schema_mode(queue: Queue) -> None:
    schema = messages(queue).to_pyarrow_table().schema
    columns = [
        pa.array([b"a"], f.type) if f.name == "value" else pa.nulls(1, f.type) for f in schema
    ]
    write_deltalake(messages_of(queue).path, pa.table(columns, schema=schema), mode="append")
    (message,) = lease(queue).messages
    assert (message.value, message.message_id) == (b"a", str(message.sequence))


def test_messages_has_no_partitions_and_its_files_lie_in_its_root(queue: Queue) -> None:
    queue.publish(["a"])
    foreign(queue, b"b")
    table = messages(queue)
    assert table.metadata().partition_columns == []
    assert all("/" not in file.path for file in messages_of(queue).index().files)
    folders = [path.name for path in Path(messages_of(queue).path).iterdir() if path.is_dir()]
    assert folders == ["_delta_log"]


def test_text_in_a_foreign_commit_may_hold_any_line_separator(queue: Queue) -> None:
    """Raw in JSON they are allowed. Because of NaN, Python splits the lines of this commit."""
    queue.publish("a")
    entry(queue, 2).write_text(
        '{"commitInfo":{"timestamp":1,"odd":NaN,"userMetadata":"a\u2028b\u2029c\x85d"}}\n',
        encoding="utf-8",
    )
    queue.publish("b")
    assert drain(queue) == drain(again(queue), "other") == [b"a", b"b"]


# -- each table, after each operation

TABLES = {"messages": "published_at", "leases": "first", "commits": "first", "history": "first"}
"""A column to order each table by."""


def there_and_back(path: str) -> None:
    """Restore the version before the last one, and then the last one."""
    version = DeltaTable(path).version()
    if version > 1:
        DeltaTable(path).restore(version - 1, ignore_missing_files=True)  # a trim deletes files
        DeltaTable(path).restore(version)


TIDY: dict[str, Callable[[str, str], object]] = {
    "compacted": lambda path, _: DeltaTable(path).optimize.compact(),
    "ordered": lambda path, column: DeltaTable(path).optimize.z_order([column]),
    "vacuumed": lambda path, _: DeltaTable(path).vacuum(dry_run=False),
    "checkpointed": lambda path, _: DeltaTable(path).create_checkpoint(),
    "restored": lambda path, _: there_and_back(path),
    "appended to": lambda path, _: write_deltalake(
        path, DeltaTable(path).to_pyarrow_table().slice(0, 0), mode="append"
    ),
}


@pytest.mark.parametrize("tidy", slow_but({"compacted"}, TIDY))
def test_each_table_may_be_tidied_by_another_engine_after_each_operation(
    delta_queue: Make, clock: ManualClock, tidy: str
) -> None:
    queue = delta_queue(retention=0, retry_delay=0, retry_jitter=0)
    worker, held = again(queue), list[Lease]()

    def publish() -> None:
        foreign(queue, b"foreign")
        queue.publish(["a", "b"])

    def take() -> None:
        held.append(lease(worker, 1))

    def counts(handle: Queue) -> list[GroupStats]:
        """Without the version of ``messages/``: another engine's commits count there."""
        names = [name for name in ("default", "other") if name in queue.groups()]
        return [replace(handle.group(name).stats(), latest_version=0) for name in names]

    steps: list[Callable[[], object]] = [
        publish, take, lambda: held.pop().ack(), take, lambda: held.pop().nack(delay=0), take,
        lambda: held.pop().reject(),
        worker.group("other").ensure, worker.group("gone").ensure, lambda: queue.drop_group("gone"),
        queue.sweep,
        take,
        lambda: held[-1].extend(),  # noqa: PLW0108 - the lease is known only then
        publish, lambda: held.pop().release(), lambda: worker.group("other").seek("latest"),
        queue.sweep,
        lambda: queue.group().configure(max_failures=7), lambda: index_commits(queue),
        lambda: clock.advance("1m"), queue.sweep,
    ]  # fmt: skip
    for step in steps:
        step()
        for handle in (worker, queue):
            stats = handle.group().ensure().stats()
            ended = stats.acked + stats.dead_lettered + stats.dead
            assert ended + stats.ready + stats.leased == handle.stats()["published"]
        before = counts(queue)
        for name, column in TABLES.items():
            path = f"{queue.path}/{name}"
            if Path(path).exists():
                table = DeltaTable(path)
                rows = table.to_pyarrow_table().num_rows
                assert sum(table.get_add_actions()["num_records"].to_pylist()) == rows
                TIDY[tidy](path, column)
                assert DeltaTable(path).to_pyarrow_table().num_rows == rows
        for handle in (queue, worker, again(queue)):
            assert counts(handle) == before
    assert sorted(drain(worker)) == [b"a", b"b", b"b", b"foreign"]
    assert drain(again(queue), "other") == []
    assert dead(again(queue)) == [(b"a", "")]
    stats = again(queue).group().stats()
    assert (stats.acked, stats.dead_lettered, queue.stats()["published"]) == (5, 1, 6)
    events = queue.trace(sequence(1, 0)).events
    assert [event.event for event in events] == ["leased", "acked", "skipped"]
    queue.publish("later")
    assert drain(queue) == drain(worker, "other") == [b"later"]


# -- going back


def test_a_restore_of_the_ledgers_takes_deliveries_back_and_loses_nothing(queue: Queue) -> None:
    queue.publish(["a", "b", "c"])
    worker = again(queue)
    first = lease(worker, 1)
    before = leases(queue).version()
    first.ack()
    held = lease(worker, 1)
    leases(queue).restore(before)
    restored = leases(queue).version()
    with pytest.raises(errors.LeaseLost):
        held.ack()
    assert queue.group().ack(first.lease_id).settled == 1, "its lease is held again"
    assert drain(worker) == [b"b", b"c"]
    assert again(queue).sweep().archived_commits > 0
    assert restored not in history(queue)["version"].to_pylist(), "its events are of older ones"


# -- logs and files that were damaged

GIVEN_UP = '{"commitInfo":{}}\n'


LOG_DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "garbage": lambda path: path.write_bytes(b"\x00\xff\xfe"),
    "other JSON": lambda path: path.write_bytes(b'{"add": [1]}\n'),
}


@pytest.mark.parametrize("how", LOG_DAMAGE)
def test_a_broken_commit_names_itself_and_what_lies_before_it_goes_on(
    queue: Queue, limits: Limits, how: str
) -> None:
    limits(gap_check_seconds=0)
    for value in "ab":
        queue.publish(value)
    worker, full = again(queue), again(queue)
    worker.stats()
    for value in "cde":
        queue.publish(value)
    full.stats()
    commit = entry(queue, 3)
    good = commit.read_bytes()
    LOG_DAMAGE[how](commit)

    taken = lease(worker, 10, "w")
    assert [m.value for m in taken.messages] == [b"a", b"b"], "what lies before it goes on"
    taken.ack()
    everything = [b"a", b"b", b"c", b"d", b"e"]
    assert drain(full, "full") == everything, "and all for a reader that had read it before"
    calls: list[Callable[[], object]] = [
        lambda: worker.group("w").lease("w"),
        lambda: worker.group("w").seek("latest"),
        worker.stats,
        lambda: worker.group("late", start="latest").ensure(),
        lambda: again(queue),
        worker.sweep,
    ]
    if how == "deleted":
        calls.append(lambda: worker.publish("x"))  # it would fill the hole with what nobody sees
    for call in calls:
        with pytest.raises(errors.CorruptLog) as caught:
            call()
        assert caught.value.version == 3
        place = messages_of(queue).path, "_delta_log/00000000000000000003.json"
        for part in ("commit 3", *place, "backup", GIVEN_UP.strip()):
            assert part in str(caught.value)
        assert "unknown>" not in str(caught.value), "no stack of another language"

    commit.write_bytes(good)
    for handle in (worker, full, again(queue)):
        assert handle.stats()["published"] == 5
    assert drain(worker, "w") == [b"c", b"d", b"e"]


def test_the_last_commit_deleted_under_a_handle_is_reported_not_replaced(queue: Queue) -> None:
    queue.publish("a")
    queue.publish("b")
    reader, publisher = again(queue), queue
    reader.stats()
    good = entry(queue, 2).read_bytes()
    entry(queue, 2).unlink()
    for call in (reader.stats, lambda: publisher.publish("x"), lambda: publisher.publish("x")):
        with pytest.raises(errors.CorruptLog, match=r"commit 2 of .* is missing from its log"):
            call()
    entry(queue, 2).write_bytes(good)  # with another time than it had
    assert reader.stats()["published"] == 2
    assert publisher.publish("c").version == 3
    assert reader.stats()["published"] == 3

    entry(queue, 3).write_text('{"commitInfo":{}}')
    with pytest.raises(errors.CorruptLog, match="was replaced after it was read"):
        reader.stats()
    entry(queue, 3).unlink()
    again(queue).publish("other")
    with pytest.raises(errors.CorruptLog, match="was replaced after it was read"):
        reader.group().lease("w")
    assert drain(again(queue)) == [b"a", b"b", b"other"]


def flip_bit(path: Path) -> None:
    """In a value, or in the path of a file."""
    path.write_bytes(path.read_bytes().replace(b"poor", b"pOor").replace(b"part-", b"pArt-"))


def overwrite_page(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 60 + data[64:])


ONE_ROW = pa.table({"value": [b"1"]})
DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "empty": lambda path: path.write_bytes(b""),
    "a bit flipped in a page": flip_bit,
    "a page overwritten": overwrite_page,
    "fewer rows than the commit says": lambda path: pq.write_table(ONE_ROW, path),
}


@pytest.mark.parametrize("when", ["before the lease", "under the lease"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_messages_of_a_broken_file_are_dead_at_once_and_the_others_go_on(
    queue: Queue, damage: str, when: str
) -> None:
    queue.publish(["good-1"])
    receipt = queue.publish(["poor-1", "poor-2"])
    queue.publish(["good-2"])
    path = data_file(queue, receipt.sequences[0])
    if when == "before the lease":
        DAMAGE[damage](path)
    taken = lease(queue, 10)
    if when == "under the lease":
        DAMAGE[damage](path)
    assert [m.value for m in taken.messages] == [b"good-1", b"good-2"]
    assert taken.ack().settled == 2
    stats = queue.group().stats()
    assert (stats.acked, stats.dead) == (2, 2)
    reported = dead(queue)
    assert [value for value, _ in reported] == [None, None]
    assert all(path.name in why for _, why in reported)
    assert drain(queue) == []


def test_a_broken_page_leaves_the_rest_of_its_file_alone(
    queue: Queue, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits(row_group_rows=2)
    receipt = queue.publish(["1", "2", "poor", "4", "5"])
    path = data_file(queue, receipt.sequences[0])
    DAMAGE["a bit flipped in a page"](path)
    assert drain(queue) == [b"1", b"2", b"5"]
    assert "cannot be read and are dead" in caplog.text
    assert [value for value, _ in dead(queue)] == [None, None]


def test_text_that_is_no_utf8_makes_its_messages_dead(queue: Queue) -> None:
    key = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    path = Path(messages_of(queue).path, "part-foreign.parquet")
    pq.write_table(pa.table({"value": [b"bad"], "key": key}), path)
    add_file(queue, path.name, stats='{"numRecords": 1}')
    queue.publish("good")
    assert drain(queue) == [b"good"]
    assert queue.group().stats().dead == 1
    queue.sweep()


def test_a_broken_file_without_statistics_names_itself_and_can_be_given_up(queue: Queue) -> None:
    queue.publish("a")
    path = Path(messages_of(queue).path, "part-bare.parquet")
    path.write_bytes(b"PAR1 no more")
    add_file(queue, path.name, 12)
    queue.publish("c")
    named = r"part-bare\.parquet.*commit 2.*a Parquet file without rows"
    with pytest.raises(errors.CorruptLog, match=named) as caught:
        again(queue).stats()
    assert caught.value.version == 2
    taken = lease(queue)
    assert [m.value for m in taken.messages] == [b"a"], "what lies before it goes on"
    taken.ack()
    pq.write_table(pa.table({"value": pa.array([], pa.binary())}), path)
    assert drain(queue) == [b"c"]
    assert again(queue).stats()["published"] == 2


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "a page overwritten"])
def test_a_broken_ledger_stops_its_own_group_only_and_can_be_given_up(
    queue: Queue, limits: Limits, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only the file has
    queue.publish(["a", "b"])
    for name in ("broken", "sound"):
        lease(queue, 1, name).ack()
    (path,) = (Path(uri) for uri in leases(queue).file_uris() if "consumer_group=broken" in uri)
    DAMAGE[damage](path)
    fresh = again(queue)
    broken = fresh.group("broken")
    for call in (lambda: broken.lease("w"), broken.stats, fresh.stats, fresh.sweep):
        with pytest.raises(errors.CorruptLog) as caught:
            call()
        for part in ("'broken'", path.name, "backup", "drop_group('broken')"):
            assert part in str(caught.value)
    assert fresh.trace(fresh.peek()[0].sequence).blocked == ()
    queue.publish("c")
    lease(fresh, 1, "sound").reject()
    with pytest.raises(errors.CorruptLog):
        fresh.sweep()
    assert caplog.text.count("a chore of the sweep failed") == 2, "once in each sweep"
    assert len(lease(queue.dead_letters, 9)) == 1, "the sweep has routed the sound group's message"
    assert drain(fresh, "sound") == [b"c"]
    assert fresh.redrive(dry_run=True).messages == 1
    assert "left out" not in caplog.text, "there is no message that the sweep has not routed"
    fresh.drop_group("broken")
    assert drain(fresh, "broken") == [b"a", b"b", b"c"], "it begins again"
    fresh.sweep()


@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_a_broken_commit_of_the_ledgers_is_named_and_given_up_as_reported(
    queue: Queue, how: str
) -> None:
    queue.publish(["a", "b", "c"])
    lease(queue, 1).ack()
    broken = leases(queue).version() + 1
    lease(queue, 1).ack()
    LOG_DAMAGE[how](entry(queue, broken, "leases"))
    with pytest.raises(
        errors.CorruptLog, match=f"commit {broken} of {ledgers_of(queue).path}"
    ) as caught:
        again(queue)
    assert caught.value.version == broken
    for part in ("backup", "stop the workers", "all later ones"):
        assert part in str(caught.value)
    for version in (broken, broken + 1):
        entry(queue, version, "leases").unlink(missing_ok=True)
    worker = again(queue)
    assert worker.group().stats().acked == 1
    assert drain(worker) == [b"b", b"c"], "what was settled since comes again"
    worker.sweep()


@pytest.mark.parametrize("damage", ["missing", "truncated", "a bit flipped in a page"])
def test_a_broken_commits_table_is_named_where_it_is_needed(queue: Queue, damage: str) -> None:
    queue.publish("a")
    index_commits(queue)
    (path,) = Path(queue.path, "commits").glob("*.parquet")
    DAMAGE[damage](path)
    assert drain(again(queue)) == [b"a"], "the log has all its commits still"
    shutil.rmtree(Path(queue.path, "commits"))
    queue.publish("b")
    index_commits(queue)
    assert housekeep(queue, keep_versions=0, keep_seconds=0) > 0
    with put_back(queue, "commits"):
        with put_back(queue, "messages"):
            queue.publish("c")
            index_commits(queue)
        with pytest.raises(errors.TablesDisagree, match="3 of messages/, which ends at version 2"):
            again(queue).stats()
    entry(queue, 2).write_text('{"commitInfo":{}}')
    with pytest.raises(errors.TablesDisagree, match="version 2 of messages/ differs"):
        again(queue).stats()
    DAMAGE[damage](next(iter(Path(queue.path, "commits").glob("*.parquet"))))
    with pytest.raises(errors.CorruptLog, match=r"commits cannot be read: .*backup"):
        again(queue).stats()


def test_a_feature_in_an_old_commit_is_refused_although_a_checkpoint_is_newer(queue: Queue) -> None:
    for value in "abc":
        queue.publish(value)
    checkpoint(messages_of(queue))
    entry(queue, 2).write_text('{"add":{"path":"x","size":1,"deletionVector":{"storageType":"u"}}}')
    with pytest.raises(errors.UnsupportedTable, match=r"deletionVectors.*, since commit 2"):
        again(queue).stats()


# -- tables made again


def test_the_archive_or_the_index_deleted_is_made_anew(queue: Queue) -> None:
    queue.publish(["a", "b"])
    lease(queue, 1).ack()
    queue.sweep()
    other = again(queue)
    other.sweep()
    for name in ("history", "commits"):
        shutil.rmtree(Path(queue.path, name))
    queue.publish("c")
    assert queue.sweep().indexed_commits == 3
    other.publish("d")
    assert other.sweep().indexed_commits == 1
    assert drain(queue) == [b"b", b"c", b"d"]


def test_a_dead_letter_queue_made_anew_under_a_handle_is_reported(queue: Queue) -> None:
    queue.publish(["a", "b"])
    lease(queue, 1).reject()
    queue.sweep()
    shutil.rmtree(queue.dead_letters.path)
    lease(queue, 1).reject()
    with pytest.raises(errors.SparkMQError, match="dead_letters"):
        queue.sweep()
    assert drain(queue) == []
    assert again(queue).sweep().routed == 1, "the next process makes it"
    assert again(queue).dead_letters.stats()["published"] == 1


def test_a_commit_time_far_out_is_bounded(queue: Queue, clock: ManualClock) -> None:
    """Some writer's clock, or its unit, was wrong: seeks and retention go by what is left of it."""
    queue.publish("a")
    add = {"path": "part-x.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1,
           "dataChange": True,
           "stats": '{"numRecords": 1, "nullCount": {"deliver_at": 1, "expires_at": '
                    '1}}'}  # fmt: skip
    pq.write_table(pa.table({"value": [b"x"]}), Path(messages_of(queue).path, "part-x.parquet"))
    entry(queue, 2).write_text(
        json.dumps({"commitInfo": {"timestamp": 10**17}}) + "\n" + json.dumps({"add": add}) + "\n"
    )
    queue.publish("b")
    worker = again(queue)
    found = lease(worker, 10)
    assert [m.value for m in found.messages] == [b"a", b"x", b"b"]
    assert found.messages[1].published_at.year == 9999
    queue.group().seek(clock() + timedelta(days=1))
    worker.sweep()
    assert worker.stats()["published"] == 3
