"""Draws the picture of ``queue.plot`` for the documentation, from a queue in memory.

# docs/images/plots.png
python docs/draw_plots.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from PIL import Image

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock, memory_queue

IMAGE = Path(__file__).parent / "images" / "plots.png"


def sample() -> tuple[Queue, int]:
    """Return a queue after an hour of work with a pause, and a message of it that has failed."""
    clock = ManualClock(datetime(2026, 1, 31, 12, tzinfo=UTC))
    queue = memory_queue(clock, lanes=16, order="key", visibility_timeout="10m")
    billing, audit = queue.group("billing"), queue.group("audit")
    chance = random.Random(1)
    failed = 0
    for minute in range(60):
        if not 30 <= minute < 40:
            keys = [int(chance.expovariate(0.2)) for _ in range(chance.randint(60, 90))]
            queue.publish([Message("{}", key=f"customer-{key}") for key in keys])
        clock.advance(30)
        for group, most in ((billing, 110), (audit, chance.randint(40, 80))):
            lease = group.lease("worker-1", max_messages=most)
            if lease is None:
                continue
            if group is billing and minute == 52:
                failed = lease.messages[0].sequence
                clock.advance(20)
                lease.nack([failed], error="timed out", delay="3m")
            lease.ack()
        clock.advance(30)
    audit.lease("worker-2", max_messages=150)
    return queue, failed


def main() -> None:
    queue, failed = sample()
    figure, places = plt.subplots(2, 2, figsize=(13, 7), layout="constrained")
    queue.plot.throughput(every="2m", ax=places[0, 0])
    queue.plot.ages(every="2m", ax=places[0, 1])
    queue.plot.lanes("audit", top=8, ax=places[1, 0])
    queue.plot.life(failed, ax=places[1, 1])
    whole = BytesIO()
    figure.savefig(whole, dpi=64)
    Image.open(whole).convert("RGB").quantize(48).save(IMAGE, optimize=True)
    print(f"{IMAGE}: {IMAGE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
