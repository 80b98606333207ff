"""The seam to the byte store: watch, delay, change or break the calls of all stores, and of the
local disk below them.

A test takes the fixture ``byte_store``. Its handlers stand between the tables and their files, in
memory, on a disk or in an object store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from spark_mq.delta.actions import LOG_FOLDER
from spark_mq.delta.object_store import ObjectStore
from support.rule_variants import find_rule

__all__ = ["DISK", "READS", "VERBS", "WRITES", "ByteStore", "Call", "Injected", "Outage",
           "byte_store"]  # fmt: skip

READS = (
    *("read", "open", "read_parquet", "exists", "stat", "folders"),
    *("list", "iterate", "list_all", "iterate_all"),
)
WRITES = ("write", "create", "sync", "delete", "delete_many")
VERBS = (*READS, *WRITES)
DISK = ("write_new", "sync_file", "sync_folder", "link", "replace", "unlink", "makedir")
"""The system calls by which a store on a local disk writes."""


class Call(NamedTuple):
    """A call of a store or of the disk. ``run()`` does it, also with other arguments."""

    store: Any
    verb: str
    path: str
    args: tuple[Any, ...]
    real: Callable[..., Any]

    def run(self, *args: Any) -> Any:
        return self.real(*(args or self.args))


class Injected:
    """Wraps a function: at its n-th call something happens before, or an error is raised before or
    after it has done its work.
    """

    def __init__(
        self,
        real: Callable[..., Any],
        *,
        before: Callable[[], Any] | None = None,
        after: Callable[[], Any] | None = None,
        fail: BaseException | None = None,
        at: int = 1,
    ) -> None:
        self.real, self.before, self.after, self.fail = real, before, after, fail
        self.at, self.calls = at, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        now = self.calls == self.at
        if now and self.before is not None:
            self.before()
        result = self.real(*args, **options)
        if now and self.after is not None:
            self.after()
        if now and self.fail is not None:
            raise self.fail
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return lambda *args, **options: self(instance, *args, **options)


class _Handler(NamedTuple):
    verbs: tuple[str, ...]
    act: Callable[[Call], Any]
    of: ObjectStore | str | None

    def matches(self, store: Any, verb: str) -> bool:
        if verb not in self.verbs:
            return False
        if isinstance(self.of, str):
            return store.root.endswith(f"/{self.of}")
        return self.of is None or self.of is store


class ByteStore:
    """The handlers of calls. The one that came last is asked first.

    ``of`` is one store, or the folder of a table such as "leases", or None for all stores.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._handlers: list[_Handler] = []
        self._patch = patch
        local_files, _, _ = find_rule(f"LocalFiles.{DISK[0]}")
        for owner, verbs in ((ObjectStore, VERBS), (local_files, DISK)):
            for verb in verbs:
                patch.setattr(owner, verb, self._handled(verb, getattr(owner, verb)))

    def on(
        self, *verbs: str, act: Callable[[Call], Any], of: ObjectStore | str | None = None
    ) -> None:
        """Let a function handle each call. It returns the result, often by ``call.run()``."""
        self._handlers.append(_Handler(verbs, act, of))

    def inject(self, verb: str, *, of: ObjectStore | str | None = None, **what: Any) -> Injected:
        """Let something happen at the n-th call, as :class:`Injected` describes it."""
        injected = Injected(Call.run, **what)
        self.on(verb, act=injected, of=of)
        return injected

    def paths(self, *verbs: str, of: ObjectStore | str | None = None) -> list[str]:
        """Return a list that gets the path of each call from now on."""
        seen: list[str] = []

        def note(call: Call) -> Any:
            seen.append(call.path)
            return call.run()

        self.on(*verbs, act=note, of=of)
        return seen

    def advance(self, seconds: float) -> None:
        """Let the time of the disk, which commits and files have, be ahead from now on."""
        self._patch.setattr(ObjectStore, "now", lambda _: time.time() + seconds)

    def clear(self) -> None:
        """Leave the stores alone from now on."""
        self._handlers.clear()

    def _handled(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: Any, *args: Any, **options: Any) -> Any:
            run = partial(real, store, **options)
            path = _first_path(args)
            for handler in self._handlers:
                if handler.matches(store, verb):
                    run = partial(_through, handler, Call(store, verb, path, args, run))
            return run(*args)

        return call


def _first_path(args: tuple[Any, ...]) -> str:
    """Return the path of a call, the first of several, or "" if it names the root by none."""
    named = (arg[0] if isinstance(arg, list) and arg else arg for arg in args)
    return next((arg for arg in named if isinstance(arg, str)), "")


def _through(handler: _Handler, call: Call, *args: Any) -> Any:
    return handler.act(call._replace(args=args))


@pytest.fixture
def byte_store(monkeypatch: pytest.MonkeyPatch) -> ByteStore:
    """The calls of all stores of this process."""
    return ByteStore(monkeypatch)


PARTS = {
    "payloads": r"/messages/(?!_delta_log/).*\.parquet$",
    "leases": "/leases",
    "logs": LOG_FOLDER,
    "everything": "",
}
"""What may be out of reach: the files of messages, the table of ledgers, the logs of all tables."""


class Outage:
    """A part of all stores, or some files of it, while nobody can read or write them.

    In a block, ``outage()`` takes the payload files away, and ``outage.of(part, verbs)`` any part.
    """

    def __init__(self, byte_store: ByteStore) -> None:
        self.on = False
        self.failed = 0
        self.error: type[OSError] = PermissionError
        byte_store.on(*VERBS, act=self._act)

    def _act(self, call: Call) -> Any:
        wanted = self.on and call.verb in self._verbs
        wanted = wanted and (not self._only or call.path in self._only)
        if wanted and re.search(PARTS[self._part], f"{call.store.root}/{call.path}"):
            self._passing -= 1
            if self._passing < 0:
                self.failed += 1
                raise self.error(13, "out of reach", call.path)
        return call.run()

    @contextmanager
    def __call__(self, *only: str) -> Iterator[None]:
        """Nobody can read the payload files, or these of them."""
        with self.of("payloads", READS):
            self._only = only
            yield

    @contextmanager
    def of(self, part: str, verbs: tuple[str, ...] = VERBS, after: int = 0) -> Iterator[None]:
        """Nobody can do these things to this part of the store, after so many calls of them."""
        self.begin(part, verbs, after)
        try:
            yield
        finally:
            self.on = False

    def begin(self, part: str = "payloads", verbs: tuple[str, ...] = READS, after: int = 0) -> None:
        """Take a part of the store away until ``on`` is set to False."""
        self._part, self._verbs, self._passing = part, verbs, after
        self._only: tuple[str, ...] = ()
        self.on = True
