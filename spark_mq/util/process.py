"""Refuse handles from before a fork.

A forked process has the parent's locks as they were, perhaps held by threads that it does not
have. delta-rs and obstore do not survive a fork either.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from spark_mq.errors import UsedAfterFork

__all__ = ["ForkGuard", "ForkSafeLock"]

_forks = 0
"""Forks between the first process and this one."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - one number a process
    _forks += 1


_CAN_FORK: Final = hasattr(os, "register_at_fork")
if _CAN_FORK:
    os.register_at_fork(after_in_child=_count_fork)


class ForkGuard:
    """Remembers the process that made a handle.

    Parameters
    ----------
    what
        Names the handle in errors.
    """

    __slots__ = ("_forks", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._forks = _forks

    @property
    def is_foreign(self) -> bool:
        """Return whether this process was forked after the handle was made."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise UsedAfterFork in a process that was forked later.

        Later means after the handle was made.
        """
        if self._forks != _forks:
            raise UsedAfterFork(
                f"using {self._what} failed: it was opened before this process was forked. Start "
                f"processes by spawn or forkserver, and open the queue in each of them",
                what=self._what,
            )


class ForkSafeLock:
    """A lock of a whole process. A forked process begins with it free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        if _CAN_FORK:
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
