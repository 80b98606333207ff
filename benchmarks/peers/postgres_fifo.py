"""Read PostgreSQL in order by message group, as pgmq 1.8 does (``pgmq.read_grouped``).

The statement is our own, after the published algorithm: the first visible message of each group,
less the groups of which an earlier message is invisible, then up to so many messages of each group,
the oldest group first. pgmq keeps the group in a JSON header, for which it has no usable index.
Here it is a column with an index, which helps PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peers.base import Leased
from peers.postgres import Pgmq

READ = """
WITH heads AS (
  SELECT key, min(id) AS head FROM queue WHERE visible_at <= clock_timestamp() GROUP BY key
), locked AS (
  SELECT q.id, q.key FROM queue q JOIN heads h ON q.key = h.key AND q.id = h.head
  WHERE q.visible_at <= clock_timestamp() ORDER BY q.id FOR UPDATE OF q SKIP LOCKED
), free AS (
  SELECT * FROM locked l WHERE NOT EXISTS (
    SELECT FROM queue e WHERE e.key = l.key AND e.id < l.id AND e.visible_at > clock_timestamp())
), offered AS (
  SELECT t.id, row_number() OVER (ORDER BY f.id, t.id) AS place FROM free f CROSS JOIN LATERAL (
    SELECT id FROM queue t WHERE t.key = f.key AND t.visible_at <= clock_timestamp()
    ORDER BY id LIMIT %s) t
), taken AS (
  SELECT q.id FROM queue q JOIN offered o ON q.id = o.id WHERE o.place <= %s
  ORDER BY q.id FOR UPDATE OF q SKIP LOCKED
)
UPDATE queue SET visible_at = clock_timestamp() + interval '60 s', read_count = read_count + 1
FROM taken WHERE queue.id = taken.id RETURNING queue.id, queue.value
"""


class PgmqFifo(Pgmq):
    """Work as pgmq does in the order of message groups.

    ``fill`` gives message `i` the key ``i % keys``.
    """

    columns = Pgmq.columns + ", key text NOT NULL"

    def __init__(self, socket: Path, synchronous: bool, keys: int) -> None:
        super().__init__(socket, synchronous)
        self._keys = keys
        self._at.execute("CREATE INDEX ON queue (key, id)")

    def fill(self, values: Sequence[bytes]) -> None:
        """Takes in many messages; not measured."""
        with (
            self._at.cursor() as cursor,
            cursor.copy("COPY queue (value, key) FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.set_types(["bytea", "text"])
            for at, value in enumerate(values):
                copy.write_row((value, f"k{at % self._keys}"))
        self._at.execute("VACUUM ANALYZE queue")

    def lease(self, count: int) -> Leased | None:
        rows = self._rows(READ, (count, count))
        if not rows:
            return None
        return Leased(lambda: [value for _, value in rows], [number for number, _ in rows])
