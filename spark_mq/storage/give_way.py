"""Let a slow writer commit between fast ones of other machines.

A writer that needs longer than the others loses each race. After some lost races it puts a
request into the log: a commit that changes nothing and conflicts with nothing. The other writers
see it as they follow the log, and pause once before their next commit. Requests expire, so a dead
writer costs the others one pause. On one machine, the lock of the group already orders writers.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from spark_mq.delta.actions import Change, Commit
from spark_mq.util.clock import SECOND

__all__ = ["WayRequests"]

LOST_RACES: Final = 3
"""A writer asks after this many lost races in a row, and after each one that follows."""
_MIN_SECONDS: Final = 0.1
_MAX_SECONDS: Final = 2.0
_OPERATION: Final = "ask others to wait"
_WRITER: Final = "writer"
"""Key in a commit's note: the writer that has asked."""


class WayRequests:
    """The requests in the log of one table, as one handle has seen them. Its owner locks."""

    def __init__(self) -> None:
        self._me = uuid.uuid4().hex
        self._lost: dict[str, int] = {}
        self._asked: dict[str | None, tuple[str, float]] = {}  # group, None: all -> writer, until

    @property
    def quiet(self) -> bool:
        """Whether nobody has asked, and this handle has lost no race."""
        return not self._asked and not self._lost

    def note(self, group: str) -> dict[str, Any]:
        """Return what a commit of the group says, so that the others go on at once."""
        return {_WRITER: self._me} if self._lost.get(group, 0) >= LOST_RACES else {}

    def see(self, commit: Commit, latest: int) -> None:
        """Take in a commit of the log. `latest` is the time of the last one, in microseconds."""
        if commit.adds or commit.removes:
            if self._asked:
                done = commit.note.get(_WRITER)
                self._asked = {k: asked for k, asked in self._asked.items() if asked[0] != done}
            return
        note = commit.note
        if note.get("operation") != _OPERATION:
            return
        key, now = note.get("for_group"), time.monotonic()
        seconds = min(float(note.get("seconds") or 0), _MAX_SECONDS)
        if latest - commit.timestamp > seconds * SECOND:
            return  # from before this handle looked
        if key not in self._asked or self._asked[key][1] < now:  # the first one has its turn first
            self._asked[key] = (str(note.get(_WRITER)), now + seconds)

    def pause(self, group: str) -> float:
        """Return for how many seconds to pause before a commit of the group. Each request counts
        once."""
        now = time.monotonic()
        others = {
            key: asked
            for key, asked in self._asked.items()
            if key in (None, group) and asked[0] != self._me
        }
        self._asked = {key: asked for key, asked in self._asked.items() if key not in others}
        return max([0.0, *(until - now for _, until in others.values())])

    def won(self, group: str) -> None:
        """Note a commit of the group by this handle."""
        self._lost.pop(group, None)

    def lost(self, group: str, seconds: float, whole_table: bool) -> Change | None:
        """Note a lost race. Return the request to commit, if it is time for one.

        ``seconds`` is how long the writer took from its look to its commit.
        """
        self._lost[group] = self._lost.get(group, 0) + 1
        if self._lost[group] < LOST_RACES:
            return None
        note = {
            "operation": _OPERATION,
            "for_group": None if whole_table else group,
            "seconds": round(min(_MIN_SECONDS + 1.5 * seconds, _MAX_SECONDS), 3),
            _WRITER: self._me,
        }
        return Change(uuid.uuid4().hex, note)
