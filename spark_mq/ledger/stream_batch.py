"""Lease, replay and ack the batches of a stream.

Each runner of a stream has its own lease id for a batch, ``stream/n/runner``. Application
transactions in ``leases/`` fence drivers that still run after another one has taken over their
checkpoint: ``(stream, 2n + 1)`` for a lease of batch n, ``(stream, 2n + 2)`` for a replay.

The foreachBatch function and the source run in different processes and share only the ledger. So
before the function returns, it commits a transaction with the number of a batch that leaves
messages on purpose. The source looks for it before it acks. It counts for all batches up to its
number, because older leases were acked when the batch was leased.
A superfluous transaction, of a zombie or a replay, costs a second delivery and no message.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_mq.errors import StreamFenced
from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.ranges import AVAILABLE, LEASED, Ledger, Range
from spark_mq.ledger.selection import AcquireRequest, Grant, leased
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, SettlePart, settle_all, settle_note
from spark_mq.ledger.sink_writes import next_write
from spark_mq.ledger.transitions import (
    after_failure,
    expire_leases,
    record_failure,
    with_failure,
)
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.user import worker_label

STREAM_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEASE_ID = re.compile(rf"({STREAM_ID})/([0-9]{{1,18}})/([0-9a-f]+)")


def parse_lease_id(lease_id: str) -> tuple[str, int, str] | None:
    """Return (stream, batch, runner) of a lease id, or None if no stream made it."""
    match = _LEASE_ID.fullmatch(lease_id)
    return (match[1], int(match[2]), match[3]) if match else None


def names_batch(text: str | None) -> bool:
    """Return whether a lease id or an error names the lease of a batch."""
    return text is not None and _LEASE_ID.search(text) is not None


def fence_app_id(stream: str) -> str:
    """Return the app id of a stream's transactions in ``leases/`` that fence zombies."""
    return f"spark_mq.stream:{stream}"


def left_batch_app_id(stream: str) -> str:
    """Return the app id of the last batch that left messages unsettled on purpose."""
    return f"spark_mq.left:{stream}"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a stream, as one runner leases or replays it."""

    stream: str
    number: int
    runner: str
    ack_up_to: int = 0  # the last batch that is acked in the same commit
    first: bool = False  # the runner has leased nothing yet, and also acks for dead ones

    @property
    def lease_id(self) -> str:
        return self.prefix + self.runner

    @property
    def prefix(self) -> str:
        """Return what the lease ids of all runners of the batch begin with."""
        return f"{self.stream}/{self.number}/"

    @property
    def apps(self) -> tuple[str, ...]:
        fence = fence_app_id(self.stream)
        return (fence, left_batch_app_id(self.stream)) if self.ack_up_to else (fence,)

    def txn(self, step: int) -> tuple[str, int]:
        """Return the transaction of a lease, which is step 1, or of a replay, step 2."""
        return fence_app_id(self.stream), 2 * self.number + step

    def check_fence(self, view: View, *, highest: int) -> int | None:
        """Return the stream's last transaction, or None. Raise StreamFenced if above `highest`."""
        number = view.numbers[fence_app_id(self.stream)]
        if number is not None and number > highest:
            raise StreamFenced(
                f"batch {self.number} of stream {self.stream} is fenced: another driver has leased "
                f"batch {(number - 1) // 2} of this checkpoint. Stop this query if the other one "
                f"still runs. Start with a new checkpoint if this one was copied or rolled back",
                stream=self.stream,
                batch=self.number,
                mark=number,
            )
        return number

    def ack_earlier(self, view: View, keep: Collection[str] = ()) -> tuple[Ledger, dict[str, Any]]:
        """Expire leases except `keep`, and ack the batches before this one that Spark committed."""
        return _ack_batches(
            view, self.stream, self.ack_up_to, None if self.first else self.runner, keep
        )


def _ack_batches(
    view: View, stream: str, up_to: int, runner: str | None, keep: Collection[str] = ()
) -> tuple[Ledger, dict[str, Any]]:
    """Expire leases except `keep`, and ack those of a stream's batches up to `up_to`, if any."""
    # Only leases of the runner are acked, because another runner's is a successor's. Without a
    # runner, those of dead runners are acked, too. The commit's note is empty without acks.
    done = _committed_leases(view, stream, up_to, runner)
    ledger = expire_leases(view.ledger, view.now, view.settings, [*done, *keep])
    if not done:
        return ledger, {}
    parts = [SettlePart(ACK, lease_id) for lease_id in done]
    ledger, outcomes = settle_all(view, ledger, parts)
    return ledger, settle_note(parts, outcomes)


def _committed_leases(view: View, stream: str, up_to: int, runner: str | None) -> list[str]:
    """Return the leases to ack, without those of batches that left messages on purpose."""
    if up_to == 0:
        return []
    ledger = view.ledger
    rows = ledger.find((LEASED, AVAILABLE), ("lease_id", "starts with", stream + "/"))
    if not rows:
        return []
    ids = {r.lease_id for r in ledger.ranges_at(rows) if r.lease_id}
    parts = {lease_id: parse_lease_id(lease_id) for lease_id in ids}
    done = sorted(
        (i, p[1]) for i, p in parts.items()
        if p and p[1] <= up_to and (runner is None or p[2] == runner)
    )  # fmt: skip
    left = view.numbers[left_batch_app_id(stream)] or 0
    return [lease_id for lease_id, n in done if n > left]


@dataclass(frozen=True, slots=True)
class AckBatches(Command[int]):
    """Ack the unsettled messages of the batches that Spark has committed, and count them."""

    stream: str
    up_to: int
    runner: str | None  # None also acks the leases of dead runners

    name = "ack"
    of_worker = True

    @property
    def needs(self) -> Needs:
        return Needs(TRACKED, apps=(left_batch_app_id(self.stream),))

    def apply(self, view: View) -> Change[int]:
        ledger, note = _ack_batches(view, self.stream, self.up_to, self.runner)
        return Change(ledger if note else None, note.get("messages", 0), note)


@dataclass(frozen=True, slots=True)
class LeaveBatch(Command[int]):
    """Exclude the leased messages of a batch from the ack on commit, and count them.

    The commit changes the group's ledger, so an ack that has not seen it conflicts.
    """

    stream: str
    number: int

    name = "leave"

    @property
    def needs(self) -> Needs:
        return Needs(apps=(left_batch_app_id(self.stream),))

    def apply(self, view: View) -> Change[int]:
        rows = rows_held_by_batch(view.ledger, f"{self.stream}/{self.number}/")
        held = view.ledger.ranges_at(rows)
        messages = sum(r.message_count for r in held)
        app = left_batch_app_id(self.stream)
        if not held or (view.numbers[app] or 0) >= self.number:
            return Change(None, messages)
        lease_ids = ",".join(sorted({r.lease_id or "" for r in held}))
        note = {"operation": self.name, "lease_id": lease_ids, "messages": messages}
        return Change(view.ledger, messages, note, (app, self.number))


@dataclass(frozen=True, slots=True)
class Replay(Command[Grant]):
    """Give the messages that a batch still holds to another runner, and none beside them.

    That counts as a delivery. Some messages return to the group instead: all of a batch that was
    replayed before, and messages without attempts. A message on its last attempt returns too if it
    has company, unless it failed by itself.
    """

    batch: StreamBatch
    worker_id: str
    timeout: int | None  # microseconds; None for the group's
    max_timeout: int

    name = "replay"
    priority = Priority.LEASE
    of_worker = True

    @property
    def needs(self) -> Needs:
        return Needs(TRACKED, apps=self.batch.apps)

    def apply(self, view: View) -> Change[Grant]:
        batch = self.batch
        replayed = 2 * batch.number + 2
        number = batch.check_fence(view, highest=replayed)
        rows = rows_held_by_batch(view.ledger, batch.prefix)
        held = {r.lease_id for r in view.ledger.ranges_at(rows) if r.lease_id}
        before, acks = batch.ack_earlier(view, sorted(held))
        after, grant = self._grant(view, before, granted_before=number == replayed)
        grant = replace(grant, acked=acks.get("messages", 0))
        note = {
            "operation": self.name,
            "lease_id": batch.lease_id,
            "worker_id": worker_label(self.worker_id),
            "messages": grant.message_count,
        }
        return Change(after, grant, note, None if number == replayed else batch.txn(2))

    def _grant(self, view: View, ledger: Ledger, *, granted_before: bool) -> tuple[Ledger, Grant]:
        now, rules, lease_id = view.now, view.settings, self.batch.lease_id
        editor = LedgerEditor(ledger)
        held = editor.remove(rows_held_by_batch(ledger, self.batch.prefix))
        several = sum(r.message_count for r in held) > 1
        kept: list[Range] = []
        failed: Range | None = None
        for r in held:
            in_company = several and _is_last(r, rules, 1) and not _failed_by_itself(r)
            if granted_before or _is_last(r, rules, 0) or in_company:
                editor.add(return_to_group(r, now, rules), r, "given_back", of_lease=True)
                failed = failed or (r if r.state == LEASED else None)
            else:
                kept.append(r)
        if failed is not None and not kept:
            record_failure(editor, failed, _death_error(failed), now, rules)
        size = sum(r.message_count for r in kept)
        request = self._request(view, size)
        granted = [leased(r, now, request, size) for r in kept]
        for before, r in zip(kept, granted, strict=True):
            editor.add(r, before, "replayed")
        if request.sink_write is not None:
            editor.head = replace(editor.head, last_sink_write=request.sink_write.number)
        after = editor.build()
        if is_ordered(view.log, rules):
            after, lost = return_behind(after, view.log, now, lease_id)
            granted = after.held(lease_id) if lost else granted
        return after, Grant(tuple(granted), lease_id=lease_id, expires_at=request.expires_at)

    def _request(self, view: View, messages: int) -> AcquireRequest:
        timeout = self.timeout or view.settings.visibility_timeout // MICROSECOND
        return AcquireRequest(
            self.batch.lease_id,
            self.worker_id,
            messages,
            view.now + min(timeout, self.max_timeout),
            sink_write=next_write(view.ledger, view.now) if view.settings.sink else None,
        )


def rows_held_by_batch(ledger: Ledger, prefix: str) -> list[int]:
    """Return the rows of a stream's batch, whose lease ids are ``stream/n/runner``."""
    return ledger.find((LEASED, AVAILABLE), ("lease_id", "starts with", prefix))


def _is_last(r: Range, rules: GroupSettings, more: int) -> bool:
    """Return whether the range reaches a limit if `more` deliveries fail."""
    attempts, failures = rules.max_delivery_attempts, rules.failure_limit(own=False)
    if attempts is not None and r.delivery_count + more >= attempts:
        return True
    return failures is not None and r.failure_count + more >= failures


def _failed_by_itself(r: Range) -> bool:
    """Return whether its last failure was its own. A lease keeps ``suspect`` from before it."""
    return r.failure_count > 0 and not r.suspect


def return_to_group(r: Range, now: int, rules: GroupSettings) -> Range:
    """Return a dead batch's range as due, and suspect unless alone, or apply its limit."""
    r = with_failure(r, now) if r.state == LEASED else r
    error, own = r.error or _death_error(r), r.lease_size == 1
    return after_failure(r, rules, now, error, own=own, due_at=now)


def _death_error(r: Range) -> str:
    return f"batch {r.lease_id} died"
