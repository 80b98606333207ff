"""Process a folder of files by several workers, and run a final step once all of them are done."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from spark_mq import Queue, ReceivedMessage, Reject

FILES = 10_000
PART = 2_500  # paths in one publish


def main(folder: str, files: int = FILES) -> None:
    inbox = make_files(Path(folder) / "inbox", files)
    work = Queue.create(f"{folder}/files", exist_ok=True)
    steps = Queue.create(f"{folder}/final-steps", exist_ok=True)
    group = work.group("parsers").ensure()

    # Publish in parts. Several processes may do it under the same batch_id.
    for part in parts(sorted(inbox.iterdir())):
        work.publish([str(path) for path in part], batch_id="import-7")
    work.close_batch("import-7", to=steps)

    def parse(message: ReceivedMessage) -> None:
        try:
            json.loads(Path(message.value.decode()).read_text())["amount"]
        except ValueError as error:
            raise Reject(f"not JSON: {error}") from error

    # More processes on more machines would call the same.
    group.work(parse, mode="message", threads=4, until="empty")
    work.sweep()  # moves the bad files to the dead-letter queue, and completes the batch

    def finish(message: ReceivedMessage) -> None:
        done = json.loads(message.value)
        ends = done["groups"]["parsers"]
        print(f"{done['batch_id']}: {ends['acked']} of {done['messages']} files are parsed")
        print(f"{ends['dead_lettered']} files are in the dead-letter queue")

    steps.group("final").work(finish, mode="message", until="empty")


def make_files(inbox: Path, files: int) -> Path:
    """Write small files, of which every thousandth is not JSON."""
    inbox.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = "not JSON" if number % 1000 == 999 else json.dumps({"amount": number})
        (inbox / f"{number:05}.json").write_text(text)
    return inbox


def parts(paths: list[Path]) -> Iterator[list[Path]]:
    for start in range(0, len(paths), PART):
        yield paths[start : start + PART]


if __name__ == "__main__":
    main(sys.argv[1])
