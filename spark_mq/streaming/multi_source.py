"""Run one stream over several queues.

A batch leases its share from each queue. Its offset also has the number of ``queues``. Each queue
knows the stream by an id made from the offset's uuid and the queue's place. So transactions, lease
ids and replays are separate, and a queue may be added to the list or removed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_mq.errors import StorageError
from spark_mq.operations.context import GroupLedger
from spark_mq.streaming.source import (
    QUEUES,
    BatchPlan,
    StreamOptions,
    StreamSource,
    parse_offset,
    stream_id_in_queue,
)

_log = logging.getLogger(__name__)

Plans = list[tuple[GroupLedger, BatchPlan]]


def fair_shares(limit: int, could: Sequence[int], turn: int) -> list[int]:
    """Share a limit fairly among queues that can take `could`. `turn` decides on the rest."""
    taken = [0] * len(could)
    while limit > 0 and (unfilled := [at for at, most in enumerate(could) if taken[at] < most]):
        first, each = turn % len(unfilled), limit // len(unfilled)
        for at in unfilled if each else (unfilled[first:] + unfilled[:first])[:limit]:
            part = min(could[at] - taken[at], each or 1)
            taken[at] += part
            limit -= part
    return taken


class MultiQueueSource:
    """One runner of a stream over several queues, with the methods of :class:`StreamSource`."""

    def __init__(
        self,
        groups: Sequence[GroupLedger],
        options: StreamOptions,
        *,
        keep_alive: Callable[[str, int, int], Any] | None = None,
    ) -> None:
        self.options = options
        self.runner = uuid.uuid4().hex[:12]
        self.sources = [
            StreamSource(group, options, keep_alive=keep_alive, runner=self.runner)
            for group in groups
        ]
        self._offered: dict[tuple[str, int], list[int]] = {}  # what each could grant the last one
        self._planned: dict[tuple[str, int], Plans] = {}

    def initial(self) -> dict[str, Any]:
        offset = self.sources[0].initial()
        for source in self.sources[1:]:
            source.initial()
        return {"batch": 0, QUEUES: len(self.sources), "stream": offset["stream"]}

    def limit_to_current(self) -> None:
        for source in self.sources:
            source.limit_to_current()

    @property
    def is_limited(self) -> bool:
        return self.sources[0].is_limited

    def may_have_news(self, every: float) -> bool:
        return any(source.may_have_news(every) for source in self.sources)

    def rate_wait(self) -> float:
        waits = [source.rate_wait() for source in self.sources]
        return min((wait for wait in waits if wait), default=0.0)

    def latest(self, start: Mapping[str, Any]) -> dict[str, Any]:
        stream, n = parse_offset(start, several=True)
        could = [
            source.available_count if source.has_available(self._in(source, stream), n) else 0
            for source in self.sources
        ]
        for source, most in zip(self.sources, could, strict=True):
            if not most:
                source.ack_committed(self._in(source, stream), n)
        if not any(could):  # one queue with due messages is enough
            return dict(start)
        self._offered = {(stream, n + 1): could}
        return {"batch": n + 1, QUEUES: len(self.sources), "stream": stream}

    def plans(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Plans:
        stream, n = parse_offset(end, several=True)
        _, before = parse_offset(start, several=True)
        if n == before:
            return []
        key = stream, n
        if key not in self._planned:
            plans = (
                self._lease(stream, n, self._offered[key])
                if key in self._offered
                else self._replay(stream, n)
            )
            self._planned = {key: plans}
        return self._planned[key]

    def _lease(self, stream: str, n: int, could: Sequence[int]) -> Plans:
        active = sum(1 for most in could if most)
        size = None if self.options.max_bytes is None else max(1, self.options.max_bytes // active)
        plans: Plans = []
        out_of_reach: list[StorageError] = []
        for source, share in zip(
            self.sources, fair_shares(self.options.max_messages, could, n), strict=True
        ):
            if not share:
                source.ack_committed(self._in(source, stream), n - 1)
                continue
            try:
                plan = source.lease(self._in(source, stream), n, (share, size))
            except StorageError as error:  # the other queues' messages are leased and counted
                _log.warning(
                    "a batch continues without queue %s: %s", source.ledger.queue_path, error
                )
                out_of_reach.append(error)
            else:
                plans.append((source.ledger, plan))
        if out_of_reach and not any(plan.slices for _, plan in plans):
            raise out_of_reach[0]
        return plans

    def _replay(self, stream: str, n: int) -> Plans:
        for source in self.sources:  # before any queue counts a delivery
            source.find_damage(self._in(source, stream), n)
        # Also in queues where the batch holds nothing. A zombie between two leases is refused
        # there.
        return [
            (source.ledger, source.replay(self._in(source, stream), n)) for source in self.sources
        ]

    def stop(self) -> None:
        for source in self.sources:
            source.stop()

    def progress(self) -> dict[str, Any]:
        return {source.ledger.queue_path: source.progress() for source in self.sources}

    def _in(self, source: StreamSource, stream: str) -> str:
        """Return the stream's id in the queue of a source."""
        queue = source.ledger.queue
        return stream_id_in_queue(stream, queue.path, queue.storage_options)
