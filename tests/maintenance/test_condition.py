"""Conditions of a redrive: they mean what they mean in SQL, and no condition costs much."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from support.limits import Limits

from spark_mq import InvalidOption, Message, Queue
from spark_mq.maintenance import condition
from spark_mq.maintenance.condition import Condition
from spark_mq.maintenance.dead_letters import letter_schema

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
SAME_IN_SQL = [
    "true", "NOT true", "1 = 1", "key = 'a'", "key <> 'a'", "key != 'a'", "NOT key = 'a'",
    "key IS NULL", "key IS NOT NULL", "NOT key IS NULL", "'b' < key", "key >= 'a' AND key < 'c'",
    "key = 'a' OR key = 'c' AND priority = 1", "(key = 'a' OR key = 'c') AND priority = 1",
    "NOT key = 'a' AND NOT NOT priority = 1", "key = 'a' OR priority < 2", "key IN ('a', 'b')",
    "key NOT IN ('a', 'b')", "NOT key IN ('a')", "sequence IN (1, 3)", "priority IN (1, 5)",
    "priority NOT IN (-1)", "key BETWEEN 'a' AND 'b'", "sequence NOT BETWEEN 1 AND 2 OR key = 'a'",
    "error LIKE '%time%'", "error LIKE 'a%'", "error LIKE '_ime%'", "error NOT LIKE '%o%'",
    "error ILIKE '%TIME%'", "error NOT ILIKE 'B%'", "error LIKE '%.%'", "error LIKE '%o%u%'",
    "error LIKE '%\n%'", "headers['own'] = '1'", "headers['none'] IS NULL",
    "headers['own'] LIKE '2%'", "sequence % 2 = 1", "sequence * 2 + 1 = 5", "1 + 2 * sequence > 4",
    "(1 + 2) * sequence > 6", "10 - sequence - 1 > 6", "sequence / 2 = 1", "-5 / 2 = -2",
    "0 - sequence < -1", "sequence - -1 = 2", "-5 % 3 = -2", "priority > 1.5", "priority = 1e0",
    "length(error) > 5", "lower(error) = 'be'", "upper(key) = 'A'",
    "TRY_CAST(error AS INT) = 7", "TRY_CAST(error AS DOUBLE) < 8", "CAST(sequence AS TEXT) = '2'",
    "CAST(priority AS BIGINT) = 1", "error = 'it''s'", '"key" = \'a\'', "key = 'a' -- OR true",
    "key = /* no */ 'a'", "published_at < now()", "published_at < now() - INTERVAL '1 day'",
    "published_at = '2026-01-31T12:00:00Z'", "published_at > TIMESTAMP '2026-01-31'",
    "published_at BETWEEN '2026-01-01' AND '2026-02-01'",
    "first_leased_at - published_at < INTERVAL '2 hours'",
    "key = 'a' OR NOT (priority = 1 AND key IS NULL)",
    "key || 'x' = 'ax'", "(key || error) IS NULL", "replace(error, 'time', 'x') = 'a xout'",
    "trim(' ' || key || ' ') = 'b'", "coalesce(key, error, '') = '3'",
    "coalesce(key, 'none') = 'none'",
    "CASE WHEN key = 'a' THEN priority WHEN key = 'b' THEN 7 ELSE 0 END > 2",
    "CASE WHEN key IS NULL THEN 'x' END = 'x'", "NOT CASE WHEN key = 'a' THEN TRUE END",
]  # fmt: skip


def letters() -> pa.Table:
    """Dead letters with nulls in all kinds of columns."""
    texts = ["a timeout", "Time.out\nof", "7", "it's", "Be", None]
    columns = {
        "dead_letter_sequence": list(range(6)), "sequence": [1, 2, 3, None, 4, 5],
        "key": ["a", "b", "c", None, "a", ""], "error": texts, "priority": [1, 2, 1, 1, 3, 5],
        "value": [b"1", b"22", b"", None, b"\xff", b"x"],
        "headers": [[("own", "1")], [("own", "2"), ("x", "y")], [], None, [], [("own", "")]],
        "published_at": [AT, AT + timedelta(days=1), None, AT - timedelta(1), AT, AT],
        "first_leased_at": [AT, AT + timedelta(days=2), None, None, AT + timedelta(hours=1), AT],
    }  # fmt: skip
    missing = {name: [None] * 6 for name in letter_schema().names}
    return pa.table({**missing, **columns}, schema=letter_schema())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[int]]:
    """DataFusion, which comes with delta-rs."""
    path = str(tmp_path_factory.mktemp("letters"))
    write_deltalake(path, letters())
    engine = QueryBuilder().register("dead", DeltaTable(path))
    select = "SELECT dead_letter_sequence FROM dead WHERE {} ORDER BY 1"

    def run(where: str) -> list[int]:
        rows = pa.table(engine.execute(select.format(where + "\n")).read_all())
        return rows["dead_letter_sequence"].to_pylist()

    return run


@pytest.mark.parametrize("where", SAME_IN_SQL)
def test_a_condition_means_the_same_as_in_an_sql_engine(
    engine: Callable[[str], list[int]], where: str
) -> None:
    found = Condition(where).select(letters())
    assert found.schema == letter_schema()
    assert found["dead_letter_sequence"].to_pylist() == engine(where)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("json_extract(value, '$.n') = '1'", [0]),
        ("TRY_CAST(json_extract(value, '$.n') AS DOUBLE) >= 1", [0, 1]),
        ("json_extract(value, '$.x') IS NULL", [0, 1, 2, 3, 4, 5]),
        ("json_set(value, '$.n', 3) = '{\"n\": 3}'", [0, 1]),
        ('json_set(value, \'$.k\', key) = \'{"n": 1,"k":"a"}\'', [0]),
        ("json_set(value, '$.n', NULL) IS NOT NULL", [0, 1]),
        ("json_remove(value, '$.n') = '{}'", [0, 1]),
        ("error_shape(error) = 'a timeout' OR error_shape(error) = '<n>'", [0, 2]),
    ],
)
def test_functions_read_and_change_json(where: str, found: list[int]) -> None:
    values = pa.array([b'{"n": 1}', b'{"n": 2}', b"[", b"\xff", None, b"1"], pa.binary())
    at = letter_schema().get_field_index("value")
    given = letters().set_column(at, letter_schema().field(at), values)
    assert Condition(where).select(given)["dead_letter_sequence"].to_pylist() == found


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("json_extract(value, 'n') = '1'", "'n' is no path of JSON"),
        ("json_extract(value, key) = '1'", "is no path of JSON"),
        ("json_extract(sequence, '$.n') = '1'", "reads no text"),
        ("json_extract(value) = '1'", "a function that does not fit, 'json_extract'"),
        ("replace(error, key, '') = '1'", "must be constant texts"),
        ("replace(error, '', 'x') = '1'", "an empty text"),
        ("CASE ELSE 1 END = 1", "a syntax error at 'ELSE'"),
        ("CASE WHEN TRUE THEN 1 = 1", "it is not complete"),
    ],
)
def test_a_function_names_what_it_cannot_read(where: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Condition(where)


def test_pieces_and_the_whole_give_the_same(limits: Limits) -> None:
    whole = Condition("key = 'a' OR sequence > 4").select(letters())
    limits(condition_bytes=1)
    assert Condition("key = 'a' OR sequence > 4").select(letters()).equals(whole)
    assert Condition("TRUE").select(letters()).to_pylist() == letters().to_pylist()
    assert Condition("KEY = 'a'").select(letters().slice(0, 0)).num_rows == 0


def test_bytes_that_are_no_text_fail_a_cast_and_not_a_try_cast() -> None:
    assert Condition("TRY_CAST(value AS TEXT) = '22'").select(letters()).num_rows == 1
    with pytest.raises(InvalidOption, match="different types"):
        Condition("CAST(value AS TEXT) = '22'").select(letters())
    for where in ("value = '22'", "value LIKE '%2'", "length(value) = 2"):
        assert Condition(where).select(letters()).num_rows == 1


def test_a_condition_ends_after_its_time_in_all_tables_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(10_000))
    monkeypatch.setattr(condition, "time", type("Clock", (), {"monotonic": lambda: next(now)}))
    two = Condition("key = 'a' AND key = 'b'")  # a second for each look at the clock
    for _ in range(2):
        assert two.select(letters()).num_rows == 0
    with pytest.raises(InvalidOption, match=r"computes for more than 30 seconds"):
        two.select(letters())


def test_a_condition_may_have_30_parentheses_inside_each_other() -> None:
    within = "(" * 29 + "key = 'a'" + ")" * 29
    assert Condition(f"({within})").select(letters()).num_rows == 2
    with pytest.raises(InvalidOption, match="more than 30 parentheses inside each other"):
        Condition(f"(({within}))")


def test_parentheses_after_each_other_are_not_counted_together() -> None:
    each = " AND ".join(["(key = 'a')"] * 40)
    assert Condition(each).select(letters()).num_rows == 2


HOSTILE = {
    "a large result": "length(repeat('a', 2000000000)) > 1",
    "padding": "lpad(key, 2000000000, 'x') = 'x'",
    "a range": "length(array_to_string(range(100000000), ',')) > 1",
    "joined texts": "key || " * 1000 + "key = 'x'",
    "a replacement": "replace(error, 'a', '" + "b" * 50_000 + "') = 'x'",
    "joined values": "TRY_CAST(value AS TEXT)" + " || TRY_CAST(value AS TEXT)" * 1_000 + " = 'x'",
    "changes of JSON inside each other": "json_set(" * 28 + "value" + ", '$.a', key)" * 28
    + " IS NOT NULL",
    "a regular expression": "regexp_like(error, '(a|aa)+$')",
    "a subquery": "sequence IN (SELECT a.sequence FROM dead a, dead b, dead c)",
    "a recursive query": "1 IN (WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT 1 FROM t) "
    "SELECT * FROM t)",
    "another statement": "true) UNION ALL SELECT * FROM dead, dead --",
    "a file": "read_text('/etc/passwd') = 'x'",
    "wildcards": "error LIKE '%" + "a_" * 450 + "%b'",
    "some wildcards": "error LIKE '%aa%a_%a_%aaa%b_b%'",
    "a long pattern": "error LIKE '%" + "a" * 5_000 + "b%'",
    "parentheses": "(" * 90_000 + "true" + ")" * 90_000,
    "calls inside each other": "lower(" * 25_000 + "error" + ")" * 25_000 + " = 'x'",
    "some calls inside each other": "lower(upper(" * 14 + "error" + "))" * 14 + " = 'x'",
    "not": "NOT " * 45_000 + "true",
    "minus": "sequence" + " - 1" * 45_000 + " = 1",
    "comparisons": " OR ".join(f"error = 'x{n}'" for n in range(10_000)),
    "calls": " OR ".join(f"lower(TRY_CAST(value AS TEXT)) = 'x{n}'" for n in range(3_500)),
    "patterns": " OR ".join(f"value LIKE '%a_{n}%'" for n in range(6_000)),
    "a list": "message_id IN (" + ", ".join(f"'id-{n}'" for n in range(14_000)) + ")",
    "a long text": "error = '" + "x" * 190_000 + "'",
    "comments": "/*" * 90_000,
    "too long": "error = '" + "x" * 2_000_000 + "'",
    "a large number": "sequence = " + "9" * 100_000,
    "digits": "sequence = 1e" + "9" * 100_000,
}  # fmt: skip
RUN = (
    "changes of JSON inside each other", "some wildcards",
    "some calls inside each other", "not", "a list", "a long text", "digits",
)  # fmt: skip
GROWS = ("a replacement", "joined values")
"""These are refused once they make too much of large letters."""
LONG = ("joined texts", "comparisons", "calls", "patterns", "minus")
"""Their cost grows with the letters, up to the limit of time."""
CHILD = """
import json, resource, sys, time
from spark_mq import InvalidOption, Queue
from spark_mq.maintenance import condition

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

condition.SECONDS = 0.5
queue = Queue.open(sys.argv[1])
assert queue.list_dead_letters(where="key LIKE 'k%'").num_rows == 100
before = peak()
for name, where in json.load(sys.stdin).items():
    started = time.process_time()
    try:
        queue.list_dead_letters(where=where)
        outcome = "run"
    except InvalidOption as error:
        outcome = "refused"
        assert len(str(error)) < 2_000
    print(json.dumps([name, outcome, peak() - before, time.process_time() - started]))
"""


@pytest.fixture(scope="module")
def large_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 letters with values of 100 KB and errors of 2,000 characters."""
    path = tmp_path_factory.mktemp("large") / "queue"
    queue = Queue.create(path, durable=False)
    queue.publish([Message("a" * 100_000, key=f"k{n}", message_id=f"id-{n}") for n in range(100)])
    lease = queue.group().lease("w", max_messages=100)
    lease.reject(error="a" * 2_000)
    assert queue.sweep().routed == 100
    return path


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in LONG])
def test_a_condition_has_only_what_is_allowed(name: str) -> None:
    if name in (*RUN, *GROWS):
        assert Condition(HOSTILE[name]).select(letters()).num_rows <= 6
    else:
        with pytest.raises(InvalidOption, match="cannot be run"):
            Condition(HOSTILE[name])


@pytest.mark.slow
def test_no_condition_takes_much_memory_or_time(large_letters: Path) -> None:
    """An SQL engine took 7.8 GB for a call of repeat(), and half a minute after the limit."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(large_letters)], capture_output=True, text=True,
        input=json.dumps(HOSTILE), check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in seen] == list(HOSTILE)
    assert [(name, grown) for name, _, grown, _ in seen if grown > 100] == []
    assert [(name, seconds) for name, *_, seconds in seen if seconds > 5] == []
    run = {name for name, outcome, *_ in seen if outcome == "run"}
    assert run - set(LONG) == set(RUN)  # a fast machine ends a long one within the limit


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_long_condition_is_stopped_by_the_limit_of_time(
    limits: Limits, large_letters: Path, name: str
) -> None:
    limits(condition_seconds=0.01)  # less than each takes on any machine
    with pytest.raises(InvalidOption, match="cannot be run"):
        Queue.open(large_letters).list_dead_letters(where=HOSTILE[name])


def test_a_condition_may_be_about_other_columns() -> None:
    schema = pa.schema([("outcome", pa.string()), ("seconds", pa.float64())])
    rows = pa.table([["acked", "dropped"], [0.5, 2.0]], schema=schema)
    found = Condition("outcome = 'dropped' AND seconds > 1", schema).select(rows)
    assert found["outcome"].to_pylist() == ["dropped"]
    with pytest.raises(InvalidOption, match=r"SQL like \"seconds > 1\". The columns are outcome"):
        Condition("reason = 'rejected'", schema, "seconds > 1")
