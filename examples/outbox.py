"""Publish rows of a database once. Its own transaction writes the outbox table."""

from __future__ import annotations

import sqlite3
import sys

from spark_mq import Queue

BATCH = 1000
NEXT_ROWS = "SELECT id, body FROM outbox WHERE id > ? ORDER BY id LIMIT ?"


def publish_outbox(database: sqlite3.Connection, queue: Queue) -> int:
    """Publish rows that no earlier run has published. Return how many."""
    total = 0
    while True:
        # The number of a call is the id of its last row. So the queue knows where to continue.
        last = queue.last_producer_sequence("outbox") or 0
        rows = database.execute(NEXT_ROWS, (last, BATCH)).fetchall()
        if not rows:
            return total
        bodies = [body for _, body in rows]
        queue.publish(bodies, producer_id="outbox", producer_sequence=rows[-1][0])
        total += len(rows)


def main(folder: str) -> None:
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    database = sqlite3.connect(f"{folder}/shop.db")
    database.execute("CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, body TEXT)")
    with database:  # orders and their messages are one transaction
        database.executemany("INSERT INTO outbox (body) VALUES (?)", [("one",), ("two",)])
    print(f"published {publish_outbox(database, queue)}")
    print(f"published {publish_outbox(database, queue)} in a second run")
    database.close()


if __name__ == "__main__":
    main(sys.argv[1])
