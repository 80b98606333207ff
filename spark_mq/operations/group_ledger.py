"""Administer the ledger of a consumer group."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from spark_mq.ledger import admin, schedule
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.log_marks import with_mark
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger, LedgerHeader
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.group_names import MAX_COMPARED_GROUPS, group_not_found
from spark_mq.operations.group_reader import GroupView, StartPosition, read_horizon
from spark_mq.operations.public_settings import public_group_settings, settings_changed
from spark_mq.operations.shared_ledger import CREATE_GROUP, SharedLedger
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.update import DROP_GROUP, Priority, Update, update_ledger
from spark_mq.util.advice import drop_group
from spark_mq.util.clock import to_micros
from spark_mq.util.show import show_position
from spark_mq.util.validation import suggest, validate_choice

__all__ = ["GroupLedger", "GroupView", "StartPosition", "read_horizon"]

_log = logging.getLogger(__name__)


class GroupLedger(SharedLedger):
    """The ledger of one group, with its owner's changes. Thread-safe."""

    def expire(self) -> int:
        """Expire leases now. Return the number of messages that they held."""

        def compute(view: GroupView) -> Update[int]:
            after = expire_leases(view.ledger, view.now, view.settings)
            after = schedule.settle_expired_unread(after, self.index_for(view.ledger), view.now)
            before, left = (one.count((LEASED,)) for one in (view.ledger, after))
            return after, before - left, {"operation": "expire", "messages": before - left}

        return self.update(compute, priority=Priority.LEASE) if self.exists() else 0

    def check_payloads(self, lease_id: str) -> None:
        """Check a lease's payload files again. Raise StorageError if one is out of reach."""
        ranges = self.current().held(lease_id)
        if ranges:
            index = self.messages.index(ranges[-1].last)
            self.payloads.forget(index, ranges)
            self.payloads.require_reachable(index, ranges)

    # -- the group itself

    def create_if_missing(self) -> None:
        """Create the group, or raise GroupNotFound if this handle must not create it."""
        if not self.create:
            self.require_group()
            return
        # Over a store a look costs a request. If this is out of date, the next change looks.
        if not self._created and self.ledgers.read(self.name, look=None).ledger is None:

            def compute(snapshot: LedgerSnapshot) -> Update[bool]:
                if snapshot.ledger is not None:
                    return None, False, {}
                index, damage = self.index_or_damage(self.ledger_in(snapshot))
                if damage is not None and self.start != "earliest":
                    raise damage  # only the whole log shows that place
                # Not past the last message. Later ones would count as settled unread.
                position = min(_position(index, self.start), index.last_sequence + 1)
                start = max(position - 1, self.horizon())
                settled = index.count(0, start)
                head = LedgerHeader(
                    start_sequence=start, settled_count=settled, settings=asdict(self.defaults)
                )
                return with_mark(Ledger(head), index), True, {"operation": CREATE_GROUP}

            if update_ledger(self.ledgers, self.name, compute):
                self._warn_similar_name()
        self._created = True

    def _warn_similar_name(self) -> None:
        """Log the new group. Warn if its name looks misspelt."""
        # Numbered names are alike on purpose. Nobody types the names of very many groups.
        stem = _without_digits(self.name)
        many = self.ledgers.group_count() > MAX_COMPARED_GROUPS
        names = () if many else self.ledgers.groups()
        others = (name for name in names if _without_digits(name) != stem)
        if alike := suggest(self.name, others):
            _log.warning(
                "group %r is created in %s, at %s. There is a group %r. If you meant it, use %s",
                self.name, self.queue_path, self.start, alike, drop_group(self.name),
            )  # fmt: skip
        else:
            _log.info("group %r is created in %s, at %s", self.name, self.queue_path, self.start)

    def seek(self, target: StartPosition) -> None:
        """Skip all messages before a target, and make all others unread."""
        self.create_if_missing()

        def compute(view: GroupView) -> Update[None]:
            index = self.index_for(view.ledger)
            position = self.seek_position(index, target)
            after = with_mark(admin.seek(view.ledger, index, position), index)
            detail = f"to {show_position(target)}"
            return after, None, {"operation": "seek", "ranges": f"{position}-", "detail": detail}

        update_ledger(self.ledgers, self.name, lambda snapshot: compute(self.view(snapshot)))

    def seek_position(self, index: MessageIndex, target: StartPosition) -> int:
        """Return the first sequence that a seek makes unread."""
        lowest = self.horizon() + 1
        # Not past the last one. That would skip messages that are not published yet.
        return min(max(_position(index, target), lowest), index.last_sequence + 1)

    def configure(self, changes: Mapping[str, Any]) -> GroupSettings:
        """Change settings of the group, and return all of them. Raise InvalidOption."""
        # Before the group is created.
        GroupSettings.validated(**changes).check_order(self.messages.lanes)
        self.create_if_missing()

        def compute(view: GroupView) -> Update[GroupSettings]:
            after = GroupSettings.validated(view.settings, **changes)
            info = {
                "operation": "configure",
                "settings": {name: getattr(after, name) for name in changes},
                "detail": settings_changed(
                    public_group_settings(view.settings), public_group_settings(after)
                ),
            }
            head = replace(view.ledger.head, settings=asdict(after))
            ledger = view.ledger.replaced(head, view.ledger.events)
            return ledger if after != view.settings else None, after, info

        return self.update(compute)

    def pause(self, reason: str | None) -> None:
        """Stop new leases until a resume. Create the group if it is missing."""
        self.create_if_missing()

        def compute(view: GroupView) -> Update[None]:
            info = {
                "operation": "pause",
                **({"reason": reason, "detail": reason} if reason else {}),
            }
            return admin.pause(view.ledger, reason, view.now), None, info

        self.update(compute)

    def resume(self) -> None:
        """End a pause, and close the breaker. Raise GroupNotFound."""

        def compute(view: GroupView) -> Update[None]:
            after = admin.resume(view.ledger)
            changed = after.head != view.ledger.head
            return after if changed else None, None, {"operation": "resume"}

        self.update(compute)

    def unblock(self, to: str, sequences: Iterable[int] | None) -> int:
        """Decide about messages that block the group. Return their number."""
        how = validate_choice("to", to, (admin.RETRY, admin.ROUTE, admin.DROP))
        intervals = None if sequences is None else from_sequences(sequences)

        def compute(view: GroupView) -> Update[int]:
            ledger = expire_leases(view.ledger, view.now, view.settings)
            index = self.index_for(ledger, ledger.end_sequence)
            after, messages = admin.unblock(ledger, index, view.now, how, intervals)
            info = {"operation": f"unblock: {how}", "messages": messages}
            return after if messages else None, messages, info

        return self.update(compute)

    def drop(self) -> None:
        """Drop the group, even if its ledger is unreadable. Raise GroupNotFound."""

        def compute(_: LedgerSnapshot) -> Update[None]:
            if self.name not in self.ledgers.groups():
                raise group_not_found(self.name, self.ledgers, self.queue_path)
            return DROP_GROUP, None, {"operation": "drop group"}

        update_ledger(self.ledgers, self.name, compute, whole_table=True, replace=True)


def _position(index: MessageIndex, start: StartPosition) -> int:
    if isinstance(start, datetime):
        return index.first_published_since(to_micros(start))
    if isinstance(start, str):
        return {"earliest": 0, "latest": index.last_sequence + 1}[start]
    return start


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "0", name)
