"""A store that is out of reach when a test says so: its files, or some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_mq.delta.actions import LOG_FOLDER
from spark_mq.delta.object_store import ObjectStore

__all__ = ["PARTS", "READS", "WRITES", "Outage"]

READS = ("open", "read", "read_parquet", "stat", "list", "iterate", "iterate_all", "folders")
WRITES = ("write", "create", "sync", "delete", "delete_many")
PARTS = ("payloads", "leases", "logs", "everything")
"""What may be out of reach: the files of messages, the table of ledgers, the logs of all tables."""


class Outage:
    """The files of all queues, or some of them, while nobody can read or write them.

    In a block, ``outage()`` takes the payload files away, and ``outage.of(part, verbs)`` any part.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.part, self.verbs = "payloads", READS
        self.only: set[str] | None = None
        self.passing = 0
        """How many calls still pass before the outage begins."""
        self.failed = 0
        self.error: type[OSError] = PermissionError
        for verb in (*READS, *WRITES):
            patch.setattr(ObjectStore, verb, self._failing(verb, getattr(ObjectStore, verb)))

    def _failing(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: Any, *args: Any, **options: Any) -> Any:
            named = args[0] if args else ""
            path = str(named if isinstance(named, str) else next(iter(named), ""))
            hit = self.on and verb in self.verbs and _part_of(store.root, path, self.part)
            if hit and (self.only is None or path in self.only):
                if self.passing:
                    self.passing -= 1
                    return real(store, *args, **options)
                self.failed += 1
                raise self.error(13, "out of reach", path)
            return real(store, *args, **options)

        return call

    @contextmanager
    def __call__(self, *only: str) -> Iterator[None]:
        """Nobody can read the payload files, or these of them."""
        with self.of("payloads", READS):
            self.only = set(only) or None
            yield

    @contextmanager
    def of(
        self, part: str, verbs: tuple[str, ...] = (*READS, *WRITES), after: int = 0
    ) -> Iterator[None]:
        """Nobody can do these things to this part of the store, after so many calls of them."""
        self.begin(part, verbs)
        self.passing = after
        try:
            yield
        finally:
            self.on = False

    def begin(self, part: str = "payloads", verbs: tuple[str, ...] = READS) -> None:
        """Take a part of the store away until ``on`` is set to False."""
        self.part, self.verbs, self.only, self.on = part, verbs, None, True
        self.passing = 0


def _part_of(root: str, path: str, part: str) -> bool:
    whole = f"{root}/{path}"
    if part == "everything":
        return True
    if part == "logs":
        return LOG_FOLDER in whole
    if part == "leases":
        return "/leases" in whole
    others = ("/leases", "/commits", "/history", LOG_FOLDER)
    return path.endswith(".parquet") and not any(other in whole for other in others)
