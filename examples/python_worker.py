"""Handle messages in plain Python. Reject bad ones, retry failed ones, ack the rest."""

from __future__ import annotations

import json
import sys

from spark_mq import Lease, Queue


def handle(lease: Lease) -> list[dict[str, object]]:
    """Return a verdict for each message that is not done."""
    verdicts: list[dict[str, object]] = []
    for message in lease.messages:
        try:
            order = json.loads(message.value)
        except ValueError as error:
            verdicts.append(verdict(message.sequence, "reject", str(error)))
            continue
        if order["customer"] == "closed":
            verdicts.append(verdict(message.sequence, "nack", "the customer's bank is closed"))
    return verdicts


def verdict(sequence: int, outcome: str, error: str) -> dict[str, object]:
    return {"sequence": sequence, "outcome": outcome, "error": error}


def main(folder: str) -> None:
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    queue.publish(['{"customer": "ann"}', '{"customer": "closed"}', "no JSON"])
    summary = queue.group("billing").work(handle, max_messages=100, threads=2, until="empty")
    print(f"acked {summary.acked}, nacked {summary.nacked}, rejected {summary.rejected}")
    print(f"swept: {queue.sweep()}")


if __name__ == "__main__":
    main(sys.argv[1])
