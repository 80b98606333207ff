"""The persons that the audit trail names, and the processes of workers."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from spark_mq.util.user import act_as, current_user
from support.rule_variants import returns, rule_variant

__all__ = ["another_process", "as_visitor", "own_user", "signed_in"]

T = TypeVar("T")


def own_user() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def as_visitor(name: str, call: Callable[[], T]) -> T:
    """Make a change as the web page makes it, for a visitor of this name."""
    return act_as(name, call)


def signed_in() -> str | None:
    """Return the visitor for whom this thread makes changes now, or None."""
    return current_user()


def another_process(name: str) -> AbstractContextManager[None]:
    """Let the workers in the block be those of another process."""
    return rule_variant("_process_id", returns(name))
