"""Define the views of a group. None of them leases or commits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_mq.inspect.activity import MessageRecord, notable_messages
from spark_mq.inspect.lanes import (
    HotKey,
    LaneInfo,
    PriorityInfo,
    find_hot_keys,
    list_lanes,
    list_priorities,
)
from spark_mq.inspect.leases import (
    LastError,
    LeaseInfo,
    WorkerInfo,
    last_errors,
    list_leases,
    list_workers,
)
from spark_mq.inspect.overview import NOTEBOOK_ERRORS, failed_html, group_html
from spark_mq.inspect.peek import PeekedMessage, peek_group
from spark_mq.ledger.owner_commands import seek_position, unsettled_ranges
from spark_mq.ledger.ranges import LEASED
from spark_mq.operations.context import GroupLedger, QueueContext, StartPosition
from spark_mq.util.clock import Duration
from spark_mq.util.records import Record, Records
from spark_mq.util.validation import validate_count, validate_position

__all__ = ["GroupViews", "SeekPreview", "preview_seek"]


@dataclass(frozen=True, slots=True)
class SeekPreview(Record):
    """The effects that a seek would have on a group.

    Attributes
    ----------
    group
        The name of the group.
    start_sequence
        All messages up to this sequence are settled now.
    position
        The first sequence that the seek makes unread. It lies after the trim horizon, and at most
        one after the latest sequence.
    skipped
        Unsettled messages before the position, which no worker gets.
    delivered_again
        Messages from the position on that were settled or leased before.
    fenced_leases
        Live leases, whose workers can settle nothing after the seek.
    """

    group: str
    start_sequence: int
    position: int
    skipped: int
    delivered_again: int
    fenced_leases: int


def preview_seek(group: GroupLedger, target: str | int | datetime) -> SeekPreview:
    to: StartPosition = validate_position("to", target)
    ledger, index = group.current(), group.messages.index()
    position = seek_position(index, to, group.queue.horizon())
    position = index.first_at_or_after(position) or position
    ahead = unsettled_ranges(ledger, index, position - 1)
    leased = ledger.ranges_at(ledger.find((LEASED,)))
    return SeekPreview(
        group.name,
        ledger.head.start_sequence,
        position,
        sum(r.message_count for r in ahead),
        max(0, index.count(position, ledger.end_sequence)),
        len({r.lease_id for r in leased}),
    )


class GroupViews:
    """Views of a group, which lease nothing and commit nothing.

    They raise GroupNotFound if there is no such group.
    """

    name: str
    _context: QueueContext
    _ledger: GroupLedger

    def _existing(self) -> GroupLedger:
        self._ledger.require_group()
        return self._ledger

    def _repr_html_(self) -> str:
        try:
            return group_html(self._ledger)
        except NOTEBOOK_ERRORS as error:
            return failed_html(repr(self), error)

    def leases(self) -> Records[LeaseInfo]:
        """Return the leases of the group, the oldest first."""
        return Records(list_leases(self._existing()))

    def priorities(self) -> Records[PriorityInfo]:
        """Return the priorities that have unsettled messages, the highest first."""
        return Records(list_priorities(self._existing()))

    def lanes(self, top: int | None = 10, *, by: str = "messages") -> Records[LaneInfo]:
        """Return the lanes with the most unsettled messages, each with why it is held back.

        The list is empty if the queue has no lanes. In a very large backlog, it counts the first
        million runs of messages in one lane. With ``by="age"``, the lanes with the oldest first
        messages come first. ``top=None`` returns all lanes.

        Examples
        --------
        >>> for lane in group.lanes(top=3):  # doctest: +SKIP
        ...     print(lane.lane, lane.messages, lane.because)
        7 51200 lease 5f0c of worker-1 until 2026-01-31 12:00:00Z
        """
        return Records(list_lanes(self._existing(), top, by))

    def hot_keys(self, lane: int, n: int = 10) -> Records[HotKey]:
        """Return the `n` commonest keys among the first unsettled messages of a lane.

        It reads the keys of 10,000 messages at most. Raises InvalidOption if the queue has no such
        lane.
        """
        return Records(find_hot_keys(self._existing(), lane, n))

    def workers(self) -> Records[WorkerInfo]:
        """Return the workers that hold leases or run, the busiest first.

        An idle worker is listed if it writes a ``heartbeat``, see
        :meth:`spark_mq.ConsumerGroup.work`. In an object store this costs a listing more than
        :meth:`leases`, and a request for each heartbeat.
        """
        return Records(list_workers(self._existing()))

    def last_errors(self, n: int = 10) -> Records[LastError]:
        """Return the errors of unsettled messages, the latest first, at most `n`."""
        return Records(last_errors(self._existing(), validate_count("n", n)))

    def peek(
        self,
        n: int = 10,
        *,
        state: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        after: int | None = None,
    ) -> Records[PeekedMessage]:
        """Return messages with their state in the group, without a lease.

        `state` is "ready" (which contains "unread"), "unread", "delayed", "leased", "dead",
        "blocked", "transferring" or "settled". The other parameters are those of
        :meth:`spark_mq.Queue.peek`. In a group with a ``filter``, messages that no lease has
        examined are ready or unread, even if they do not match.
        """
        messages = peek_group(
            self._context,
            self._existing(),
            n,
            state=state,
            key=key,
            message_id=message_id,
            after=after,
        )
        return Records(messages)

    def preview_seek(self, to: str | int | datetime) -> SeekPreview:
        """Return the effects that :meth:`seek` would have, without running it."""
        return preview_seek(self._existing(), to)

    def slowest(self, n: int = 10, *, since: Duration = "1d") -> Records[MessageRecord]:
        """Return the `n` records with the longest time from first delivery to end.

        With `since`, only messages that ended within this time, or have not ended. A dead letter
        ends when a sweep routes it.
        """
        return Records(notable_messages(self._context, self.name, n, by="slowest", since=since))

    def most_failing(self, n: int = 10, *, since: Duration = "1d") -> Records[MessageRecord]:
        """Return the messages that failed most often. See :meth:`slowest` for the parameters."""
        return Records(notable_messages(self._context, self.name, n, by="failing", since=since))
