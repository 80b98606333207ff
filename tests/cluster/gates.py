"""Where tasks wait until a test has done to them what it wants: gates, and the sink and functions
that have them.

All of this goes to the executors by value: they cannot import test modules.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle

from spark_mq.spark import SparkMQDataSource

__all__ = ["PATIENCE", "Gate", "GatedSource", "rows_at"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE = 240.0
"""Seconds until something counts as never coming."""


@dataclass(frozen=True)
class Gate:
    """Holds the first `attempts` attempts of a job's first task that come here: they go on once it
    is opened, or never.

    ``home``: an empty directory, for the tasks run in processes of their own.
    """

    home: Path
    attempts: int = 1

    def arrive(self) -> None:
        """Called by a task, also for each row.

        Attempts are counted by their coming: a late first one may find the second there.
        """
        context = TaskContext.get()
        mine = self.home / f"attempt {context.taskAttemptId()}"
        if context.partitionId() != 0 or mine.exists():
            return
        mine.write_text(str(os.getpid()))
        place = next(place for place in itertools.count() if self._take(mine, place))
        deadline = time.monotonic() + PATIENCE
        while place < self.attempts and not (self.home / "open").exists():
            assert time.monotonic() < deadline, "nobody opened the gate"
            time.sleep(0.05)

    def _take(self, mine: Path, place: int) -> bool:
        try:
            os.link(mine, self.home / f"place {place}")
        except FileExistsError:
            return False
        return True

    def open(self) -> None:
        (self.home / "open").touch()

    def seen(self) -> list[int]:
        """The processes of the attempts that have come here, in this order."""
        places = sorted(self.home.glob("place *"), key=lambda path: int(path.name.split()[1]))
        return [int(path.read_text()) for path in places]


def rows_at(gate: Gate) -> Callable[[Iterator[Any]], Iterator[tuple[int, str, str]]]:
    """A function for ``rdd.mapPartitions``: sequence, lease and value of each row, past the
    gate.
    """

    def rows(found: Iterator[Any]) -> Iterator[tuple[int, str, str]]:
        gate.arrive()
        for row in found:
            yield row.sequence, row.lease_id, bytes(row.value).decode()

    return rows


def gated(writer: Any, gate: Gate) -> Any:
    """Let a writer's tasks write their files, and arrive at a gate before they say so."""

    class Gated(type(writer)):  # type: ignore[misc]
        def write(self, iterator: Iterator[Any]) -> Any:
            reported = super().write(iterator)
            gate.arrive()
            return reported

    writer.__class__ = Gated
    return writer


class GatedSource(SparkMQDataSource):
    """The sink, with options of its own: the gate's directory, and how many it holds."""

    @classmethod
    def name(cls) -> str:
        return "gated"

    def __init__(self, options: Mapping[str, str]) -> None:
        own = dict(options)
        self.gate = Gate(Path(own.pop("gate")), int(own.pop("attempts")))
        super().__init__(own)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return gated(super().writer(schema, overwrite), self.gate)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return gated(super().streamWriter(schema, overwrite), self.gate)
