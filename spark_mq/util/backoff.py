"""Pause before commits, so that writers without a common line share fairly.

The pauses make collisions seldom. A lost race lengthens a writer's pauses, and a commit shortens
them. On a disk, a commit carries its writer's pause, and each reader of the commit takes it over.
So a writer that wins each race slows down at the first commit of another one. Wireless networks
share a channel like this (MACAW, SIGCOMM 1994).
"""

from __future__ import annotations

import random
import time
from typing import Final

from spark_mq.errors import ContentionTimeout

_GROWTH: Final = 1.25  # for each lost race
_DECAY: Final = 0.5  # for each commit. With both, 8 writers lose one race for two commits
_LONGEST: Final = 3.0
_MOST_LOSSES: Final = 30  # more losses in a row do not lengthen the pause


class Backoff:
    """The pauses of one process before its commits to one ledger."""

    def __init__(self) -> None:
        self._common = 0.0  # the pause that the last commit named
        self._losses = 0  # since this writer's last commit
        self._attempt = 0.0  # seconds that the last attempt took

    @property
    def pause(self) -> float:
        """Return the mean seconds before an attempt, 0 if no other writer seems to compete."""
        if not self._losses:
            return self._common
        grown = max(self._common, self._attempt) * _GROWTH ** min(self._losses, _MOST_LOSSES)
        return min(grown, _LONGEST)

    def wait(self, share: float = 1.0) -> None:
        """Wait for a random time. Its mean is a share of the pause."""
        time.sleep(self.pause * share * random.uniform(0.0, 2.0))

    def take_over(self, pause: float) -> None:
        """Take over the pause that a commit of another writer names."""
        self._common = min(max(0.0, pause), _LONGEST)

    def won(self, seconds: float) -> None:
        """Shorten the pause after a commit. The attempt took some seconds."""
        left = self.pause * _DECAY
        self._common, self._losses, self._attempt = left if left > seconds / 4 else 0.0, 0, seconds

    def lost(self, seconds: float) -> None:
        """Lengthen the pause after a lost race. The attempt took some seconds."""
        self._losses, self._attempt = self._losses + 1, seconds


def too_many_conflicts(
    what: str, attempts: int, timeout: float, group: str | None = None
) -> ContentionTimeout:
    return ContentionTimeout(
        f"{what} lost {attempts} races in {timeout:.0f} s. Nothing was changed. "
        "Fewer workers with larger leases contend less",
        group=group,
        attempts=attempts,
    )
