"""Publish a message every night, and let a worker act on it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from spark_mq import Message, Queue, ReceivedMessage
from spark_mq.testing import ManualClock


def main(folder: str) -> None:
    # A manual clock lets this example see three nights. Leave it out, and let a job sweep.
    clock = ManualClock(datetime(2027, 3, 26, 12, tzinfo=UTC))
    queue = Queue.create(f"{folder}/reports", exist_ok=True, clock=clock)
    queue.schedule(
        "nightly",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        message=Message.json({"report": "sales"}),
        catch_up="all",
    )

    def handle(message: ReceivedMessage) -> None:
        print(f"report for {message.headers['spark_mq.scheduled_at']}")

    for _ in range(3):
        clock.advance(timedelta(days=1))
        queue.sweep()  # publishes what is due
    queue.group("reports").work(handle, mode="message", until="empty")
    (schedule,) = queue.schedules()
    print(f"{schedule.name}: {schedule.rule}, next at {schedule.next_at}")


if __name__ == "__main__":
    main(sys.argv[1])
