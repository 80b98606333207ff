"""What a queue asks of a real S3 server (versitygw), and what workers get done if each request
takes 30 ms more.

    make .venv/stores/versitygw
    .venv/bin/python benchmarks/store_costs.py idle --seconds 60
    .venv/bin/python benchmarks/store_costs.py work --workers 1 8 32 --seconds 20
    .venv/bin/python benchmarks/store_costs.py work --workers 8 --groups 1 4 --seconds 20
    # the prices of your store
    .venv/bin/python benchmarks/store_costs.py idle --put 5e-6 --get 4e-7

Each worker is a process. It leases 100 messages, extends, acks, and starts again. `idle` counts the
requests of what waits, by itself and together in one process, and prices a month of it.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contention import run
from pyspark.sql.types import StructType
from store_proxy import counts, delayed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.stores import RemoteStore, versitygw

from spark_mq import Queue
from spark_mq.spark.stream_reader import LeaseReader

LATENCY = 0.03
MONTH = 30 * 86_400


def shown(found: Counter[str], per: float) -> str:
    return ", ".join(f"{count / per:.2f} {name}" for name, count in found.most_common(9))


def work(store: RemoteStore, url: str, workers: int, groups: int, seconds: float) -> None:
    before = Counter[str]()

    def asked() -> int:
        nonlocal before
        now = counts(url)
        before, found = now, now - before
        kinds.append(found)
        return now.total()

    kinds = list[Counter[str]]()
    found = run(
        workers, groups, 0.0, seconds, root=store.new_path(), options=store.options_at(url),
        messages=100_000, asked=asked,
    )  # fmt: skip
    each = [sum(len(ms) for ms in times.values()) for _, _, _, times, _, _ in found["workers"]]
    longest = max(
        max(ms) for _, _, _, times, _, _ in found["workers"] for ms in times.values() if ms
    )
    operations, commits = sum(each), found["commits_per_second"] * found["seconds"]
    files = kinds[1]["PUT leases data"]
    print(
        f"{workers:3d} workers of {groups} groups: "
        f"{operations / found['seconds']:.1f} operations/s, "
        f"{kinds[1].total() / operations:.1f} requests each, "
        f"{operations / commits:.1f} operations a commit, "
        f"{files / commits:.2f} data files a commit, "
        f"least/most {min(each) / max(each):.2f}, longest {longest / 1000:.1f} s, "
        f"{found['cpu'] / found['seconds']:.2f} cores\n"
        f"     by operation: {shown(kinds[1], operations)}",
        flush=True,
    )


def idle(store: RemoteStore, url: str, seconds: float, put: float, get: float) -> None:
    options = store.options_at(url)
    queue = Queue.create(store.new_path(), storage_options=options)
    queue.publish(["a"])
    names = ("one", "two", "three")
    for name in names:
        taken = queue.group(name).ensure().lease("w")
        assert taken is not None
        taken.ack()

    def wait(group: Any) -> Callable[[threading.Event], Any]:
        return lambda stop: group.work(lambda _: None, mode="batch", stop=stop)

    def stream(stop: threading.Event) -> None:
        given = {f"storageoptions.{name.lower()}": value for name, value in options.items()}
        reader = LeaseReader({"path": queue.path, "consumergroup": "one", **given}, StructType())
        start = reader.initialOffset()
        while not stop.is_set():
            assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start

    def opened() -> Queue:
        return Queue.open(queue.path, storage_options=options)

    cases: dict[str, list[Callable[[threading.Event], Any]]] = {
        "a worker": [wait(queue.group("one"))],
        "workers of three groups, each with a handle of its own": [
            wait(opened().group(name)) for name in names
        ],
        "a stream": [stream],
    }
    for name, calls in cases.items():
        stop = threading.Event()
        threads = [threading.Thread(target=call, args=(stop,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(10)  # the first pauses are shorter
        before, began = counts(url), time.perf_counter()
        time.sleep(seconds)
        found, took = counts(url) - before, time.perf_counter() - began
        stop.set()
        for thread in threads:
            thread.join()
        dear = sum(count for kind, count in found.items() if kind.startswith(("PUT", "LIST")))
        price = (dear * put + (found.total() - dear) * get) * MONTH / took
        print(
            f"{name}: {found.total() * 60 / took:.0f} requests a minute, {price:.2f} $ a month\n"
            f"     a minute: {shown(found, took / 60)}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("idle", "work"))
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--groups", type=int, nargs="*", default=[1])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds of each request")
    parser.add_argument("--put", type=float, default=5e-6, help="price of a PUT or LIST in $")
    parser.add_argument("--get", type=float, default=4e-7, help="price of a GET or HEAD in $")
    args = parser.parse_args()
    with versitygw() as store, delayed(store.url, args.latency) as url:
        if args.what == "idle":
            idle(store, url, args.seconds, args.put, args.get)
        else:
            for workers in args.workers:
                for groups in args.groups:
                    work(store, url, workers, groups, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
