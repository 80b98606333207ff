"""Keep ``commits/`` of ``messages/``, and ``history/`` of the ledgers.

The sweep calls this.
"""

from __future__ import annotations

from spark_mq.operations.context import QueueContext
from spark_mq.storage.history_store import Archived

__all__ = ["archive_history", "index_commits"]


def index_commits(context: QueueContext) -> int:
    """Write new commits of ``messages/`` to ``commits/``. Return their number.

    It is safe to kill, to repeat, and to run twice at the same time. Each commit is written once.
    """
    return context.messages.index_commits()


def archive_history(context: QueueContext) -> Archived:
    """Archive the ledger commits that are not in ``history/`` yet.

    It is safe to kill, to repeat, and to run twice at the same time. A queue in memory has no
    archive.
    """
    if context.history is None:
        return Archived(0, -1)
    return context.history.archive(context.settings.history_retention)
