"""The seam to the byte store: watch, delay, change or break the calls of all stores.

A test takes the fixture ``byte_store``. Its handlers stand between the tables and their files, in
memory, on a disk or in an object store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from spark_mq.delta.local_files import LocalBackend
from spark_mq.delta.object_store import ObjectStore
from support.handles import Injected

__all__ = ["VERBS", "ByteStore", "Call", "byte_store"]

VERBS = (
    *("read", "open", "read_parquet", "exists", "stat", "folders"),
    *("list", "iterate", "list_all", "iterate_all"),
    *("write", "create", "sync", "delete", "delete_many"),
)


class Call(NamedTuple):
    """A call of a store. ``run()`` does it, also with other arguments."""

    store: ObjectStore
    verb: str
    path: str
    args: tuple[Any, ...]
    real: Callable[..., Any]

    def run(self, *args: Any) -> Any:
        return self.real(*(args or self.args))


class _Handler(NamedTuple):
    verbs: tuple[str, ...]
    act: Callable[[Call], Any]
    of: ObjectStore | str | None

    def matches(self, store: ObjectStore, verb: str) -> bool:
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
        for verb in VERBS:
            patch.setattr(ObjectStore, verb, self._handled(verb, getattr(ObjectStore, verb)))

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
        self._patch.setattr(LocalBackend, "now", lambda _: time.time() + seconds)

    def clear(self) -> None:
        """Leave the stores alone from now on."""
        self._handlers.clear()

    def _handled(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: ObjectStore, *args: Any, **options: Any) -> Any:
            run = partial(real, store, **options)
            path = args[0] if args and isinstance(args[0], str) else ""
            for handler in self._handlers:
                if handler.matches(store, verb):
                    run = partial(_through, handler, Call(store, verb, path, args, run))
            return run(*args)

        return call


def _through(handler: _Handler, call: Call, *args: Any) -> Any:
    return handler.act(call._replace(args=args))


@pytest.fixture
def byte_store() -> Iterator[ByteStore]:
    """The calls of all stores of this process."""
    with pytest.MonkeyPatch.context() as patch:
        yield ByteStore(patch)
