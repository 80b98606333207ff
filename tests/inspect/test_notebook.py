"""What objects show in a notebook, and what results convert to."""

from __future__ import annotations

import pickle
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
    return str(shown._repr_html_())


def test_what_a_notebook_shows_is_as_it_was_approved(clock: ManualClock, tmp_path: Path) -> None:
    queue, texts = memory_queue(clock, lanes=4), dict[str, str]()
    values = [
        Message("<b>first</b>", key="k", headers={"a": "1"}, message_id="id-1"),
        Message(b"\xff\x00", key="k", priority=7, message_id="id-2"),
    ]
    receipt = queue.publish(values, batch_id="day")
    first, second = receipt.sequences

    def note(**shown: Any) -> None:
        for name, value in shown.items():
            text = readable_html(html_of(value)).replace(queue.path, "QUEUE")
            texts[name] = without_what_varies(text, tmp_path, spans=SHORT_SPANS)

    def note_each(owner: Any, *names: str) -> None:
        note(**{name: getattr(owner, name)() for name in names})

    group = queue.group("billing")
    group.configure(order="key")
    lease = group.lease("worker-1", max_messages=2)
    note(receipt=receipt, lease=lease)
    note(message=lease.messages[0], lease_with_messages=lease, group=group)
    note_each(group, "stats", "leases", "workers", "lanes", "priorities", "slowest")
    note(messages_of_a_group=group.peek(), no_errors=group.last_errors())
    note(queue_stats=queue.stats(), trace=queue.trace(first), messages=queue.peek())
    note(seek=group.preview_seek("earliest"), places=queue.locate(first))
    note(nack=lease.nack([second], error="once"), failing=group.most_failing())
    lease.reject(error="no <customer>")
    note(sweep=queue.sweep(), trace_of_a_dead_letter=queue.trace(first), failures=queue.failures())
    queue.schedule("nightly", every="1d", message="run")
    group.pause("repairs")
    note_each(queue, "describe", "health", "batches", "schedules", "blockers", "changes")
    clock.advance("1m")  # or a rate would be of the time so far
    note_each(queue, "throughput", "newest_dead_letters", "sweep_state")
    note(finished=queue.finished("billing"), settings=queue.settings, of_a_group=group.settings)
    note(dry_run=queue.redrive(dry_run=True), redrive=queue.redrive())
    for one in (queue.describe(), queue.health()):
        texts[f"{type(one).__name__} printed"] = without_what_varies(str(one), tmp_path)
    assert_approved(Path(__file__).parent / "notebook.txt", texts.items())
    assert html_of(queue) == html_of(queue.describe())


def test_a_queue_that_cannot_be_read_shows_why(queue: Queue, byte_store: ByteStore) -> None:
    def fail(_: Call) -> None:
        raise OSError("no <disk>")

    byte_store.on("read", "list", "stat", act=fail)
    assert "no &lt;disk&gt;" in html_of(queue)


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
    assert messages["headers"].to_pylist() == [[("a", "1")], []]
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
