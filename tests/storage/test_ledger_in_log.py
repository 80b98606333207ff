"""A small ledger is in the log: spark_mq reads no file of it, and SQL finds one all the same."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_store import ByteStore
from support.handles import again, history, lease
from support.limits import Limits
from support.queues import Make
from support.readers import reads_beside_a_writer
from support.rule_variants import first, rule_variant
from support.tables import as_in_a_store, checkpoint, last_checkpoint, ledgers_of

from spark_mq import Queue
from spark_mq.delta.actions import AddFile
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import StorageError
from spark_mq.ledger.ranges import Ledger, LedgerHeader, Range
from spark_mq.storage.ledger_files import (
    LEASES_SCHEMA,
    LEDGER_TAG,
    encode_ledger,
    read_ledger,
    rows_in_tag,
    secure_files,
    to_arrow,
)


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    made = delta_queue(retry_delay=0)
    made.publish([str(n) for n in range(10)])
    return made


def newest(queue: Queue, group: str = "default") -> Path:
    """The file of a group's ledger as it is now."""
    uris = DeltaTable(ledgers_of(queue).path).file_uris()
    (uri,) = (uri for uri in uris if f"consumer_group={group}/" in uri)
    return Path(uri.removeprefix("file://"))


def added(queue: Queue) -> list[AddFile]:
    return ledgers_of(again(queue)).open().files()  # type: ignore[union-attr]


def states(queue: Queue) -> list[tuple[str, str, int]]:
    """What SQL finds in ``leases/``, without the header and the events."""
    rows = DeltaTable(ledgers_of(queue).path).to_pyarrow_table()
    rows = rows.filter(pc.invert(pc.is_in(rows["state"], pa.array(["header", "event"]))))
    names = ("consumer_group", "state", "first")
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True))


# -- what is in the log


LEASED = Range(5, 9, "leased", 3, "id", "process~w", 1, 2, 3, 4, None, 1, 0, True, None)
TEXT = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
RANGES = st.lists(
    st.builds(
        lambda first, state, text, at, suspect: Range(
            first, first + 3, state, 4, text, text, at, at, 4, None, at, 2, 1, suspect, error=text
        ),
        st.integers(0, 2**62),
        st.sampled_from(["leased", "dead"]),
        TEXT,
        st.none() | st.integers(0, 2**50),
        st.booleans(),
    )
    | st.builds(lambda first: Range(first, first, "settled", 1), st.integers(0, 2**62)),
    max_size=15,
)


@settings(max_examples=50, deadline=None)
@given(RANGES, st.lists(st.sampled_from(["acked", "leased"]), max_size=5))
def test_the_tag_and_the_file_have_the_same_rows(ranges: list[Range], events: list[str]) -> None:
    head = LedgerHeader(7, 3, 2, counters={"acked": 1}, settings={"ü": '"'}, group="g")
    ranges.sort(key=lambda r: r.first)
    ledger = Ledger(head, ranges, [(event, LEASED) for event in events])
    encoded = encode_ledger(ledger)
    file = AddFile("p", len(encoded.data), tags={LEDGER_TAG: encoded.tag})
    rows = rows_in_tag(file)
    assert len(rows) == encoded.rows
    assert encoded.tag.count('"settled",1]') == sum(r.state == "settled" for r in ranges)
    in_file = pq.read_table(pa.BufferReader(encoded.data))
    columns = [name for name in LEASES_SCHEMA.names if name != "consumer_group"]
    assert to_arrow(rows.rows(), LEASES_SCHEMA).select(columns) == in_file
    back = read_ledger(ObjectStore("/nowhere"), "g", [file])
    assert (back.head, back.rows) == (head, ranges)


def test_no_file_of_a_small_ledger_is_read(queue: Queue, byte_store: ByteStore) -> None:
    lease(queue, 2).ack()
    lease(queue, 3)
    for path in Path(ledgers_of(queue).path, "consumer_group=default").glob("*.parquet"):
        path.unlink()
    read = byte_store.paths("read", "open", of="leases")
    fresh = again(queue)
    stats = fresh.group().stats()
    assert (stats.leased, stats.acked) == (3, 2)
    assert fresh.stats()["groups"]["default"].leased == 3
    assert not [path for path in read if path.endswith(".parquet")]
    assert fresh.sweep().archived_commits > 0
    assert set(history(fresh)["event"].to_pylist()) >= {"leased", "acked"}
    assert [m.value for m in lease(fresh, 10).messages] == [b"%d" % n for n in range(5, 10)]


def test_a_large_ledger_becomes_small_and_large_again(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    """As with processes of 0.1.0 and later ones on one queue. Over a store, a commit needs no file
    if the log has its rows.
    """
    for limit in (0, 16_384, 0, 16_384):
        limits(tag_bytes=limit)
        fresh = as_in_a_store(again(queue))
        lease(fresh, 2).ack()
        assert [LEDGER_TAG in file.tags for file in added(queue)] == [bool(limit)]
        byte_store.inject("write", of=ledgers_of(fresh).files, fail=OSError("503"))
        with nullcontext() if limit else pytest.raises(StorageError, match="503"):
            lease(fresh, 1).release()
    assert again(queue).group().stats().acked == 8


def test_a_tag_with_a_flipped_bit_leaves_the_ledger_to_the_file() -> None:
    rng = random.Random(1)
    tag = encode_ledger(Ledger(LedgerHeader(), [LEASED], [("leased", LEASED)])).tag
    for _ in range(500):
        data = bytearray(tag.encode())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
        file = AddFile("p", 1, tags={LEDGER_TAG: data.decode("utf-8", "replace")})
        assert rows_in_tag(file) is None


def newer_tag() -> str:
    tag = encode_ledger(Ledger(LedgerHeader(), [LEASED])).tag
    newer = tag[8:].replace('"leased"', '{"state":"leased"}')
    return f"{zlib.crc32(newer.encode()):08x}{newer}"


@pytest.mark.parametrize("text", ["", "x", "00000000", "[]", "\ud800", newer_tag()])
def test_what_is_no_tag_of_this_version_leaves_the_ledger_to_the_file(text: str) -> None:
    assert rows_in_tag(AddFile("p", 1, tags={LEDGER_TAG: text})) is None


def test_the_tags_of_other_groups_are_not_parsed(queue: Queue) -> None:
    """Every process follows the commits of all groups, which may be thousands."""
    parsed: list[str] = []

    reader = again(queue)
    assert reader.group("mine").lease("w", max_messages=1) is not None
    for name in ("one", "two"):
        lease(queue, 2, name).ack()
    noted = first(lambda a: parsed.append(a.file.partition["consumer_group"] or ""))
    with rule_variant("rows_in_tag", noted):
        assert lease(reader, 1, "mine")
        assert set(parsed) <= {"mine"}
        assert reader.group("one").stats().acked == 2
    assert set(parsed) - {"mine"} == {"one"}


# -- other engines


def test_a_reader_beside_a_busy_writer_never_misses_a_file(queue: Queue) -> None:
    lease(queue, 1)
    reads_beside_a_writer(queue, 100)


# -- files that a power cut takes


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return DAMAGE[request.param]


def damaged(queue: Queue, damage: Callable[[Path], object]) -> tuple[Path, bytes]:
    """Damage the first file after a checkpoint, so that SQL fails. Return it and what it had."""
    queue.group().ensure()
    checkpoint(ledgers_of(queue))
    lease(queue, 3)
    path = newest(queue)
    data = path.read_bytes()
    damage(path)
    with pytest.raises(Exception):  # noqa: B017, PT011 -- delta-rs has several for it
        DeltaTable(ledgers_of(queue).path).to_pyarrow_table()
    return path, data


def test_a_sweep_writes_a_lost_file_again(queue: Queue, damage: Callable[[Path], object]) -> None:
    path, data = damaged(queue, damage)
    again(queue).sweep()
    assert path.read_bytes() == data
    assert [state for _, state, _ in states(queue)] == ["leased"]


def test_the_first_commit_of_a_process_writes_lost_files_again(
    queue: Queue, damage: Callable[[Path], object]
) -> None:
    path, data = damaged(queue, damage)
    assert lease(again(queue), 1, "other")
    assert path.read_bytes() == data
    assert [state for _, state, _ in states(queue)] == ["leased", "leased"]


def test_a_disk_that_refuses_the_repair_does_not_stop_a_commit(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    damaged(queue, Path.unlink)
    fresh = again(queue)
    monkeypatch.setattr("spark_mq.storage.ledger_table.secure_files", refuse)
    assert lease(fresh, 1, "other")
    assert "were not checked: no" in caplog.text


def test_a_sweep_secures_the_files_of_another_engines_checkpoint(queue: Queue) -> None:
    path, data = damaged(queue, Path.unlink)
    ledgers = ledgers_of(queue)
    DeltaTable(ledgers.path).create_checkpoint()
    theirs = last_checkpoint(ledgers)
    again(queue).sweep()
    assert path.read_bytes() == data
    lease(queue, 1)
    again(queue).sweep()
    third = last_checkpoint(ledgers)
    assert third > theirs, "only its own is known to have secured its files"
    file = Path(ledgers.path, "_delta_log", f"{third:020d}.checkpoint.parquet")
    assert b"spark_mq.secured" in pq.ParquetFile(file).metadata.metadata
    lease(queue, 1)
    again(queue).sweep()
    assert last_checkpoint(ledgers) == third, "and not once more"


def test_a_checkpoint_over_another_engines_secures_its_files_too(queue: Queue) -> None:
    lease(queue, 1, "idle")
    DeltaTable(ledgers_of(queue).path).create_checkpoint()
    path = newest(queue, "idle")
    data = path.read_bytes()
    path.unlink()
    lease(queue, 1)
    checkpoint(ledgers_of(again(queue)))
    assert path.read_bytes() == data


def test_a_file_by_another_version_of_the_encoder_is_left_alone(queue: Queue) -> None:
    """Its size is in the log, so another one would not fit."""
    lease(queue, 1)
    newest(queue).write_bytes(b"theirs")
    (file,) = (replace(file, size=6) for file in added(queue))
    secure_files(ledgers_of(queue).files, [file, replace(file, path="p")], sync=True)
    assert newest(queue).read_bytes() == b"theirs"
    assert not Path(ledgers_of(queue).path, "p").exists()
