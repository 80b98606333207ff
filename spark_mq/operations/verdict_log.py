"""Log the verdicts of handlers in sums, so that a busy group does not flood the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from spark_mq.ledger.ranges import DEAD, TRANSFERRING
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleCommand, SettleOutcome
from spark_mq.util.show import printable

__all__ = ["VerdictLog", "describe_settled"]

_log = logging.getLogger("spark_mq.verdicts")

EVERY: Final = 10.0  # seconds between two lines of one group
_MAX_ERROR: Final = 200  # characters of an error in a line
_PAST: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}


def describe_settled(commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]) -> str:
    """Return how many messages each verb settled, for a log."""
    done: Counter[str] = Counter()
    for command, outcome in zip(commands, outcomes, strict=True):
        done[command.verb] += outcome.settled
    return ", ".join(f"{count} {verb}ed" for verb, count in done.items())


class VerdictLog:
    """Logs the numbers of acked, nacked, rejected and dead messages. Thread-safe.

    The first failure is logged at once. Later ones are summed up, one line every ten seconds. A
    group without failures logs nothing.
    """

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._error: str | None = None
        self._logged_at = float("-inf")

    def add(self, commands: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]) -> None:
        """Count verdicts, and log them if a line is due."""
        with self._lock:
            for command, outcome in zip(commands, outcomes, strict=True):
                self._counts[command.verb] += outcome.settled
                self._counts[DEAD] += sum(
                    outcome.states.get(one, 0) for one in (DEAD, TRANSFERRING)
                )
                if command.verb in (NACK, REJECT) and outcome.settled:
                    self._error = self._error or command.error
            if self._clock() - self._logged_at >= EVERY:
                self._write()

    def flush(self) -> None:
        """Log the numbers that are not logged yet."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        counts = self._counts
        if not (counts[NACK] or counts[REJECT] or counts[DEAD]):
            return
        parts = [f"{counts[verb]} {name}" for verb, name in _PAST.items() if counts[verb]]
        dead = f", {counts[DEAD]} of these dead" if counts[DEAD] else ""
        error = f". The first error: {printable(self._error[:_MAX_ERROR])}" if self._error else ""
        _log.info("group %s: %s%s%s", self._group, ", ".join(parts), dead, error)
        self._counts, self._error, self._logged_at = Counter(), None, self._clock()
