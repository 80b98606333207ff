"""Spans and metrics follow OpenTelemetry's messaging conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from support.handles import lease, leased
from support.tables import on_publish
from support.working import drain, fail

from spark_mq import Lease, LeaseLost, Message, Queue

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import context, propagate
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode

DURATION_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
"""As the conventions advise."""


OWN = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
"""The context of a message that has been traced before."""
OF_ORDERS = {names.MESSAGING_SYSTEM: "spark_mq", names.MESSAGING_DESTINATION_NAME: "orders"}


def nothing(_: object) -> None:
    """Handle a lease."""


def test_a_publish_is_a_send_span(queue: Queue, recorded: Any) -> None:
    queue.publish(["a", "b", "c"])
    span = recorded.span("publish orders")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes) == {
        **OF_ORDERS,
        names.MESSAGING_OPERATION_NAME: "publish",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_BATCH_MESSAGE_COUNT: 3,
    }


def test_a_single_message_is_named_by_its_id_and_has_no_batch_count(
    queue: Queue, recorded: Any
) -> None:
    queue.publish(Message("a", message_id="m-1"))
    attributes = recorded.span("publish orders").attributes
    assert attributes[names.MESSAGING_MESSAGE_ID] == "m-1"
    assert names.MESSAGING_BATCH_MESSAGE_COUNT not in attributes


def test_messages_carry_the_context_of_their_publish(queue: Queue, recorded: Any) -> None:
    held = leased(queue, Message("a", headers={"own": "1"}), "b")
    context = recorded.span("publish orders").context
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    own = {"traceparent": expected}
    assert [m.headers for m in held.messages] == [{"own": "1", **own}, own]


def test_a_message_with_a_context_of_its_own_keeps_it_and_is_linked(
    queue: Queue, recorded: Any
) -> None:
    (message,) = leased(queue, Message("a", headers={"traceparent": OWN})).messages
    (link,) = recorded.span("publish orders").links
    assert link.context.span_id == int("b" * 16, 16)
    assert recorded.span("publish orders").kind is SpanKind.CLIENT
    assert message.headers == {"traceparent": OWN}


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


def test_a_lease_is_a_receive_span(queue: Queue, recorded: Any) -> None:
    queue.publish(["a", "b"])
    queue.group("billing").lease("worker-1", max_messages=2)
    span = recorded.span("lease orders")
    assert span.kind is SpanKind.CLIENT
    assert dict(span.attributes) == {
        **OF_ORDERS,
        names.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        names.MESSAGING_OPERATION_NAME: "lease",
        names.MESSAGING_OPERATION_TYPE: "receive",
        names.MESSAGING_CLIENT_ID: "worker-1",
        names.MESSAGING_BATCH_MESSAGE_COUNT: 2,
    }
    assert span.end_time > span.start_time


def test_a_lease_that_finds_nothing_makes_no_span(queue: Queue, recorded: Any) -> None:
    assert queue.group().lease("w") is None
    assert recorded.spans() == []


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_each_settle_is_a_settle_span(queue: Queue, recorded: Any, verb: str) -> None:
    getattr(leased(queue, "a", "b"), verb)()
    span = recorded.span(f"{verb} orders")
    assert span.kind is SpanKind.CLIENT
    assert span.attributes[names.MESSAGING_OPERATION_TYPE] == "settle"
    assert span.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 2
    assert ERROR_TYPE not in span.attributes


def test_a_settle_of_a_lost_lease_has_an_error(queue: Queue, recorded: Any) -> None:
    held = leased(queue, "a")
    queue.group().seek("latest")
    with pytest.raises(LeaseLost):
        held.ack()
    span = recorded.span("ack orders")
    assert span.attributes[ERROR_TYPE] == "spark_mq.errors.LeaseLost"
    assert span.status.status_code is StatusCode.ERROR


def test_a_failed_publish_has_an_error_and_counts(
    queue: Queue, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError("disk full")

    on_publish(monkeypatch, queue, fail)
    with pytest.raises(OSError, match="disk full"):
        queue.publish("a")
    span = recorded.span("publish orders")
    assert span.attributes[ERROR_TYPE] == "OSError"
    assert span.status.status_code is StatusCode.ERROR
    (point,) = recorded.points(metrics.MESSAGING_CLIENT_SENT_MESSAGES)
    assert point.attributes[ERROR_TYPE] == "OSError"


def test_work_is_a_process_span_with_links_and_the_settle_below_it(
    queue: Queue, recorded: Any
) -> None:
    queue.publish(["a", "b"])
    queue.publish("c")
    drain(queue, nothing, mode="batch", max_messages=3, worker_id="w-1")
    span, ack = recorded.span("process orders"), recorded.span("ack orders")
    sent = [one.context.span_id for one in recorded.spans("publish orders")]
    assert span.kind is SpanKind.CONSUMER
    assert [link.context.span_id for link in span.links] == sent
    assert span.attributes[names.MESSAGING_OPERATION_TYPE] == "process"
    assert span.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert span.attributes[names.MESSAGING_CLIENT_ID] == "w-1"
    assert ack.parent.span_id == span.context.span_id
    assert span.end_time <= ack.end_time


def test_work_on_one_message_belongs_to_the_trace_of_its_publish(
    queue: Queue, recorded: Any
) -> None:
    queue.publish("a")
    drain(queue, nothing, mode="batch")
    publish, process = recorded.span("publish orders"), recorded.span("process orders")
    assert process.parent.span_id == publish.context.span_id
    assert process.context.trace_id == publish.context.trace_id


def test_the_next_lease_is_no_part_of_the_work_before(queue: Queue, recorded: Any) -> None:
    queue.publish(["a", "b"])
    drain(queue, nothing, mode="batch")
    leases = recorded.spans("lease orders")
    assert len(leases) == 2
    assert [one.parent for one in leases] == [None, None]


def test_a_handler_that_fails_marks_its_span(queue: Queue, recorded: Any) -> None:
    queue.publish("a")
    drain(queue, fail, mode="batch", on_error="reject")
    span = recorded.span("process orders")
    assert span.attributes[ERROR_TYPE] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].attributes["exception.message"] == "boom"
    (point,) = recorded.points(metrics.MESSAGING_PROCESS_DURATION)
    assert point.attributes[ERROR_TYPE] == "ValueError"
    assert recorded.span("reject orders").parent.span_id == span.context.span_id


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


def test_the_links_of_a_large_batch_are_capped(queue: Queue, recorded: Any) -> None:
    contexts = [f"00-{n + 1:032x}-{n + 1:016x}-01" for n in range(300)]
    queue.publish([Message("x", headers={"traceparent": one}) for one in contexts])
    drain(queue, nothing, mode="batch", max_messages=300)
    assert len(recorded.span("process orders").links) == 128
    assert len(recorded.span("publish orders").links) == 128


@pytest.mark.parametrize("message", ["a", b"a", Message("a", key="k", headers={"h": "ä"})])
def test_a_buffered_message_carries_the_span_that_published_it(
    queue: Queue, recorded: Any, tracer: Callable[[], Any], message: Any
) -> None:
    with queue.publisher() as publisher:
        with tracer().start_as_current_span("request") as request:
            publisher.publish(message)
        publisher.publish("b")
    (link,) = recorded.span("publish orders").links
    assert link.context.span_id == request.get_span_context().span_id
    first, second = (m.headers for m in lease(queue).messages)
    assert f"{request.get_span_context().span_id:016x}" in first["traceparent"]
    assert second == {}


def test_the_metrics_count_and_time_the_operations(queue: Queue, recorded: Any) -> None:
    queue.publish(["a", "b", "c"])
    queue.group("billing").work(nothing, mode="batch", max_messages=2, until="empty")
    (sent,) = recorded.points(metrics.MESSAGING_CLIENT_SENT_MESSAGES)
    (consumed,) = recorded.points(metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES)
    assert (sent.value, consumed.value) == (3, 3)
    assert dict(consumed.attributes) == {
        **OF_ORDERS,
        names.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        names.MESSAGING_OPERATION_NAME: "lease",
    }
    durations = {
        point.attributes[names.MESSAGING_OPERATION_NAME]: point
        for point in recorded.points(metrics.MESSAGING_CLIENT_OPERATION_DURATION)
    }
    assert set(durations) == {"publish", "lease", "ack"}
    assert durations["lease"].count == 2
    assert durations["ack"].attributes[names.MESSAGING_OPERATION_TYPE] == "settle"
    assert durations["ack"].explicit_bounds == DURATION_BUCKETS
    (processed,) = recorded.points(metrics.MESSAGING_PROCESS_DURATION)
    assert processed.count == 2
    assert {one.name: one.unit for one in recorded.metrics()} == {
        metrics.MESSAGING_CLIENT_SENT_MESSAGES: "{message}",
        metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES: "{message}",
        metrics.MESSAGING_CLIENT_OPERATION_DURATION: "s",
        metrics.MESSAGING_PROCESS_DURATION: "s",
    }


def test_nothing_is_reported_or_added_without_an_sdk(queue: Queue) -> None:
    assert leased(queue, "a").messages[0].headers == {}
