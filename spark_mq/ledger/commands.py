"""Define a command: a change of one group's ledger, as data with one pure function.

A command says what it must know of the group, and gets that as a :class:`View`. It returns a
:class:`Change`. It may be applied several times, because a commit may lose a race.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar

from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.data_files import DataFile
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.settings import GroupSettings

R = TypeVar("R")

KNOWN: Final = -2  # any index that this process has
TRACKED: Final = -1  # the index of the messages that the ledger tracks


class _Drop(Enum):
    GROUP = "drop group"


DROP_GROUP: Final = _Drop.GROUP  # instead of the next ledger

NextLedger = Ledger | Literal[_Drop.GROUP] | None  # to commit. None if there is nothing


class Priority(float, Enum):
    """How long a commit pauses if others compete. The value is a share of the common pause."""

    #: For settles and extensions. They come first, or leases would starve them.
    SETTLE = 0.5
    #: For leases and the sweep, which can wait.
    LEASE = 1.0


class Needs(NamedTuple):
    """What a command must know beside the ledger and the settings."""

    reach: int | None = KNOWN  # the last sequence of the log, or None for the whole log
    unread: int | None = None  # this many unread messages are enough for a lease
    damaged: bool = False  # of a damaged log, the part before the damage is enough
    horizon: Literal["", "always", "if lost"] = ""  # "if lost": only if it passes unsettled ones
    apps: tuple[str, ...] = ()  # whose transaction numbers it reads
    new_id: bool = False


@dataclass(frozen=True, slots=True)
class FileProblems:
    """What is known about the payload files of a queue, by path, also for a group's filter."""

    readable: Collection[str] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)  # and why
    out_of_reach: Mapping[str, SparkMQError] = field(default_factory=dict)
    unfinished: Collection[str] = ()  # no check has ended yet
    matches: Mapping[str, RowRuns] | None = None  # of the group's filter. None without one

    def unsure(self, index: MessageIndex, ranges: Sequence[Range]) -> list[DataFile]:
        """Return the files of some messages that no check found readable, or has filtered."""
        unsure, seen_to = dict[str, DataFile](), -1
        for r in ranges:
            if r.last <= seen_to:
                continue  # another range of the same file
            for path, first in index.paths_in(r.first, r.last):
                if not self.knows(path):
                    unsure[path] = index.file_at(first)
            seen_to = index.end_of_file(r.last)
        return list(unsure.values())

    def knows(self, path: str) -> bool:
        """Return whether a lease needs no further check of a file."""
        return path in self.readable and (self.matches is None or path in self.matches)

    def has_problem(self, path: str) -> bool:
        return path in self.damaged or path in self.out_of_reach or path in self.unfinished


_NOTHING: Final = Needs()
_NO_PROBLEMS: Final = FileProblems()


class View(NamedTuple):
    """What a command may know of its group."""

    ledger: Ledger  # an empty one if the group does not exist
    settings: GroupSettings
    now: int
    log: MessageIndex  # as far as the command needs it
    group: str = ""
    damage: CorruptLog | None = None  # why the index ends early
    horizon: int = -1  # messages up to it may be gone
    numbers: Mapping[str, int | None] = MappingProxyType({})  # of transactions, by app
    held: frozenset[str] = frozenset()  # leases that commands of this commit settle or extend
    exists: bool = True
    fresh: bool = True  # the ledger is not only the last known one
    new_id: str = ""  # random, another one at each try, if the command needs it
    files: FileProblems = _NO_PROBLEMS


class Change(NamedTuple, Generic[R]):
    """What a command does. Without a ledger it commits nothing."""

    ledger: NextLedger
    result: R
    note: Mapping[str, Any] = MappingProxyType({})  # the commit's account of it
    txn: tuple[str, int] | None = None  # an application transaction to commit
    unchecked: tuple[DataFile, ...] = ()  # apply it again if one of these cannot be read
    alarm: str = ""  # to log as an error


def counted_change(operation: str, ledger: Ledger, messages: int, **note: Any) -> Change[int]:
    """Return a change that commits nothing without messages. The note leaves out what is None."""
    given = {name: value for name, value in note.items() if value is not None}
    change = {"operation": operation, "messages": messages, **given}
    return Change(ledger if messages else None, messages, change)


class Command(ABC, Generic[R]):
    """A change of a ledger. ``name`` is also the word in the history."""

    name: ClassVar[str]
    priority: ClassVar[Priority] = Priority.SETTLE
    creates: ClassVar[bool] = False  # the group may be missing
    of_worker: ClassVar[bool] = False  # may share a commit also if a person acts
    exclusive: ClassVar[bool] = False  # shares no commit
    whole_table: ClassVar[bool] = False  # a change of any other group is a conflict
    without_ledger: ClassVar[bool] = False  # the ledger may be unreadable, and is not read
    adds_fingerprint: ClassVar[bool] = True  # of the newest file of the view's index

    @property
    def needs(self) -> Needs:
        """Return what the view must have."""
        return _NOTHING

    @property
    def lease_ids(self) -> frozenset[str]:
        """Return the leases that it settles or extends. No settle of the commit expires them."""
        return frozenset()

    @abstractmethod
    def apply(self, view: View) -> Change[R]:
        """Return what the command does to a group. It has no other effect."""


_LISTS: Final = (("operation", "+"), ("lease_id", ","), ("worker_id", ","))
"""The items of a note that list several values, each with its separator."""


def join_notes(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the notes of several commands, for DESCRIBE HISTORY."""
    joined: dict[str, Any] = {}
    for note in notes:
        joined |= note
    for name, separator in _LISTS:
        given = (str(note[name]).split(separator) for note in notes if note.get(name))
        if parts := dict.fromkeys(part for some in given for part in some):
            joined[name] = separator.join(parts)
    if "messages" in joined:
        joined["messages"] = sum(note.get("messages", 0) for note in notes)
    if "ranges" in joined:
        joined["ranges"] = " ".join(filter(None, map(_named_ranges, notes)))
    return joined


def _named_ranges(note: Mapping[str, Any]) -> str:
    """Return the ranges of a command with its name, which those of a settle have already."""
    ranges = str(note.get("ranges", ""))
    return f"{note['operation']} {ranges}" if ranges[:1].isdigit() else ranges
