"""Measure the looks at a large queue: ``queue describe``, a refresh of ``top``, ``check``.

    python benchmarks/inspect_large.py --messages 10000000 --ranges 100000 --groups 1000

It builds the queue in a temporary folder first. Each figure is the time of one process, without
Python's start and without imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from large import ROOT, large_queue, parse

CHILD = """
import json, resource, sys, time
from contextlib import redirect_stderr, redirect_stdout
import io
import spark_mq.interfaces.cli.app, spark_mq.queue
from spark_mq import Queue
from spark_mq.interfaces.cli.watch import View

def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    with redirect_stdout(io.StringIO()):
        work()
    return [time.perf_counter() - wall, time.process_time() - cpu]

path = sys.argv[1]
with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
    spark_mq.interfaces.cli.app.run(["queue", "describe", "/no/queue"])  # typer imports more
figures = {"describe": timed(lambda: spark_mq.interfaces.cli.app.run(["queue", "describe", path]))}
check = ["check", "-q", path, "--max-dead", "0"]
figures["check"] = timed(lambda: spark_mq.interfaces.cli.app.run(check))
queue = Queue.open(path)
view = View(queue, 20)
figures["top, first view"] = timed(view.refresh)
figures["top, refresh"] = timed(view.refresh)
queue.group("group-0500").lease("bench", max_messages=10)
figures["top, refresh after a lease"] = timed(view.refresh)
figures["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(figures))
"""


def main() -> None:
    args = parse(__doc__)
    with large_queue(args) as path:
        rounds = [_round(path) for _ in range(args.rounds)]
    best = {
        name: min(one[name] for one in rounds) if name == "peak MB" else _best(rounds, name)
        for name in rounds[0]
    }
    print(json.dumps({**vars(args), **best}, indent=1))


def _round(path: Path) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return dict(json.loads(done.stdout))


def _best(rounds: list[dict[str, list[float]]], name: str) -> dict[str, float]:
    wall, cpu = (min(one[name][at] for one in rounds) for at in (0, 1))
    return {"seconds": round(wall, 3), "cpu_seconds": round(cpu, 3)}


if __name__ == "__main__":
    main()
