"""The large queue of the benchmarks that look at one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))


def parse(description: str | None) -> argparse.Namespace:
    """Return the arguments of such a benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--ranges", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


@contextmanager
def large_queue(args: argparse.Namespace) -> Iterator[Path]:
    """Build the queue in a temporary folder."""
    from support.large_queue import build_large_queue

    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "queue", time.perf_counter()
        build_large_queue(path, messages=args.messages, files=args.files, groups=args.groups,
                          ranges=args.ranges)  # fmt: skip
        print(f"built in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        yield path
