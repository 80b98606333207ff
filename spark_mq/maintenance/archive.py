"""Copy the commits of a queue's tables to ``commits/`` and ``history/``.

The sweep calls it. It is safe to kill, to repeat, and to run twice at the same time.
"""

from __future__ import annotations

from spark_mq.operations.context import QueueContext
from spark_mq.storage.history_table import Archived

__all__ = ["archive_history", "index_commits"]


def index_commits(context: QueueContext) -> int:
    """Write each new commit of ``messages/`` to ``commits/`` once. Return their number."""
    return context.messages.index_commits()


def archive_history(context: QueueContext) -> Archived:
    """Archive the ledger commits that ``history/`` lacks."""
    return context.history.archive(context.settings.history_retention)
