"""A byte order mark is no part of a text, whichever door the text comes through."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from support.commands import Run

from spark_mq import Message, Queue

MARK = codecs.BOM_UTF8.decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(Queue.create(tmp_path / "q").path)


def values(path: Path) -> list[bytes]:
    return [message.value for message in Queue.open(path).peek()]


def test_the_mark_of_a_file_is_not_published(run: Run, tmp_path: Path, path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{MARK}{{"n": 1}}\n{{"n": 2}}\n')
    run("publish", "-q", path, "a.jsonl", "-", stdin=f'{MARK}{{"n": 3}}\n')
    held = Queue.open(path).group().lease(max_messages=9)
    assert [message.json() for message in held.messages] == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("option", ["--key-field", "--id-field"])
def test_a_marked_line_has_its_fields(run: Run, path: Path, option: str) -> None:
    lines = f'{MARK}{{"k": "a"}}\n{MARK}{{"k": "b"}}\n'  # two files, by cat
    run("publish", "-q", path, option, "k", stdin=lines)
    assert values(path) == [b'{"k": "a"}', b'{"k": "b"}']


def test_envelopes_and_raw_lines_have_no_mark(run: Run, path: Path) -> None:
    run("publish", "-q", path, "--envelope", stdin=f'{MARK}{{"value": "a"}}')
    run("publish", "-q", path, "--raw", stdin=f"{MARK}b\n{MARK}c\n")
    assert values(path) == [b"a", b"b", f"{MARK}c".encode()], "a later one may be of the text"


@pytest.mark.parametrize("kind", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_other_encodings_are_refused(
    run: Run, tmp_path: Path, path: Path, kind: str, raw: list[str]
) -> None:
    text = '{"n": 1}\n' if kind in ("utf-16", "utf-32") else MARK + '{"n": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(text.encode(kind))
    refused = run("publish", "-q", path, *raw, "a.jsonl", expect=2)
    assert "a.jsonl:1 is in UTF-16 or UTF-32: convert the file to UTF-8" in refused.err
    assert not values(path)


@pytest.mark.parametrize("line", ["NaN", '{"n": Infinity}'])
def test_a_line_is_json_as_a_message_reads_it(run: Run, path: Path, line: str) -> None:
    assert ":1 is not JSON" in run("publish", "-q", path, stdin=line, expect=2).err


def test_a_schedule_from_stdin_has_no_mark(run: Run, path: Path) -> None:
    queue = Queue.open(path)
    run(
        "schedule", "add", "s", "-q", path, "-", "--every", "1h",
        stdin=f'{MARK}{{"n": 1}}',
    )  # fmt: skip
    assert queue.schedules()[0].value == b'{"n": 1}'


def test_a_condition_from_a_file_has_no_mark(run: Run, path: Path) -> None:
    queue = Queue.open(path)
    queue.publish(Message("a", key="k"))
    held = queue.group("g").lease()
    held.reject()
    queue.sweep()
    assert run("dlq", "list", "-q", path, "--where", f"{MARK}key = 'k'", "-o", "json").rows
