"""Logs of many messages, made in no time: one data file under many names.

What a lease costs goes by ranges and files, not by values.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa

from spark_mq import Queue
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.publishes import PendingPublish

__all__ = ["fill"]

LINKS = 10_000
"""Names a file may have; ext4 allows 65,000."""


def fill(queue: Queue, messages: int, commit: int = 100_000, value: bytes = b"x" * 20) -> None:
    """Publishes so many messages, `commit` to a commit (and a file).

    Message ids are left null, as a plain Delta writer may.
    """
    table = queue._context.messages
    root = Path(table.path)
    made: dict[int, WrittenFile] = {}
    for number, start in enumerate(range(0, messages, commit)):
        rows = min(commit, messages - start)
        if rows not in made or number % LINKS == 0:
            file = made[rows] = write_file(
                table.files,
                pa.table({"value": pa.repeat(pa.scalar(value), rows)}),
            )
        else:
            file = WrittenFile(f"part-{uuid.uuid4()}.parquet", made[rows].size, rows)
            os.link(root / made[rows].path, root / file.path)
        table.commit(PendingPublish(table.files, [file]))
