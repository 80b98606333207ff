"""One writer's turn to commit, in which others may run its commands.

A writer that finds others at work leaves its commands as a request, and waits. Whoever commits next
runs them as well, and names the request and its outcomes in the note of the commit. What differs by
place is how writers find each other: :mod:`spark_mq.storage.local_turn` for a local disk, and
:mod:`spark_mq.storage.delegated_commands` for an object store.

A request may have commands of any group of the queue, because one commit can change several. It
runs once, because each commit names the requests that it ran and changes all of their groups, and
two commits of one group conflict. It runs again only if that commit was cleaned before its writer
read the note. A writer runs a request only if it knows all commits since then.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_mq.delta.actions import parse_foreign
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.store_errors import STORE_ERRORS, one_line, wrap_store_errors
from spark_mq.errors import StorageError

# The format of a request. Another one needs other names, because nobody waits for those.
FORMAT: Final = 2
_NAME: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}(-[A-Za-z0-9_-]+)?\.json")
MAX_BYTES: Final = 2**20  # of a request that others run
MAX_REQUESTS: Final = 64  # of others in one commit
# Key in a commit's note. Its value is the outcomes of the requests that it ran, by id.
SERVED: Final = "served"
# Key in a commit's note. True if its writer makes the next commit, too, if others delegate.
LEADS: Final = "leads"
# Key in the note of a leader's commit. Its value is the seconds since its commit before that.
CYCLE: Final = "cycle"
# Key in a commit's note. Its value is the pause of its writer in seconds, if others compete.
PAUSE: Final = "pause"
# Key in the note of a commit to several groups. Its value is a list of their notes.
GROUPS: Final = "groups"


def note_of_groups(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a commit's note from one for each group that it changes."""
    return dict(notes[0]) if len(notes) == 1 else {GROUPS: list(notes)}


def notes_by_group(note: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    notes = note.get(GROUPS)
    if not isinstance(notes, list) or not all(isinstance(each, dict) for each in notes):
        return [note]
    return notes


@dataclass(frozen=True, slots=True)
class DelegatedRequest:
    """The commands that one writer has delegated, in one file."""

    request_id: str
    base: int  # the version of the table that the writer knew
    commands: Sequence[Any]  # each with the name of its group
    packed: str = ""  # the commands, if they are a part of the name

    @property
    def name(self) -> str:
        """Return the name of the file. Older requests come first."""
        packed = f"-{self.packed}" if self.packed else ""
        return f"{self.base:020d}-{self.request_id}{packed}.json"

    def encode(self) -> bytes:
        data = {"format": FORMAT, "commands": list(self.commands)}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> DelegatedRequest | None:
        try:
            stored = parse_foreign(data.decode())
            commands = stored["commands"]
            if stored["format"] != FORMAT or not isinstance(commands, list):
                return None
            return cls(id_of(path), base_of(path), commands, packed_of(path))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def is_request(path: str) -> bool:
    return _NAME.fullmatch(path.rpartition("/")[2]) is not None


def id_of(path: str) -> str:
    return path.rpartition("/")[2][21:53]


def base_of(path: str) -> int:
    return int(path.rpartition("/")[2][:20])


def packed_of(path: str) -> str:
    return path.rpartition("/")[2][54:-5]


class CommitTurn(ABC):
    """The turn of one writer, from its wait until its commit or that of another writer."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._request: DelegatedRequest | None = None
        self._delegated = False  # whether others may run the request
        self._seen = log.state.version  # up to this version, the notes were read
        self._missed = -1  # the last version whose note could not be read
        self._ran: dict[str, Any] = {}  # outcomes in the notes since then, by request
        self.outcome: Any | None = None  # of the own request, in the commit of another writer
        self.shared = False  # whether that commit ran other requests, too

    @abstractmethod
    def wait(self, until: float) -> None:
        """Wait for an outcome in another's commit, or until this writer must commit by itself."""

    @abstractmethod
    def requests_to_run(self) -> Sequence[DelegatedRequest]:
        """Read the requests to run with the own commit."""

    @abstractmethod
    def leave(self, requests: Iterable[DelegatedRequest]) -> None:
        """Leave requests to their own writers, because a commit could not run them."""

    @abstractmethod
    def close(self, ran: Sequence[DelegatedRequest] = ()) -> None:
        """Delete the own request, and those that the own commit ran."""

    @property
    def own_outcome(self) -> dict[str, None]:
        """Return what the note of the own commit says of the own request."""
        return {} if self._request is None else {self._request.request_id: None}

    def not_run(self, requests: Sequence[DelegatedRequest]) -> Sequence[DelegatedRequest]:
        """Return the requests that surely no commit ran."""
        # Another thread, or a read of the ledger, may have read newer commits since the wait.
        self._take_notes(self._log.state.version)
        # A cleaned commit may have run a request that was written before it.
        known = (request for request in requests if request.base >= self._missed)
        return [request for request in known if request.request_id not in self._ran]

    def outcome_after(self, error: Exception) -> Any:
        """Return the outcome of the own request in another writer's commit, after an error.

        Raise an error if there is none, because another writer may have read the request and still
        run it.
        """
        if not self._delegated:
            raise error
        with contextlib.suppress(*STORE_ERRORS):
            self._follow()
        if self.outcome is not None:
            return self.outcome
        raise StorageError(
            f"an operation in {self._log.path} failed: {one_line(error.__cause__ or error)}. It "
            "was delegated, so other workers may still run it. Retry: a settle may be repeated, "
            "and a lease that nobody got expires",
            path=self._log.path,
            landed=None,
        ) from error

    def _follow(self) -> None:
        """Read the notes of new commits."""
        with wrap_store_errors(self._log.path, "reading"):
            version = self._log.refresh().version
        self._take_notes(version)

    def _take_notes(self, version: int) -> None:
        for number in range(self._seen + 1, version + 1):
            # A cleaned commit may have run the request. Then it runs again. The leases of the first
            # run expire, and a settle finds its messages settled.
            try:
                self._take_note(self._log.read_commit(number).note)
            except FileNotFoundError:
                self._missed = number
        self._seen = max(self._seen, version)

    def _take_note(self, note: Mapping[str, Any]) -> None:
        self._read_note(note)

    def _read_note(self, note: Mapping[str, Any]) -> None:
        served = note.get(SERVED)
        if isinstance(served, dict):
            self._ran |= served
            if self._request is not None and self._request.request_id in served:
                self.outcome = served[self._request.request_id]
                self.shared = len(served) > 1
