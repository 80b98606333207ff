"""Name a worker that its caller gave no name."""

from __future__ import annotations

import os
import re
import socket

from spark_mq.util.validation import validate_name

__all__ = ["worker_name"]


def worker_name(given: str | None = None) -> str:
    """Return a worker's name, by default host and process. Raise InvalidOption."""
    if given is not None:
        return validate_name("worker_id", given)
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{os.getpid()}"
