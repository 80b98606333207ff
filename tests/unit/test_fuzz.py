"""Input from outside is understood or refused by an error of spark_mq: never another error, never a
hang.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.handles import memory_store
from support.tables import messages_of

from spark_mq import GroupSettings, QueueSettings, errors
from spark_mq.delta.actions import AddFile, Change, Commit, parse_commit
from spark_mq.delta.state import TableState, last_checkpoint
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.spark.options import READ_OPTIONS, ReadOptions, WriteOptions
from spark_mq.storage.ledger_files import LEASES_SCHEMA, from_rows, to_rows
from spark_mq.streaming.source import check_offset, parse_offset, stream_id_in_queue
from spark_mq.testing import memory_queue
from spark_mq.util import validation as checks

DEEP = "[" * 100_000
LONG = "9" * 5_000

texts = st.text(max_size=30) | st.sampled_from(
    ["", DEEP, LONG, "²", "٣", "\x00", "NaN", "1e999", "-0", "0001-01-01T00:00:00+14:00"]
)
numbers = (
    st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**400])
)
scalars = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from([*READ_OPTIONS, "storageOptions.x", "checkpointLocation"])
names |= names.map(str.upper)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of its fields as they should be, some of anything, some left out."""
    return st.fixed_dictionaries(
        {}, optional={name: st.one_of(good, anything) for name, good in fields.items()}
    )


def refused(call: Callable[[], object], *kinds: type[errors.SparkMQError]) -> Any:
    """The error of a call, of one of some kinds; None without one."""
    try:
        call()
    except kinds as error:
        return error
    return None


# -- options


@given(
    st.dictionaries(
        names | texts,
        texts | st.from_regex(r"[0-9]{1,20}(ms|s|m|h|d|k|mb|g)?", fullmatch=True),
        max_size=6,
    )
)
@example({"path": DEEP})
@example({"path": "q", "startingPosition": "0001-01-01T00:00:00+14:00"})
@example({"path": "q", "startingPosition": LONG})
@example({"path": "q", "maxBytesPerTrigger": "²"})
@example({"path": "q", "maxBytesPerTrigger": LONG})
@example({"path": "q", "maxMessagesPerTrigger": LONG})
def test_options(options: dict[str, str]) -> None:
    for kind in (ReadOptions, WriteOptions):
        refusal = refused(lambda kind=kind: kind.parse(options), errors.InvalidOption)
        if refusal is None:
            assert kind.parse(options).storage_options is not None
        else:
            assert refusal.option.lower() in {"path", *(name.lower() for name in options)}


@given(
    st.sampled_from(["duration", "count", "size", "rate", "fraction", "name", "group"]), anything
)
def test_values_at_the_door(kind: str, value: Any) -> None:
    check = getattr(checks, f"validate_{kind}")
    refusal = refused(lambda: check("thing", value), errors.InvalidOption)
    assert refusal is None or (refusal.option == "thing" and "thing" in str(refusal))


@given(
    texts
    | st.builds(
        json.dumps,
        shaped(
            format=st.just("spark_mq queue"),
            format_version=st.just(QueueSettings.VERSION),
            group=anything,
        ),
    )
)
def test_descriptions_of_tables(text: str) -> None:
    try:
        found = QueueSettings.from_json(text)
    except errors.UnsupportedTable:
        return
    assert found is None or isinstance(found.group, GroupSettings)


# -- offsets and lease ids


@given(anything | shaped(batch=st.integers(0, 9), stream=st.uuids().map(str), queues=anything))
@example({"batch": 0, "stream": "-" * 36})
@example({"batch": 2**63, "stream": "0" * 8 + "-0000" * 3 + "-" + "0" * 12})
def test_offsets(offset: Any) -> None:
    several = partial(parse_offset, several=True)
    for check in (check_offset, parse_offset, several):
        try:
            stream, n = check(offset)
        except errors.InvalidOption:
            continue
        assert 0 <= 2 * n + 2 < 2**63
        assert stream_id_in_queue(stream, "/a") != stream_id_in_queue(stream, "/b")
        assert parse_lease_id(f"{stream}/{n}/0a") == (stream, n, "0a")


@given(texts | st.from_regex(r"[0-9a-f-]{36}/[0-9]{1,30}/[0-9a-f]+", fullmatch=True))
@example("0" * 8 + "-0000" * 3 + "-" + "0" * 12 + "/" + LONG + "/a")
def test_lease_ids(text: str) -> None:
    found = parse_lease_id(text)
    assert found is None or f"{found[0]}/" in text


# -- the log of messages/

LOG = messages_of(memory_queue())

paths = (
    st.sampled_from(["a.parquet", "lane=7/b%20c.parquet", "../../etc/passwd", "%00", "é\u2028"])
    | texts
)
counts = st.integers(0, 3)
stats = st.builds(
    json.dumps, shaped(numRecords=counts, nullCount=shaped(deliver_at=counts, expires_at=counts))
)
partitions = shaped(consumer_group=texts)
actions = st.fixed_dictionaries(
    {},
    optional={
        "add": shaped(
            path=paths,
            size=counts,
            modificationTime=counts,
            dataChange=st.booleans(),
            stats=stats,
            partitionValues=partitions,
        ),
        "remove": shaped(path=paths, dataChange=st.booleans(), partitionValues=partitions),
        "txn": shaped(appId=texts, version=counts),
        "commitInfo": shaped(timestamp=counts, userMetadata=texts, operation=texts),
        "protocol": shaped(
            minReaderVersion=counts,
            minWriterVersion=counts,
            readerFeatures=st.lists(texts, max_size=2),
        ),
        "metaData": anything,
        "other": anything,
    },
)
lines = st.builds(json.dumps, actions | anything, ensure_ascii=st.booleans())
commits = st.lists(lines, max_size=4).map(
    lambda parts: "\n".join(parts).encode("utf-8", "surrogatepass")
) | st.binary(max_size=60)
GOOD_ADD = (
    b'{"add":{"path":"a","stats":"{\\"numRecords\\": 2, \\"nullCount\\": '
    b'{\\"deliver_at\\": 2, \\"expires_at\\": 2}}"}}'
)


@settings(max_examples=5 * settings.default.max_examples)
@given(commits)
@example(DEEP.encode())
@example(b'{"add": null}')
@example(b'{"add":{"path":"a","stats":"' + b'[' * 50_000 + b'"}}')  # fmt: skip
@example(b'{"commitInfo":{"timestamp":' + LONG.encode() + b"}}")
@example(b'{"commitInfo":{"timestamp":1e400}}')
@example(b'{"add":{"path":"a","stats":"{\\"numRecords\\": 4294967297}"}}')
@example(GOOD_ADD + b"\n" + GOOD_ADD)
@example(b"\xef\xbb\xbf" + GOOD_ADD)
def test_commits(text: bytes) -> None:
    """A commit is taken in as a whole or not at all.

    What it said goes to commits/ and comes back.
    """
    state = LOG.none_published()
    refusal = refused(
        lambda: state.apply(parse_commit(7, text, "q/messages")),
        errors.CorruptLog,
        errors.UnsupportedTable,
    )
    if refusal is not None:
        assert "commit 7" in str(refusal)
        assert (state.index.version, state.index.total, state.producer_numbers) == (-1, 0, {})
        return
    rows = state.rows_since(-1)
    copy = LOG.none_published()
    assert rows.schema == LOG.commits.schema
    copy.load_rows(rows, 7)
    assert list(copy.index.files) == list(state.index.files)
    assert copy.producer_numbers == state.producer_numbers
    state.apply(parse_commit(8, b'{"commitInfo": {}}', "q/messages"))


def test_a_good_commit_is_understood() -> None:
    state = LOG.none_published()
    state.apply(parse_commit(1, GOOD_ADD, "q/messages"))
    assert (state.index.total, state.index.last_sequence) == (2, (1 << 32) + 1)


CHANGES = [
    Change("op", {}, partitions=[{"consumer_group": "g"}]),
    Change("op", {}, removes=[AddFile("a", 1)], txns=[("app", 1)]),
    Change("op", {}, whole_table=True),
]


@settings(max_examples=5 * settings.default.max_examples)
@given(st.lists(commits, max_size=3), commits)
@example([b'{"add":{"path":"a","partitionValues":{"consumer_group":["g"]}}}'], b"")
@example([b'{"remove":{"path":"a","partitionValues":{"consumer_group":["g"]}}}'], b"")
@example([b'{"metaData":{"configuration":[],"id":[]}}'], GOOD_ADD)
def test_the_state_of_a_table(before: list[bytes], text: bytes) -> None:
    """What was parsed can be applied, and compared with a change that is to be committed."""
    state = TableState()
    for version, one in enumerate([*before, text]):
        try:
            commit = parse_commit(version, one, "q/leases")
            commit.check_features("q/leases")
        except (errors.CorruptLog, errors.UnsupportedTable):
            return
        assert {type(commit.conflict_with(change)) for change in CHANGES} <= {str, type(None)}
        state.apply(commit)
        assert state.version == version
        assert {file.path for file in state.files()} >= {file.path for file in commit.adds}


@given(shaped(userMetadata=texts | st.builds(json.dumps, anything)))
@example({"userMetadata": DEEP})
@example({"userMetadata": 5})
def test_notes_of_commits(info: dict[str, Any]) -> None:
    assert isinstance(Commit(7, info).note, dict)


@given(
    st.binary(max_size=20)
    | st.builds(lambda value: json.dumps(value).encode(), anything | shaped(version=counts))
)
@example(DEEP.encode())
def test_hints_of_checkpoints(text: bytes) -> None:
    files = memory_store()
    files.write("_delta_log/_last_checkpoint", text)
    assert last_checkpoint(files) >= -1


# -- the ledgers

details = texts | st.builds(
    json.dumps,
    shaped(turn=texts, counters=st.dictionaries(texts, counts, max_size=2),
           settings=shaped(retry=texts),
           skipped=st.lists(st.tuples(counts, counts), max_size=2)),
)  # fmt: skip
floors = st.fixed_dictionaries(
    {"state": st.sampled_from(["header", "header", "leased", "event", "?"])},
    optional={
        "detail": details,
        "last": st.integers(-1, 9),
        "message_count": counts,
        "revision": counts,
        "first": st.integers(-1, 9),
        "lease_id": texts.filter(lambda text: text.isprintable()),
    },
)


@given(st.lists(floors, max_size=3))
@example([{"state": "header", "detail": DEEP, "last": 0, "message_count": 0, "revision": 0}])
@example([{"state": "header", "detail": "{}", "last": 0, "message_count": 0, "revision": 0}])
def test_rows_of_ledgers(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=LEASES_SCHEMA)
    refusal = refused(lambda: from_rows(table), errors.NotAQueue, errors.UnsupportedTable)
    if refusal is None:
        ledger = from_rows(table)
        assert from_rows(to_rows("g", ledger)).head == ledger.head
    else:
        assert "leases" in str(refusal) or "ledger of a group" in str(refusal)


@pytest.mark.parametrize("data", [None, 5, [], {"retry": "none", "invented": 1}])
def test_settings_of_a_later_version_are_reported(data: Any) -> None:
    with pytest.raises(errors.UnsupportedTable, match="update spark_mq"):
        GroupSettings.decoded(data)
