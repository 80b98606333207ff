"""A byte order mark tells encodings, and is no part of a text: see sessions/marks.txt, too."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from support.commands import Run

from spark_mq import Message, Queue

MARK = codecs.BOM_UTF8.decode()


@pytest.mark.parametrize("kind", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_other_encodings_are_refused(run: Run, tmp_path: Path, kind: str, raw: list[str]) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    text = '{"n": 1}\n' if kind in ("utf-16", "utf-32") else MARK + '{"n": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(text.encode(kind))
    refused = run("publish", "-q", "q", *raw, "a.jsonl", expect=2)
    assert "a.jsonl:1 is in UTF-16 or UTF-32: convert the file to UTF-8" in refused.err
    assert not queue.peek()


def test_a_condition_from_a_file_has_no_mark(run: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    queue.publish(Message("a", key="k"))
    queue.group("g").lease().reject()
    queue.sweep()
    assert run("dlq", "list", "-q", "q", "--where", f"{MARK}key = 'k'", "-o", "json").rows
