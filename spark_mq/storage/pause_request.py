"""Ask other writers of ``leases/`` to wait for a moment."""

from __future__ import annotations

import logging
from typing import Any

from spark_mq.delta.actions import Change
from spark_mq.delta.log import DeltaLog
from spark_mq.errors import SparkMQError
from spark_mq.storage.ledger_store import PAUSE
from spark_mq.storage.posted_requests import SERVED

__all__ = ["commit_pause_request"]

_log = logging.getLogger("spark_mq.storage.ledger_table")


def commit_pause_request(
    log: DeltaLog, operation_id: str, group: str | None, pause: float, *, share: bool
) -> None:
    """Commit a note that asks others to wait. See :meth:`LedgerTable.request_pause`.

    A failure is only logged.
    """
    note: dict[str, Any] = {"operation": "ask others to wait", "group": group}
    note[PAUSE] = round(pause, 3)
    if share:
        note[SERVED] = {}
    try:
        log.commit(Change(operation_id, note), log.refresh().version)
    except SparkMQError as error:
        _log.debug("requesting a pause in %s failed: %s", log.path, error)
