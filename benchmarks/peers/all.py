"""The peers that need no Spark, by the names that they have in the table."""

from __future__ import annotations

from typing import Final

from peers import mq, postgres, rows_delta_rs, valkey
from peers.base import Opener

OURS: Final = "spark_mq"
OURS_ROWS: Final = "spark_mq, lease.messages"
POSTGRES: Final = "PostgreSQL"
PGMQ: Final = "PostgreSQL, pgmq's way"
PGMQ_ASYNC: Final = "PostgreSQL, pgmq's way, synchronous_commit off"
VALKEY: Final = "Valkey, appendfsync everysec"
ROWS: Final = "row a message, delta-rs UPDATE"

BROKERS: Final[dict[str, Opener]] = {
    POSTGRES: postgres.opener(postgres.Postgres, synchronous=True),
    PGMQ: postgres.opener(postgres.Pgmq, synchronous=True),
    VALKEY: valkey.opener,
}
PYTHON: Final[dict[str, Opener]] = {
    OURS: mq.opener(),
    OURS_ROWS: mq.opener(rows=True),
    **BROKERS,
    PGMQ_ASYNC: postgres.opener(postgres.Pgmq, synchronous=False),
    ROWS: rows_delta_rs.opener(),
}
