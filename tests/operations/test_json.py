"""Publish JSON, and read payloads as text and as JSON."""

from __future__ import annotations

import pickle

import pytest
from support.handles import leased

from spark_mq import Message, Queue
from spark_mq.errors import InvalidPayload


def test_json_comes_back_as_it_was_published(queue: Queue) -> None:
    values = [{"id": 1, "name": "Zoë"}, [1.5, None, True], "text", 7, None, {}]
    found = leased(queue, *(Message.json(value, key="k") for value in values)).messages
    assert [message.json() for message in found] == values
    assert [message.key for message in found] == ["k"] * len(values)
    assert found[0].text == '{"id":1,"name":"Zoë"}'


def test_a_payload_of_another_kind_is_an_error_that_shows_none_of_it(queue: Queue) -> None:
    deep = "[" * 100_000
    payloads = [b"\xffsecret", "secret", '{"secret": NaN}', "[-Infinity]", "", deep]
    for message in leased(queue, *payloads).messages:
        with pytest.raises(InvalidPayload, match=f"message {message.sequence} is no") as caught:
            message.json()
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None, "a cause would hold the payload"
        assert isinstance(caught.value, ValueError)
        assert pickle.loads(pickle.dumps(caught.value)).data["sequence"] == message.sequence


def test_only_utf_8_is_text(queue: Queue) -> None:
    good, bad = leased(queue, "Zoë", "Zoë".encode("latin-1")).messages
    assert good.text == "Zoë"
    with pytest.raises(InvalidPayload, match=r"is not text: byte 2 is not UTF-8"):
        _ = bad.text
