"""Describe a message in JSON, as events and XComs of Airflow need it."""

from __future__ import annotations

import base64
from typing import Any

from spark_mq.message import ReceivedMessage

__all__ = ["to_payload"]


def to_payload(message: ReceivedMessage) -> dict[str, Any]:
    try:
        text = message.value.decode()
    except UnicodeDecodeError:
        text = "\0"
    # PostgreSQL has no JSON with this character.
    no_text = {"value_base64": base64.b64encode(message.value).decode()}
    value = no_text if "\0" in text else {"value": text}
    return {
        "sequence": message.sequence,
        "message_id": message.message_id,
        "key": message.key,
        **value,
        "headers": dict(message.headers),
        "published_at": message.published_at.isoformat(),
        "delivery_count": message.delivery_count,
    }
