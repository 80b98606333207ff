"""How the costs of spark_mq behave as things grow: each module measures one of them.

A part is loaded when it is measured: one of them needs Spark, another an S3 endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from figures import Point, Result

__all__ = ["CURVES"]

Curve = Callable[..., Iterator[Result | Point]]
"""Called with a folder, the rounds, and ``short``."""


def _of(module: str, name: str) -> Callable[[], Curve]:
    def load() -> Curve:
        found: Any = getattr(import_module(f"curves.{module}"), name)
        return found

    return load


CURVES: dict[str, Callable[[], Curve]] = {
    "batch": _of("commits", "against_batch"),
    "backlog": _of("commits", "against_backlog"),
    "age": _of("age", "age"),
    "workers": _of("workers", "workers"),
    "log": _of("backlog", "backlog"),
    "fragments": _of("fragments", "fragments"),
    "latency": _of("latency", "latency"),
    "s3": _of("s3", "s3"),
    "s3-stream": _of("s3_stream", "s3_stream"),
}
