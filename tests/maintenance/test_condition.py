"""Conditions in SQL or Python: what they choose, what they cannot reach, and how they end."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.tables import messages_of

from spark_mq import InvalidOption, Message, Queue
from spark_mq.testing import memory_queue

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
ENDLESS = "(SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range = b.range) > 1"


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A queue with dead letters by another writer, which leaves out what it likes."""
    queue = Queue.create(tmp_path_factory.mktemp("letters") / "q", durable=False)
    own = [{"own": "1"}, {"own": "2", "x": "y"}, {}, {}, {}, {"own": ""}]
    said = {
        "sequence": [1, 2, 3, None, 4, 5],
        "error": ["a timeout", "Time.out\nof", "7", "it's", "8", None],
        "last_leased_at": [AT, AT + timedelta(days=1), None, AT - timedelta(1), AT, AT],
        "queue_id": [queue.settings.queue_id] * 6,
    }  # fmt: skip
    for name, values in said.items():
        for headers, value in zip(own, values, strict=True):
            if value is not None:
                headers[f"spark_mq.{name}"] = str(value)
    columns = {
        "key": ["a", "b", "c", None, "a", ""],
        "value": [b'{"n": 1}', b'{"n": 2}', b"[", b"\xff", b"\xfe", "ä".encode()],
        "headers": pa.array([[*one.items()] for one in own], pa.map_(pa.string(), pa.string())),
    }
    path = messages_of(queue.dead_letters).path
    write_deltalake(path, pa.table(columns), mode="append", schema_mode="merge")
    return queue


def chosen(letters: Queue, where: Any) -> list[int]:
    found = letters.list_dead_letters(where=where)
    assert found.schema == letters.list_dead_letters().schema
    return [sequence - (1 << 32) for sequence in found["dead_letter_sequence"].to_pylist()]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("true", [0, 1, 2, 3, 4, 5]),
        ("key = 'a' OR sequence > 4", [0, 4, 5]),
        ("\ufeffKEY = 'a' -- OR true", [0, 4]),
        ("headers['own'] = '1'", [0]),
        ("headers['own'] IS NULL", [2, 3, 4]),
        ("last_leased_at > '2026-01-31T12:00:00Z'", [1]),
        ("last_leased_at = TIMESTAMPTZ '2026-01-31 12:00'", [0, 4, 5]),
        ("value LIKE '%\"n\": %'", [0, 1]),
        ("value = 'ä'", [5]),
        ("value IS NULL", [3, 4]),
        ("bytes = '\\xFF'::BLOB", [3]),
        ("TRY(value->>'$.n') = '2'", [1]),
        ("error_shape(error) = 'a timeout' OR error_shape(error) = '<n>'", [0, 2, 4]),
        ("key IN (SELECT 'b')", [1]),
        (lambda letter: letter["value"] == b"[", [2]),
        (lambda letter: letter["headers"].get("own") == "2", [1]),
    ],
)
def test_a_condition_chooses_rows(letters: Queue, where: Any, found: list[int]) -> None:
    assert chosen(letters, where) == found


@pytest.mark.parametrize(
    "sql",
    [
        "(SELECT count(*) FROM read_text('/etc/passwd')) = 1",
        "(SELECT count(*) FROM '/etc/passwd') = 1",
        "(SELECT count(*) FROM letters) = 1",  # a variable of this module's functions
        "(SELECT count(*) FROM duckdb_secrets()) = 1 AND getenv('PATH') <> ''",
    ],
)
def test_a_condition_reaches_nothing_but_its_rows(letters: Queue, sql: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be run"):
        chosen(letters, sql)


@pytest.fixture
def queue() -> Queue:
    queue = memory_queue()
    queue.publish([Message(f"{n}", key=f"k{n}") for n in range(3)])
    lease = queue.group().lease("w", max_messages=3)
    lease.reject(error="bad")
    queue.sweep()
    return queue


def test_without_duckdb_an_error_names_the_extra_and_a_function_will_do(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(
        InvalidOption, match=r"pip install 'spark-mq\[sql\]', or give a Python func"
    ):
        queue.redrive(where="key = 'k1'")
    with pytest.raises(InvalidOption, match=r"transform=.* pip install 'spark-mq\[sql\]'"):
        queue.redrive(transform="'x'")
    assert queue.redrive(where=lambda letter: letter["key"] == "k1").messages == 1
    assert queue.discard_dead_letters(where=lambda letter: True).messages == 2
    assert any("<lambda>" in (change.detail or "") for change in queue.changes())


@pytest.fixture
def soon() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Call a function soon, and wait for it in the end."""
    timers: list[threading.Timer] = []

    def start(call: Callable[[], None]) -> None:
        timers.append(threading.Timer(0.2, call))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.join()


@pytest.mark.parametrize("option", ["where", "transform"])
def test_a_stop_ends_a_query(
    queue: Queue, soon: Callable[[Callable[[], None]], None], option: str
) -> None:
    stop = threading.Event()
    soon(stop.set)
    sql = ENDLESS if option == "where" else f"CASE WHEN {ENDLESS} THEN value END"
    given: dict[str, Any] = {option: sql}
    assert queue.redrive(stop=stop, **given).messages == 0
    assert queue.list_dead_letters().num_rows == 3


def test_ctrl_c_ends_a_query(queue: Queue, soon: Callable[[Callable[[], None]], None]) -> None:
    assert queue.redrive(where="false").messages == 0  # an import may lose an interrupt
    soon(_thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        queue.redrive(where=ENDLESS)
    assert queue.redrive(where="true").messages == 3
