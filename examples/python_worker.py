"""Handle messages in plain Python. Reject bad ones, retry failed ones, ack the rest."""

from __future__ import annotations

import sys

from spark_mq import InvalidPayload, Queue, ReceivedMessage, Reject, Retry


def handle(message: ReceivedMessage) -> Retry | None:
    """Handle a message, which is acked unless the handler says something else."""
    try:
        order = message.json()
    except InvalidPayload as error:
        raise Reject(str(error)) from error
    if order["customer"] == "closed":
        return Retry(error="the customer's bank is closed")
    return None


def main(folder: str) -> None:
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    queue.publish(['{"customer": "ann"}', '{"customer": "closed"}', "no JSON"])
    summary = queue.group("billing").work(handle, threads=2, until="empty")
    print(f"acked {summary.acked}, nacked {summary.nacked}, rejected {summary.rejected}")
    print(f"swept: {queue.sweep()}")


if __name__ == "__main__":
    main(sys.argv[1])
