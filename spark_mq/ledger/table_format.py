"""Refuse the tables of a queue that another version of spark_mq wrote."""

from __future__ import annotations

from typing import Any

from spark_mq.errors import UnsupportedTable

__all__ = ["wrong_format"]


def wrong_format(actual: Any, known: int, path: str | None) -> UnsupportedTable:
    """Return the error for a queue of another format."""
    older = isinstance(actual, int) and actual < known
    fix = (
        "create a new queue with this version and publish its messages there; read the old queue "
        "with the version that created it"
        if older
        else "update spark_mq"
    )
    place = f"the queue at {path}" if path else "the queue"
    return UnsupportedTable(
        f"{place} has format {actual!r}, and this version of spark_mq reads {known}: {fix}",
        path=path,
        features=[],
    )
