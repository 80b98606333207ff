"""Publish the lines of files, each file once, however often the program runs."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_mq import Queue


def main(folder: str) -> None:
    inputs = Path(folder, "inputs")
    inputs.mkdir(parents=True, exist_ok=True)
    for day in range(3):
        (inputs / f"day-{day}.txt").write_text(f"order {2 * day}\norder {2 * day + 1}\n")
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    # The number of a file never changes, so a repeated run skips what landed.
    for number, path in enumerate(sorted(inputs.glob("*.txt"))):
        receipt = queue.publish(
            path.read_text().splitlines(),
            producer_id="importer",
            producer_sequence=number,
            on_duplicate="skip",
        )
        print(f"{path.name}: {'skipped' if receipt.duplicate else 'published'}")


if __name__ == "__main__":
    main(sys.argv[1])
