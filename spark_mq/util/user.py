"""Name who acts: the person who makes a change, for the audit trail, and the worker."""

from __future__ import annotations

import getpass
import os
import re
import socket
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from functools import cache, partial, wraps
from typing import Any, Final, ParamSpec, TypeVar

from spark_mq.util.validation import validate_name

P = ParamSpec("P")
T = TypeVar("T")

_USER: Final[ContextVar[str | None]] = ContextVar("spark_mq_user", default=None)
_MARK: Final = "~"  # between the id of a worker's process and its name, which has no such sign
MAX_LENGTH: Final = 200  # characters of a name that are kept


def act_as(user: str | None, call: Callable[[], T]) -> T:
    """Call a function whose ledger commits note a person's printable name.

    None stands for the person who is noted already, or for this process's user and host. The call
    has a context of its own, because a Ctrl-C must not leave the name to later calls.
    """
    given = _USER.get() or _process_user() if user is None else user
    name = "".join(c if c.isprintable() else "�" for c in given)[:MAX_LENGTH]
    context = copy_context()
    context.run(_USER.set, name or None)
    return context.run(call)


def acting_by_default(method: Callable[P, T]) -> Callable[P, T]:
    """Let the ledger commits of a method note this process's user, unless a person is noted."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return act_as(None, partial(method, *args, **kwargs))

    return call


def _process_user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def current_user() -> str | None:
    return _USER.get()


def with_user(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a commit's note with the name of who acts. A name in it stays."""
    name = _USER.get()
    return info if name is None else {"user": name, **info}


def worker_name(given: str | None = None) -> str:
    """Return a worker's name, by default host and process. Raise InvalidOption."""
    if given is not None:
        return validate_name("worker_id", given)
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"


def identify_worker(name: str) -> str:
    """Return what the ledger keeps of a worker: its name, and the process with which it ends."""
    return f"{_process_id(os.getpid())}{_MARK}{name}"


@cache
def _process_id(pid: int) -> str:
    """Return an id that no other process has. A fork gets its own, since it has another pid."""
    return uuid.uuid4().hex[:10]


def worker_label(worker_id: str | None) -> str | None:
    """Return the name in a worker's identity. Older versions kept the name alone."""
    return worker_id and worker_id.rpartition(_MARK)[2]


def process_of(worker_id: str) -> tuple[str, bool]:
    """Return how the identities of all workers of a process begin, or an older name and False."""
    process, mark, _ = worker_id.partition(_MARK)
    return process + mark, bool(mark)


def validate_worker(worker_id: str) -> str:
    """Validate a worker's identity of another process. Raise InvalidOption."""
    for name in worker_id.split(_MARK, 1):
        validate_name("worker_id", name)
    return worker_id
