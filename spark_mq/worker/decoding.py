"""Decode messages before a handler, and reject those that their format does not fit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from spark_mq.errors import InvalidPayload
from spark_mq.message import ReceivedMessage
from spark_mq.payload_format import Format
from spark_mq.util.failures import safe_text
from spark_mq.util.show import show_count
from spark_mq.worker.decisions import Reject
from spark_mq.worker.pools import is_async
from spark_mq.worker.worker_lease import WorkerLease

__all__ = ["decoding_leases", "decoding_messages"]

_log = logging.getLogger("spark_mq.worker")

Handler = Callable[[Any], Any]


def decoding_messages(handler: Handler, format: Format) -> Handler:
    """Return a handler of single messages that get their ``data``."""
    if is_async(handler):

        @wraps(handler)
        async def call_async(message: ReceivedMessage) -> Any:
            # In a thread, because a format may ask a registry, and the other coroutines go on.
            return await handler(await asyncio.to_thread(_decoded, message, format))

        return call_async

    @wraps(handler)
    def call(message: ReceivedMessage) -> Any:
        return handler(_decoded(message, format))

    return call


def _decoded(message: ReceivedMessage, format: Format) -> ReceivedMessage:
    try:
        return replace(message, data=format.decode(message.value))
    except InvalidPayload as error:
        raise Reject(safe_text(error)) from None


def decoding_leases(handler: Handler, format: Format) -> Handler:
    """Return a handler of leases whose messages have their ``data``. The others are rejected."""

    @wraps(handler)
    def call(lease: WorkerLease) -> Any:
        good, reasons = list[ReceivedMessage](), dict[str, list[int]]()
        for message in lease.messages:
            try:
                good.append(replace(message, data=format.decode(message.value)))
            except InvalidPayload as error:
                reasons.setdefault(safe_text(error), []).append(message.sequence)
        rejected = lease.keep(good, reasons)
        if rejected:
            text = "group %s: rejects what cannot be decoded, %s, such as: %s (lease %s)"
            shown, why = show_count(rejected, "message"), next(iter(reasons))
            _log.warning(text, lease.group.name, shown, why, lease.lease_id)
        return handler(lease) if good else None

    return call
