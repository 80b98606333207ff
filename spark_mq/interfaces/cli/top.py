"""Show queues live with ``spark-mq top``: one queue, or all queues below a path."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

from spark_mq.errors import QueueNotFound
from spark_mq.interfaces.cli.command import Given, command, option
from spark_mq.interfaces.cli.looks import Looks, QueueLooks, QueuesLooks
from spark_mq.interfaces.cli.output import Pages
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import validate_duration

__all__: list[str] = []


@command("top")
def top(
    on: Given,
    interval: Annotated[str, option("How often to refresh.")] = "2s",
    count: Annotated[int | None, option("End after so many refreshes.", min=1)] = None,
    groups: Annotated[int, option("Groups to show, the busiest.", min=1)] = 20,
) -> Pages | None:
    """Show a live view of a queue, or of all queues below a path, until q or Ctrl-C.

    In a pipe it prints one view, after two looks.
    """
    looks = _looks(on, groups)
    pause = validate_duration("--interval", interval) / SECOND
    if sys.stdout.isatty() and sys.stdin.isatty() and count is None and not on.json:
        from spark_mq.interfaces.cli.top_screen import TopApp

        TopApp(looks, pause).run()
        return None
    if count is None and not on.json:
        looks.refresh()  # the rates of the view that is printed come from this one
        time.sleep(pause)
        count = 1
    return Pages(_frames(looks, pause, count), looks.parts)


def _looks(on: Given, groups: int) -> Looks:
    try:
        return QueueLooks(on.queue, groups)
    except QueueNotFound:
        looks = QueuesLooks(str(on.path), on.storage_options, groups)
        if not looks.paths():
            raise
        return looks


def _frames(looks: Looks, pause: float, count: int | None) -> Iterator[dict[str, Any]]:
    """Yield a view now and after each pause, so many in all."""
    yield looks.refresh()
    while count is None or count > 1:
        time.sleep(pause)
        yield looks.refresh()
        count = None if count is None else count - 1
