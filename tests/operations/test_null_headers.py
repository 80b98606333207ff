"""A header has a text. A null value is refused at every door, and read as no header."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from support.handles import lease
from support.rule_variants import returns, rule_variant

from spark_mq import Queue
from spark_mq.errors import InvalidSchema

MAP = pa.map_(pa.string(), pa.string())


def table(*headers: object) -> pa.Table:
    values = [f"m{n}".encode() for n in range(len(headers))]
    return pa.table({"value": values, "headers": pa.array(headers, MAP)})


def test_a_table_with_a_null_header_is_refused(queue: Queue) -> None:
    wrong = table([("a", "1")], None, [("h", None)])
    with pytest.raises(InvalidSchema, match=r"'h'.*leave the header out.*map_filter") as caught:
        queue.publish(wrong)
    assert caught.value.column == "headers"
    assert queue.publish(wrong.slice(0, 2)).published == 2, "a slice without it"
    assert [m.headers for m in lease(queue).messages] == [{"a": "1"}, {}]


def test_a_null_header_of_another_writer_is_no_header(queue: Queue) -> None:
    with rule_variant("_check_headers", returns(None)):
        queue.publish(table([("h", None), ("a", "1")]))
    assert queue.peek(1)[0].headers == {"a": "1"}
    held = lease(queue)
    assert [message.headers for message in held.messages] == [{"a": "1"}]
    held.reject()
    queue.sweep()
    assert queue.redrive(transform=lambda m: replace(m, value=b"new")).messages == 1
    (message,) = lease(queue).messages
    assert (message.value, message.headers["a"]) == (b"new", "1")
    assert "h" not in message.headers
