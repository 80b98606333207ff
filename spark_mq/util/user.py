"""Name who acts: the person who makes a change, for the audit trail, and the worker."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from spark_mq.util.validation import validate_name

__all__ = ["acting_as", "acting_by_default", "current_user", "with_user", "worker_name"]

_USER: Final[ContextVar[str | None]] = ContextVar("spark_mq_user", default=None)
MAX_LENGTH: Final = 200  # characters of a name that are kept


@contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Note a person's printable name in the ledger commits of this thread in the block."""
    name = "".join(one if one.isprintable() else "�" for one in user)[:MAX_LENGTH]
    token = _USER.set(name or None)
    try:
        yield
    finally:
        _USER.reset(token)


@contextmanager
def acting_by_default() -> Iterator[None]:
    """Note this process's user and host, unless a person is noted."""
    with acting_as(_USER.get() or _process_user()):
        yield


def _process_user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def current_user() -> str | None:
    """Return the person who acts in this thread, or None."""
    return _USER.get()


def with_user(info: Mapping[str, Any], user: str | None = None) -> Mapping[str, Any]:
    """Return a commit's note with the name of a user, by default who acts. A name in it stays."""
    name = _USER.get() if user is None else user
    return info if name is None else {"user": name, **info}


def worker_name(given: str | None = None) -> str:
    """Return a worker's name, by default host and process. Raise InvalidOption."""
    if given is not None:
        return validate_name("worker_id", given)
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"
