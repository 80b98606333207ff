"""Measure the web page on a large queue: each page, ``/metrics``, and the memory of the server.

    python benchmarks/web_large.py --messages 10000000 --ranges 100000 --groups 1000

It builds the queue in a temporary folder first. The server is a process of its own. The first
request for a page of groups waits until the server has read all ledgers; ``first look`` shows that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from large import ROOT, large_queue, parse

PAGES = {
    "all queues": "",
    "queue": "queue/queue",
    "queue, live part": "queue/queue?part=live",
    "queue, workers and blockers": "queue/queue?part=work",
    "queue, last hour": "queue/queue?part=past",
    "group of half the ranges": "group/queue?group=group-0000",
    "first messages": "messages/queue",
    "messages by state": "messages/queue?group=group-0000&state=leased",
    "messages by key": "messages/queue?key=key-3-7",
    "message": "message/queue?sequence=4294967296",
    "message, life": "message/queue?sequence=4294967296&part=life",
    "dead letters": "letters/queue",
    "sweeps and health": "sweeps/queue",
    "metrics": "metrics",
    "healthz": "healthz",
}


def main() -> None:
    args = parse(__doc__)
    with large_queue(args) as path:
        print(json.dumps({**vars(args), **_measure(path, args.rounds)}, indent=1))


def _measure(path: Path, rounds: int) -> dict[str, object]:
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_mq", "web", str(path), "--port", "0"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        base = process.stderr.readline().split()[-1]
        found: dict[str, object] = {"first look": _timed(process.pid, base)}
        for name, page in PAGES.items():
            times = []
            for _ in range(rounds):
                time.sleep(1.1)  # an overview is fresh for a second
                times.append(_timed(process.pid, base + page))
            found[name] = {key: min(one[key] for one in times) for key in times[0]}
        before = _megabytes(process.pid)
        for _ in range(20 * rounds):
            for page in ("queue/queue", "metrics"):
                _timed(process.pid, base + page)
        found["MB after one round, and after many"] = [before, _megabytes(process.pid)]
        return found
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _timed(pid: int, url: str) -> dict[str, float]:
    wall, cpu = time.perf_counter(), _cpu(pid)
    try:
        with urlopen(url) as answer:
            answer.read()
    except OSError as error:
        if getattr(error, "code", 0) != 503:  # an unhealthy queue
            raise
    return {
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(_cpu(pid) - cpu, 2),
    }


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmHWM")


if __name__ == "__main__":
    main()
