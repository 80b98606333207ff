"""Name, write and read the files of delegated requests.

Anyone who may write the folder may put other files there. They are neither read nor waited for.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_mq.delta.object_store import ObjectStore, is_data_path
from spark_mq.util.json_text import parse_foreign

__all__ = [
    "FOLDER",
    "MAX_BYTES",
    "DelegatedRequest",
    "base_of",
    "delete_old_requests",
    "id_of",
    "is_request",
]

FOLDER: Final = "_requests"
# The format of a request. Another one needs other names, because nobody waits for those.
FORMAT: Final = 1
_NAME: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}\.json")
MAX_BYTES: Final = 2**20  # of a request that others run
# A sweep deletes requests of this age. It is long, because clocks of machines may differ.
OLD_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class DelegatedRequest:
    """The commands that one writer has delegated, in one file."""

    request_id: str
    base: int  # the version of the table that the writer knew
    commands: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Return the name of the file. Older requests come first."""
        return f"{self.base:020d}-{self.request_id}.json"

    def encode(self) -> bytes:
        data = {"format": FORMAT, "commands": list(self.commands)}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> DelegatedRequest | None:
        """Return the request in a file, or None if it cannot be read."""
        try:
            found = parse_foreign(data.decode())
            commands = found["commands"]
            if found["format"] != FORMAT or not isinstance(commands, list):
                return None
            return cls(id_of(path), base_of(path), commands)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def is_request(path: str) -> bool:
    return _NAME.fullmatch(path.rpartition("/")[2]) is not None


def id_of(path: str) -> str:
    return path[-37:-5]


def base_of(path: str) -> int:
    return int(path[-58:-38])


def delete_old_requests(files: ObjectStore, older_than_seconds: float = OLD_SECONDS) -> int:
    """Delete the requests of killed writers, and other old files. Return the number of files."""
    before = time.time() - older_than_seconds
    old = [one.path for one in files.list_all(FOLDER) if one.modified < before]
    old = [path for path in old if is_data_path(path)]  # others can be deleted by hand only
    files.delete_many(old)
    return len(old)
