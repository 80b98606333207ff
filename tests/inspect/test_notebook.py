"""What objects show in a notebook, and what results convert to."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.approved import SHORT_SPANS, assert_approved, without_what_varies
from support.byte_store import ByteStore, Call
from support.readable_html import readable_html

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def lease(queue: Queue) -> Any:
    queue.publish([Message("<b>first</b>", key="k", headers={"a": "1"}), b"\xff\x00"])
    return queue.group("billing").lease("worker-1", max_messages=2)


def html_of(shown: Any) -> str:
    """Return what a notebook shows for an object."""
    html: str = shown._repr_html_()
    return html


APPROVED = Path(__file__).parent / "notebook.txt"


def test_what_a_notebook_shows_is_as_it_was_approved(clock: ManualClock, tmp_path: Path) -> None:
    queue, texts = memory_queue(clock, lanes=4), dict[str, str]()
    values = [
        Message("<b>first</b>", key="k", headers={"a": "1"}, message_id="id-1"),
        Message(b"\xff\x00", key="k", priority=7, message_id="id-2"),
    ]
    first, _ = queue.publish(values).sequences

    def note(**shown: Any) -> None:
        for name, value in shown.items():
            text = readable_html(html_of(value)).replace(queue.path, "QUEUE")
            texts[name] = without_what_varies(text, tmp_path, spans=SHORT_SPANS)

    group = queue.group("billing")
    group.configure(order="key")
    lease = group.lease("worker-1", max_messages=2)
    note(lease=lease)
    lease.messages  # noqa: B018
    note(lease_with_messages=lease, group=group, stats=group.stats(), leases=group.leases())
    note(messages=group.peek(), workers=group.workers(), no_errors=group.last_errors())
    note(queue_stats=queue.stats(), trace=queue.trace(first))
    lease.reject(error="no <customer>")
    note(sweep=queue.sweep(), trace_of_a_dead_letter=queue.trace(first), failures=queue.failures())
    group.pause("repairs")
    note(queue=queue, overview=queue.describe(), health=queue.health(), settings=queue.settings)
    note(dry_run=queue.redrive(dry_run=True), redrive=queue.redrive())
    assert_approved(APPROVED, texts.items())
    assert html_of(queue) == html_of(queue.describe())


def test_a_queue_that_cannot_be_read_shows_why(queue: Queue, byte_store: ByteStore) -> None:
    def fail(_: Call) -> None:
        raise OSError("no <disk>")

    byte_store.on("read", "list", "stat", act=fail)
    assert "no &lt;disk&gt;" in html_of(queue)


OF_QUEUE = (
    *("batches", "blockers", "changes", "describe", "failures", "finished", "health"),
    *("list_dead_letters", "locate", "newest_dead_letters", "peek", "publish", "schedules"),
    *("settings", "stats", "sweep", "sweep_state", "throughput", "trace", "redrive"),
)
OF_GROUP = (
    *("ack", "lanes", "last_errors", "leases", "most_failing", "peek"),
    *("preview_seek", "priorities", "settings", "slowest", "stats", "workers"),
)


def test_everything_that_a_cell_may_end_with_shows_a_table() -> None:
    queue = memory_queue(lanes=4, order="key")
    receipt = queue.publish([Message(f'{{"n": {n}}}', key="k") for n in range(1_200)])
    group = queue.group("default")
    lease = group.lease("worker-1", max_messages=1_100)
    settled = lease.reject([m.sequence for m in lease.messages[:1_050]], error="no")
    queue.sweep()
    first = lease.messages[0].sequence
    arguments: dict[str, tuple[Any, ...]] = {
        "ack": (lease.lease_id, [lease.messages[-1].sequence]),
        "locate": (first,),
        "preview_seek": ("earliest",),
        "publish": ("x",),
        "trace": (first,),
    }
    shown = {"lease": lease, "messages": lease.messages, "receipt": receipt, "reject": settled,
             "message": lease.messages[0], "queue": queue, "group": group,
             "dry run": queue.redrive(dry_run=True)}  # fmt: skip
    for owner, names in ((queue, OF_QUEUE), (group, OF_GROUP)):
        for name in names:
            found = getattr(owner, name)
            shown[f"{type(owner).__name__}.{name}"] = (
                found(*arguments.get(name, ())) if callable(found) else found
            )
    for name, one in shown.items():
        html = html_of(one)
        assert "<table>" in html or html.strip() == "<p>none</p>", name
        assert not re.search(r"[bB]'|bytearray|datetime|\d\.\d{6}|\w+\(\w+=", html), name
    letters = html_of(shown["Queue.list_dead_letters"])
    assert "{&#34;n&#34;: 0}" in letters
    assert "and 1,000 more rows" in letters
    assert "and 1,000 more rows" in html_of(shown["dry run"])
    assert f'nowrap">{first}</td>' in letters
    assert ">1,200</td>" in html_of(receipt)
    assert ">1,050</td>" in html_of(shown["Queue.throughput"])
    assert ">1,050</td>" in html_of(shown["Queue.failures"])


def test_an_arrow_result_is_used_like_its_table(queue: Queue, lease: Any) -> None:
    lease.ack()
    ends = queue.finished("billing")
    assert ends.num_rows == len(ends) == 2
    assert ends["outcome"].to_pylist() == ["acked", "acked"]
    assert pa.table(ends).equals(ends.to_arrow())
    assert pickle.loads(pickle.dumps(ends)).to_pylist() == ends.to_pylist()
    with pytest.raises(AttributeError):
        ends.no_such_name  # noqa: B018


def test_results_convert_to_arrow(queue: Queue, lease: Any) -> None:
    group = queue.group("billing")
    (row,) = group.leases().to_arrow().to_pylist()
    assert row["lease_id"] == lease.lease_id
    assert row["positions"] == [[lease.messages[0].sequence, lease.messages[1].sequence]]
    assert row["since"].tzinfo is not None
    messages = group.peek().to_arrow()
    assert messages["value"].to_pylist() == [b"<b>first</b>", b"\xff\x00"]
    assert dict(messages["headers"][0].as_py()) == {"a": "1"}
    assert group.stats().to_arrow()["leased"].to_pylist() == [2]
    life = queue.trace(lease.messages[0].sequence).to_arrow()
    assert life["event"].to_pylist()[-1] == "leased"
    assert queue.redrive(dry_run=True).to_arrow().num_rows == 0
    assert group.last_errors().to_arrow().num_rows == 0


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_results_convert_to_data_frames(queue: Queue, lease: Any, library: str) -> None:
    pytest.importorskip(library)
    frame = getattr(queue.group("billing").leases(), f"to_{library}")()
    assert list(frame["worker_id"]) == ["worker-1"]
    assert len(getattr(queue.group("billing").peek(), f"to_{library}")()) == 2
