"""Spans and metrics follow OpenTelemetry's messaging conventions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.approved import assert_approved, without_what_varies
from support.byte_store import ByteStore
from support.handles import lease, leased
from support.tables import add_values, messages_of, on_publish, on_write
from support.working import drain, fail

from spark_mq import Lease, LeaseLost, Message, Queue

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import context, propagate
from opentelemetry.trace import SpanKind, get_tracer

OWN = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
"""The context of a message that has been traced before."""


def attributes_of(shown: Any) -> list[str]:
    return [f"{name}: {value!r}" for name, value in sorted(shown.attributes.items())]


def shown_spans(spans: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The spans in order of their end, each with those that it names and how it ended."""
    titles = {span.context.span_id: f"{n} {span.name}" for n, span in enumerate(spans, 1)}
    for span in spans:
        lines = [span.kind.name]
        lines += [f"below {titles[span.parent.span_id]}"] if span.parent else []
        lines += [f"linked to {titles[link.context.span_id]}" for link in span.links]
        lines += attributes_of(span)
        lines += [span.status.status_code.name] if not span.status.is_unset else []
        lines += [event.attributes["exception.message"] for event in span.events]
        yield titles[span.context.span_id], "\n".join(lines)


def shown_metrics(metrics: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The metrics with their points, of which a histogram has a number of durations."""
    for metric in metrics:
        points = metric.data.data_points
        buckets = getattr(points[0], "explicit_bounds", None)
        lines = [f"unit {metric.unit}", f"buckets {buckets}"]
        for point in points:
            lines.append(f"= {point.value if buckets is None else point.count}")
            lines += attributes_of(point)
        yield metric.name, "\n".join(lines)


def test_spans_and_metrics_are_as_they_were_approved(
    queue: Queue, recorded: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue.publish(list("abcdefgh"))
    queue.publish(Message("i", message_id="m-1"))
    billing, mail = queue.group("billing"), queue.group("mail", start="latest").ensure()
    held = billing.lease("worker-1", max_messages=8)
    sequences = [message.sequence for message in held.messages]
    held.ack(sequences[:2])
    held.nack(sequences[2:4], delay="1h")
    held.reject(sequences[4:6])
    held.release(sequences[6:], delay="1h")
    lost = billing.lease("worker-1")
    billing.seek("latest")
    with pytest.raises(LeaseLost):
        lost.ack()
    queue.publish(["j", "k"])
    queue.publish("l")
    work = {"mode": "batch", "max_messages": 3, "until": "empty", "worker_id": "worker-2"}
    billing.work(lambda _: None, **work)
    queue.publish("m")
    billing.work(lambda _: None, **work)
    mail.seek("latest")
    queue.publish(["n", "o"])
    mail.work(fail, **work, on_error="reject")

    def full(_: object) -> None:
        raise OSError("disk full")

    kept = billing.lease("worker-1")
    on_publish(monkeypatch, queue, full)
    on_write(monkeypatch, queue, full)
    for call in (lambda: queue.publish("p"), lambda: billing.lease("worker-1"), kept.ack):
        with pytest.raises(OSError, match="disk full"):
            call()
    shown = [*shown_spans(recorded.spans()), *shown_metrics(recorded.metrics())]
    texts = ((title, without_what_varies(text, tmp_path)) for title, text in shown)
    assert_approved(Path(__file__).parent / "spans.txt", texts)


def test_each_row_of_a_table_without_a_context_gets_that_of_the_publish(
    queue: Queue, recorded: Any
) -> None:
    rows = [{"a": "1", "b": "2"}, None, {}, {"traceparent": OWN}, {"c": "3"}]
    kind = pa.map_(pa.string(), pa.string())
    parts = [[row and list(row.items()) for row in part] for part in (rows[:2], rows[2:])]
    headers = pa.chunked_array([pa.array(part, kind) for part in parts])
    request = propagate.extract({"traceparent": OWN.replace("b", "c"), "tracestate": "k=v"})
    token = context.attach(request)
    queue.publish(pa.table({"value": list("vwxyz"), "headers": headers}))
    context.detach(token)
    (span,) = recorded.spans("publish orders")
    extra = {"traceparent": f"00-{'a' * 32}-{span.context.span_id:016x}-01", "tracestate": "k=v"}
    found = [message.headers for message in queue.group().lease("w", max_messages=5).messages]
    assert found == [{**rows[0], **extra}, extra, extra, rows[3], {"c": "3", **extra}]
    assert [link.context.span_id for link in span.links] == [int("b" * 16, 16)]


def test_an_error_without_a_text_is_reported_and_fails_only_its_message(
    queue: Queue, recorded: Any
) -> None:
    class ApiError(Exception):
        def __str__(self) -> str:
            raise AttributeError("there is no response")

    def fail_so(_: Lease) -> None:
        raise ApiError

    queue.publish("a")
    group = queue.group("billing")
    group.configure(retry_delay="1m")
    assert group.work(fail_so, mode="batch", until="empty").nacked == 1
    span = recorded.span("process orders")
    text = "(ApiError without a text: its str() raised AttributeError)"
    assert span.status.description == f"ApiError: {text}"
    (event,) = [one for one in span.events if one.name == "exception"]
    assert event.attributes["exception.message"] == text
    assert "in fail_so" in event.attributes["exception.stacktrace"]


def test_the_links_of_a_large_batch_are_capped(
    queue: Queue, recorded: Any, byte_store: ByteStore
) -> None:
    contexts = [f"00-{n + 1:032x}-{n + 1:016x}-01" for n in range(300)]
    messages = [Message("x", headers={"traceparent": one}) for one in contexts]
    queue.publish(messages[:127])
    add_values(queue, b"without a context")
    queue.publish(messages[127:])
    opened = byte_store.paths("open", of="messages")
    drain(queue, lambda _: None, mode="batch", max_messages=301)
    assert len(recorded.span("process orders").links) == 127
    published = [(span.kind, len(span.links)) for span in recorded.spans("publish orders")]
    assert published == [(SpanKind.CLIENT, 127), (SpanKind.PRODUCER, 128)]
    files = [file.path for file in messages_of(queue).index().files]
    assert opened[-2:] == files[:2], "no file behind the first 128 messages"


@pytest.mark.parametrize("message", ["a", b"a", Message("a", key="k", headers={"h": "ä"})])
def test_a_buffered_message_carries_the_span_that_published_it(
    queue: Queue, recorded: Any, message: Any
) -> None:
    with queue.publisher() as publisher:
        with get_tracer("test").start_as_current_span("request") as request:
            publisher.publish(message)
        publisher.publish("b")
    (link,) = recorded.span("publish orders").links
    assert link.context.span_id == request.get_span_context().span_id
    first, second = (m.headers for m in lease(queue).messages)
    assert f"{request.get_span_context().span_id:016x}" in first["traceparent"]
    assert second == {}


def test_nothing_is_reported_or_added_without_an_sdk(queue: Queue) -> None:
    assert leased(queue, "a").messages[0].headers == {}
