"""Settle messages that a trim dropped before their group had settled them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spark_mq.errors import DataLossError
from spark_mq.ledger.commands import Change, Command, Needs, View
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, UNREAD, Ledger
from spark_mq.util.show import show_count

__all__ = ["SettleLost", "settle_lost", "without_lost"]


def without_lost(view: View, ledger: Ledger, fail: bool) -> tuple[Ledger, str]:
    """Settle dropped unread messages as lost, with a text for the log. Raise DataLossError."""
    if view.horizon <= ledger.head.start_sequence:
        return ledger, ""
    after, lost = settle_lost(ledger, view.log, view.horizon)
    if not lost:
        return ledger, ""
    if fail:
        raise DataLossError(
            f"group {view.group!r} lost {show_count(lost, 'message')} up to {view.horizon} to the "
            "queue's hard limit, or its group_expiry, before it had settled them. Accept the loss "
            "with fail_on_data_loss=False (failOnDataLoss in a stream), or seek('earliest')",
            group=view.group, lost=lost, horizon=view.horizon,
        )  # fmt: skip
    return after, (
        f"lost {show_count(lost, 'message')} up to {view.horizon}, dropped by the queue's hard "
        "limit, or its group_expiry"
    )


def settle_lost(
    ledger: Ledger,
    index: MessageIndex,
    horizon: int,
    event: str = "lost",
    states: Collection[str] = (AVAILABLE, DEAD, BLOCKED, UNREAD),
) -> tuple[Ledger, int]:
    """Settle messages up to a trim horizon as lost, if in some states, and count them.

    Leased ones are left out by default, because a holder may have read its messages.
    """
    if horizon <= ledger.head.start_sequence:
        return ledger, 0
    editor, total = LedgerEditor(ledger), 0
    for piece in editor.cut([(0, horizon)], index, states):
        editor.add(piece.as_settled(), piece, event)
        total += piece.message_count
    return editor.build(), total


@dataclass(frozen=True, slots=True)
class SettleLost(Command[None]):
    """Settle messages that a trim dropped unread, or raise DataLossError with `fail`."""

    fail: bool

    name = "data_loss"
    needs = Needs(horizon="if lost")

    def apply(self, view: View) -> Change[None]:
        after, lost = without_lost(view, view.ledger, self.fail)
        return Change(after, None, {"operation": self.name}, alarm=lost)
