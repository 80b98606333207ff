"""Watch operations while they run, and report them afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from spark_mq.telemetry.conventions import RECEIVE, Destination, Signal
from spark_mq.telemetry.reporter import current_reporter

__all__ = ["Watch", "watched"]

Watch = Callable[[Any], Sequence[Signal]]  # from an operation's result, or its error


def watched(
    destination: Destination, watches: Sequence[Watch | None], call: Callable[[], list[Any]]
) -> list[Any]:
    """Run operations and report those that have a watch."""
    reporter = current_reporter()
    if reporter is None or not any(watches):
        return call()
    started, results = time.time_ns(), list[Any]()
    try:
        results = call()
    except Exception as error:
        results = [error] * len(watches)
        raise
    finally:
        for watch, result in zip(watches, results, strict=False):
            for signal in () if watch is None else watch(result):
                # A lease that shares the commit of a settle is no part of the settled work.
                root = signal.kind == RECEIVE and len(watches) > 1
                reporter.report(destination, signal, started, root=root)
    return results
