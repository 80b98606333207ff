"""Measure how long it takes to group dead letters, and to repair, redrive and discard them.

    python benchmarks/repair.py --letters 100000 --distinct 1000 --messages 1000000

The letters are of one queue of so many other messages. Their errors have so many different texts of
two shapes. ``page`` is the CPU time of the page of dead letters, after every second of 8,000
letters was redriven. ``--page-only`` measures no more than that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_mq import Message, Queue, ReceivedMessage

PAGE = 8_000  # letters, before every second one is redriven
CHUNK = 10_000
SQL = "json_set(value, '$.currency', 'EUR')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--distinct", type=int, default=1_000, help="different texts of errors")
    parser.add_argument("--messages", type=int, default=0, help="other messages in the queue")
    parser.add_argument("--page-only", action="store_true", help="measure the page alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        if not given.page_only:
            found = measure(Path(folder), given.letters, given.distinct, given.messages)
        found["page, CPU s"] = page(Path(folder), given.distinct)
        print(json.dumps({**vars(given), **found}, indent=1))


def measure(folder: Path, letters: int, distinct: int, messages: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    queue = with_letters(folder / "queue", letters, distinct)
    for done in range(0, messages, 100_000):
        queue.publish([b"x" * 100] * min(100_000, messages - done))
    found["failures, s"] = timed(lambda: queue.failures(letters), 2)
    found["dry run of 1,000, by SQL, s"] = timed(
        lambda: queue.redrive(transform=SQL, dry_run=True, limit=1_000), 0
    )
    found["repair by SQL, s"] = timed(lambda: queue.redrive(transform=SQL), letters)
    for name, transform in (("by a function", euro), ("without a transform", None)):
        other = with_letters(folder / name.replace(" ", "-"), letters, distinct)
        found[f"redrive {name}, s"] = timed(
            lambda q=other, t=transform: q.redrive(transform=t), letters
        )
    other = with_letters(folder / "discard", letters, distinct)
    found["discard, s"] = timed(lambda: other.discard_dead_letters(where="true"), letters)
    return found


def page(folder: Path, distinct: int) -> list[float]:
    """Return the CPU seconds of three loads of the page of dead letters."""
    from starlette.testclient import TestClient

    from spark_mq.interfaces.web import Access, OverviewCache, create_app

    queue = with_letters(folder / "page", PAGE, distinct)
    queue.redrive(where="dead_letter_sequence % 2 = 0")
    app = create_app(OverviewCache(str(folder / "page")), Access(user="bench", allow_changes=True))
    found = []
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/messages/page").status_code == 200  # without the letters
        for _ in range(3):
            began = time.process_time()
            answer = client.get("/letters/page")
            found.append(round(time.process_time() - began, 2))
            assert f"<dd>{PAGE // 2:,}</dd>" in answer.text, answer.text[:2_000]
    return found


def euro(message: ReceivedMessage) -> bytes:
    return message.value.replace(b"EURO", b"EUR")


def with_letters(path: Path, letters: int, distinct: int) -> Queue:
    """A queue with letters as a sweep writes them."""
    queue = Queue.create(path)
    headers = {
        "spark_mq.queue": queue.path,
        "spark_mq.queue_id": str(queue.settings.queue_id),
        "spark_mq.group": "billing",
        "spark_mq.reason": "rejected",
        "spark_mq.delivery_count": "1",
        "spark_mq.failure_count": "1",
        "spark_mq.first_leased_at": datetime.now(UTC).isoformat(),
        "spark_mq.last_leased_at": datetime.now(UTC).isoformat(),
    }
    for first in range(0, letters, CHUNK):
        queue.dead_letters.publish([
            Message.json(
                {"id": n, "currency": "EURO", "note": "x" * 60},
                key=f"key-{n % 50}",
                headers={
                    **headers,
                    "spark_mq.sequence": str(n),
                    "spark_mq.error": f"{('ValueError', 'KeyError')[n % 2]}: order {n % distinct} "
                    f"of customer 'c-{n % distinct}' has the currency EURO",
                },
            )
            for n in range(first, min(first + CHUNK, letters))
        ])  # fmt: skip
    return queue


def timed(call: Callable[[], Any], expected: int) -> float:
    """Return the seconds of a call, which must find so many failures or messages."""
    began = time.perf_counter()
    result = call()
    seconds = round(time.perf_counter() - began, 2)
    number = len(result.failures) if expected == 2 else result.messages
    assert not expected or number == expected, number
    return seconds


if __name__ == "__main__":
    main()
