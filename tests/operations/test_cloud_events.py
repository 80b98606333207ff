"""CloudEvents: what the package writes and reads, in both modes, and events that are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.v1.event import CloudEvent
from support.handles import leased

from spark_mq import Message, Queue
from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.integrations.cloud_events import from_message, to_message

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
ATTRIBUTES = {"id": "7", "source": "/shop", "type": "order.paid", "specversion": "1.0", "time": AT,
              "datacontenttype": "application/json", "tenant": "a"}  # fmt: skip
DATA = {"id": 1, "name": "Zoë"}


def event(**more: Any) -> CloudEvent:
    return CloudEvent({**ATTRIBUTES, **more}, DATA)


@pytest.mark.parametrize("structured", [False, True])
def test_an_event_comes_back(queue: Queue, structured: bool) -> None:
    (message,) = leased(queue, to_message(event(), structured=structured)).messages
    again = from_message(message)
    assert again.get_attributes() == ATTRIBUTES
    assert again.get_data() == DATA
    assert message.key is None


def test_headers_are_those_of_the_binding_for_kafka() -> None:
    binary, structured = to_message(event()), to_message(event(), structured=True)
    assert binary.headers == {
        "ce_id": "7", "ce_source": "/shop", "ce_type": "order.paid", "ce_specversion": "1.0",
        "ce_time": "2026-01-31T12:00:00Z", "content-type": "application/json", "ce_tenant": "a",
    }  # fmt: skip
    assert json.loads(binary.value) == DATA
    assert structured.headers == {"content-type": "application/cloudevents+json"}
    assert json.loads(structured.value)["data"] == DATA
    found = kafka.from_kafka_event(
        kafka.KafkaMessage({k: v.encode() for k, v in binary.headers.items()}, None, binary.value)
    )
    assert found.get_attributes() == ATTRIBUTES


def test_a_message_of_another_program_is_read(queue: Queue) -> None:
    headers = {"ce_id": "1", "ce_source": "s", "ce_type": "t", "ce_specversion": "1.0"}
    headers["content-type"] = "application/json"
    whole = {"id": "1", "source": "s", "type": "t", "specversion": "1.0", "data": [1]}
    both = Message("[1]", headers=headers, key="k"), Message.json(whole, key="k")
    for message in leased(queue, *both).messages:
        found = from_message(message)
        assert (found.get_id(), found.get_type(), found.get_data()) == ("1", "t", [1])
        assert found.get_extension("partitionkey") == "k"


def test_key_and_dedup_id_come_from_the_event(queue: Queue) -> None:
    paid = event(partitionkey="ann")
    plain = to_message(paid)
    assert (plain.key, plain.dedup_id) == ("ann", None)
    message = to_message(paid, deduplicate=True, key="bob", headers={"format": "2"}, priority=9)
    assert (message.key, message.dedup_id, message.priority) == ("bob", "/shop 7", 9)
    assert message.headers["format"] == "2"
    assert message.headers["ce_id"] == "7"
    queue.configure(dedup_window="1h")
    queue.publish([message])
    assert queue.publish([message]).published == 0


def test_what_is_no_event_is_refused(queue: Queue) -> None:
    for wrong in ({"id": "secret"}, "secret", None):
        with pytest.raises(InvalidOption, match="cannot be published as an event") as caught:
            to_message(wrong)
        assert "secret" not in str(caught.value)
    headers = {"ce_id": "1", "ce_source": "s", "ce_type": "t", "ce_time": "secret"}
    bad = [Message("secret"), Message.json({"id": "secret"}), Message("[1", headers=headers)]
    bad.append(Message("secret", headers={"ce_id": "1"}))
    for message in leased(queue, *bad).messages:
        no_event = f"message {message.sequence} is not a CloudEvent"
        with pytest.raises(InvalidPayload, match=no_event) as caught:
            from_message(message)
        assert "secr" not in str(caught.value)  # the library shows so much of a time
