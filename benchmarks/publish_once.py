"""Compare ways to publish each message once with a plain publish, in one run.

    .venv/bin/python benchmarks/publish_once.py --rounds 5

Each round publishes the same messages in every way, one way after the other. The ratio is the time of
a message divided by that of the plain way with as many messages to a commit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_mq import Queue

MESSAGES = 20_000
SINGLES = 300
VALUE = b"x" * 100
Way = Callable[[Queue, int], None]


def one_by_one(queue: Queue, round_: int) -> None:
    for _ in range(SINGLES):
        queue.publish(VALUE)


def numbered_calls(queue: Queue, round_: int) -> None:
    for n in range(SINGLES):
        queue.publish(VALUE, producer_id="calls", producer_sequence=round_ * SINGLES + n)


def buffered(queue: Queue, round_: int) -> None:
    with queue.publisher() as publisher:
        for _ in range(MESSAGES):
            publisher.publish(VALUE)


def named(queue: Queue, round_: int) -> None:
    with queue.publisher(producer_id="named") as publisher:
        for _ in range(MESSAGES):
            publisher.publish(VALUE)


WAYS: dict[str, tuple[Way, int, str]] = {
    "publish, one message": (one_by_one, SINGLES, "publish, one message"),
    "publish, one message, producer_sequence": (numbered_calls, SINGLES, "publish, one message"),
    "publisher()": (buffered, MESSAGES, "publisher()"),
    "publisher(producer_id=...)": (named, MESSAGES, "publisher()"),
}
"""The function, its messages, and the plain way, of each way."""


def measured(folder: Path, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield the microseconds that a message takes in each way."""
    queues = {name: Queue.create(folder / str(at)) for at, name in enumerate(WAYS)}
    for round_ in range(rounds + 1):
        for name, (publish, count, _) in WAYS.items():
            started = time.perf_counter()
            publish(queues[name], round_)
            took = time.perf_counter() - started
            if round_:  # The first one warms up.
                yield name, took / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, took in measured(Path(folder), parser.parse_args().rounds):
            times.setdefault(name, []).append(took)
    medians = {name: statistics.median(took) for name, took in times.items()}
    for name, (_, _, plain) in WAYS.items():
        ratio = medians[name] / medians[plain]
        print(f"{name:42} {medians[name]:9.2f} us a message   {ratio:5.2f}x")


if __name__ == "__main__":
    main()
