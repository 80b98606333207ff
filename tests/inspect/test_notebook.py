"""What objects show in a notebook, and what results convert to."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import ByteStore, Call

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.records import Records, object_html, rows_html, show

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lease(queue: Queue) -> Any:
    queue.publish([Message("<b>first</b>", key="k", headers={"a": "1"}), b"\xff\x00"])
    return queue.group("billing").lease("worker-1", max_messages=2)


def html_of(shown: Any) -> str:
    """Return what a notebook shows for an object."""
    html: str = shown._repr_html_()
    return html


def test_text_is_shown_as_text_and_bytes_as_digits() -> None:
    assert show("grüße".encode()) == "grüße"
    assert show(b'{"id": 1}') == '{"id": 1}'
    assert show(b"\xff\x00") == "0xff00 (2 bytes)"
    assert show(b"\x00\x01a") == "0x000161 (3 bytes)"  # UTF-8, but no text
    assert show(bytes(range(128, 168)) * 50) == f"0x{bytes(range(128, 160)).hex()}… (2,000 bytes)"
    assert show(None) == "-"
    assert show(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05Z"
    assert show("x" * 300) == "x" * 200 + "…"


def test_durations_and_intervals_are_short() -> None:
    assert show(timedelta(minutes=5, seconds=17, microseconds=49_741)) == "5m 17s"
    assert show(timedelta(seconds=1, microseconds=500_400)) == "1.5s"
    assert show(((1, 5), (8, 8))) == "1 to 5, 8 to 8"


def test_numbers_have_separators_and_stand_on_the_right() -> None:
    html = rows_html([{"messages": 12_345, "sequence": 4_294_967_297, "key": "7", "share": 0.25},
                      {"messages": None, "sequence": 1, "key": "8", "share": 1.0}])  # fmt: skip
    right, left = '<t{} style="text-align:right{}">', '<t{} style="text-align:left">'
    for name in ("messages", "sequence", "share"):
        assert right.format("h", "") + name in html
    assert left.format("h") + "key" in html
    nowrap = right.format("d", ";white-space:nowrap")
    # A sequence can be copied into a call.
    for text in ("12,345", "-", "4294967297", "25.0%"):
        assert f"{nowrap}{text}</td>" in html
    assert left.format("d") + "7</td>" in html
    facts = object_html({"published": 1_234_567, "closed": True, "lanes": (1, 2, 3)})
    assert f"{nowrap}1,234,567</td>" in facts
    assert left.format("d") + "yes</td>" in facts
    assert left.format("d") + "1, 2, 3</td>" in facts


def test_a_time_stays_in_one_line() -> None:
    html = rows_html([{"at": datetime(2026, 1, 2, tzinfo=UTC), "error": "long"}])
    assert 'style="text-align:left;white-space:nowrap">2026-01-02 00:00:00Z' in html
    assert html.count("nowrap") == 1


def test_values_and_titles_are_escaped() -> None:
    for html in (
        object_html({"<i>": "<script>"}, "<title>"),
        rows_html([{"<i>": "<script>"}], title="<title>"),
    ):
        assert "<script>" not in html
        assert "<i>" not in html
        assert "<title>" not in html
        assert "&lt;script&gt;" in html


def test_a_queue_shows_its_groups(queue: Queue, lease: Any) -> None:
    html = html_of(queue)
    assert "billing" in html
    assert "<th>published" not in html
    assert "published</th><td" in html
    assert "dead letters" in html


def test_a_queue_that_cannot_be_read_shows_why(queue: Queue, byte_store: ByteStore) -> None:
    def fail(_: Call) -> None:
        raise OSError("no <disk>")

    byte_store.on("read", "list", "stat", act=fail)
    assert "no &lt;disk&gt;" in html_of(queue)


def test_a_group_shows_its_stats_and_leases(queue: Queue, lease: Any) -> None:
    html = html_of(queue.group("billing"))
    assert "leased</th><td" in html
    assert lease.lease_id in html
    assert "worker-1" in html


def test_a_lease_shows_its_messages_once_they_are_read(queue: Queue, lease: Any) -> None:
    before = html_of(lease)
    assert "worker-1" in before
    assert "first" not in before
    lease.messages  # noqa: B018
    after = html_of(lease)
    assert "&lt;b&gt;first&lt;/b&gt;" in after
    assert "0xff00" in after


def test_stats_a_trace_a_sweep_and_a_redrive_show_themselves(
    queue: Queue, lease: Any, clock: ManualClock
) -> None:
    lease.reject(error="no <customer>")
    assert "GroupStats" in queue.group("billing").stats()._repr_html_()
    assert "billing" in html_of(queue.stats())
    life = html_of(queue.trace(lease.messages[0].sequence))
    assert "no &lt;customer&gt;" in life
    assert "worker-1" in life
    assert "routed</th>" in html_of(queue.sweep())
    ended = html_of(queue.trace(lease.messages[0].sequence)).split("Outcome in each group")[1]
    for text in ("billing", "dead_lettered", "rejected", "no &lt;customer&gt;"):
        assert text in ended
    assert "Outcome in each group" not in life
    dry = queue.redrive(dry_run=True)
    assert "&lt;b&gt;first&lt;/b&gt;" in html_of(dry)
    assert "2 messages to redrive" in html_of(dry)
    assert "2 messages redriven" in html_of(queue.redrive())


def test_lists_of_results_show_as_tables(queue: Queue, lease: Any) -> None:
    group = queue.group("billing")
    assert lease.lease_id in html_of(group.leases())
    assert "&lt;b&gt;first&lt;/b&gt;" in html_of(group.peek())
    assert "worker-1" in html_of(group.workers())
    assert "none" in html_of(group.last_errors())
    assert "and 10 more" in Records([{"n": n} for n in range(60)])._repr_html_()


def test_an_overview_settings_health_and_failures_show_no_python(
    queue: Queue, lease: Any, clock: ManualClock
) -> None:
    lease.reject(error="no <customer>")
    queue.sweep()
    queue.group("billing").pause("repairs")
    failures = queue.failures()
    shown = [queue.describe(), queue.settings, queue.health(), failures]
    html = [html_of(one) for one in shown]
    for text in html:
        assert not re.search(r"\w+\(\w+=", text), text
    assert html[0] == html_of(queue)
    assert "visibility_timeout</th>" in html[1]
    assert "leases nothing: paused" in html[2]
    assert "2 dead letters by failure" in html[3]
    assert "no &lt;customer&gt;" in html[3]
    assert failures.to_arrow()["messages"].to_pylist() == [2]


OF_QUEUE = (
    *("batches", "blockers", "changes", "describe", "failures", "finished", "health"),
    *("list_dead_letters", "locate", "newest_dead_letters", "peek", "publish", "schedules"),
    *("settings", "stats", "sweep", "sweep_state", "throughput", "trace", "redrive"),
)
OF_GROUP = (
    *("ack", "hot_keys", "lanes", "last_errors", "leases", "most_failing", "peek"),
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
        "hot_keys": (group.lanes(1)[0].lane,),
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


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_conversion_names_what_is_missing(library: str) -> None:
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from spark_mq.util.records import Records\n"
        f"try: Records().to_{library}()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"pip install {library}" in done.stdout


def test_a_group_shows_its_priorities_and_hottest_lanes() -> None:
    queue = memory_queue(lanes=4, order="key")
    queue.publish([Message("a", key="k"), Message("b", key="k", priority=7)])
    group = queue.group("g")
    assert group.lease("w") is not None
    html = html_of(group)
    assert "Hottest lanes" in html
    assert "Priorities" in html
    assert "of w until" in html
    plain = memory_queue()
    plain.publish("a")
    assert "lanes" not in plain.group("g").ensure()._repr_html_()
