"""Publish and read CloudEvents, as their binding for Kafka lays them out in a message."""

from __future__ import annotations

from typing import Any, Unpack

from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.message import Message, MessageFields, ReceivedMessage
from spark_mq.util.loading import load_library

__all__ = ["from_message", "to_message"]


def to_message(
    event: Any,
    *,
    structured: bool = False,
    deduplicate: bool = False,
    **fields: Unpack[MessageFields],
) -> Message:
    """Return an event as a message. Needs the extra ``spark-mq[cloudevents]``.

    Parameters
    ----------
    event
        A ``CloudEvent`` of the package cloudevents.
    structured
        Whether the payload is the whole event as JSON. Otherwise it is the event's data, and the
        headers have its attributes as ``ce_id``, ``ce_source`` and so on, and ``content-type``.
    deduplicate
        Whether the event's source and id are the ``dedup_id``, for a queue with a ``dedup_window``.
    **fields
        The other parameters of :class:`Message`. Headers are added to those of the event. The
        default key is the attribute ``partitionkey``.

    Raises
    ------
    InvalidOption
        It is no event, or its data has no bytes.

    Examples
    --------
    >>> from cloudevents.core.v1.event import CloudEvent
    >>> event = CloudEvent({"type": "paid", "source": "/shop"}, {"id": 1})
    >>> to_message(event).headers["ce_type"]
    'paid'
    """
    kafka = _binding()
    convert = kafka.to_structured_event if structured else kafka.to_binary_event
    try:
        converted = convert(event)
        source = f"{event.get_source()} {event.get_id()}"
    except (AttributeError, TypeError, ValueError) as error:
        kind = type(event).__name__
        raise InvalidOption(
            f"a value of type {kind} cannot be published as an event ({type(error).__name__}): "
            "give a CloudEvent of the package cloudevents",
            option="event",
            value=kind,
        ) from None
    headers = {name: value.decode() for name, value in converted.headers.items()}
    key = converted.key.decode() if isinstance(converted.key, bytes) else converted.key
    own: MessageFields = {"key": key}
    if deduplicate:
        own["dedup_id"] = source
    given: MessageFields = {**own, **fields, "headers": {**headers, **fields.get("headers", {})}}
    return Message(converted.value, **given)


def from_message(message: ReceivedMessage) -> Any:
    """Return the event of a message, whose mode its headers show.

    With ``ce_*`` headers the payload is the data. Otherwise it must be a whole event as JSON. A key
    becomes the attribute ``partitionkey``. Raises InvalidPayload, which shows no contents, if it is
    no valid event.
    """
    kafka = _binding()
    headers = {name: value.encode() for name, value in message.headers.items()}
    try:
        return kafka.from_kafka_event(kafka.KafkaMessage(headers, message.key, message.value))
    except Exception as error:  # The package has no error of its own for damaged events.
        raise InvalidPayload(
            f"message {message.sequence} is not a CloudEvent ({type(error).__name__})",
            sequence=message.sequence,
        ) from None


def _binding() -> Any:
    return load_library("cloudevents.core.bindings.kafka", "CloudEvents", "cloudevents")
