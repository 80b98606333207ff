"""The peers that need no Spark, by the names that they have in the table."""

from __future__ import annotations

from typing import Final

from peers import mq, postgres, rows_delta_rs, valkey
from peers.base import Opener

OURS: Final = "spark_mq"
OURS_ROWS: Final = "spark_mq, lease.messages"
POSTGRES: Final = "PostgreSQL"
POSTGRES_ASYNC: Final = "PostgreSQL, synchronous_commit off"
PGMQ: Final = "PostgreSQL, pgmq's way"
PGMQ_ASYNC: Final = "PostgreSQL, pgmq's way, synchronous_commit off"
VALKEY: Final = "Valkey, appendfsync everysec"
VALKEY_MEMORY: Final = "Valkey, in memory"
ROWS: Final = "row a message, delta-rs UPDATE"

BROKERS: Final[dict[str, Opener]] = {
    POSTGRES: postgres.opener(postgres.Postgres, synchronous=True),
    POSTGRES_ASYNC: postgres.opener(postgres.Postgres, synchronous=False),
    PGMQ: postgres.opener(postgres.Pgmq, synchronous=True),
    PGMQ_ASYNC: postgres.opener(postgres.Pgmq, synchronous=False),
    VALKEY: valkey.opener(synced=True),
    VALKEY_MEMORY: valkey.opener(synced=False),
}
PYTHON: Final[dict[str, Opener]] = {
    OURS: mq.opener(),
    OURS_ROWS: mq.opener(rows=True),
    **BROKERS,
    ROWS: rows_delta_rs.opener(),
}
