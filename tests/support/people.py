"""The person that the audit trail names."""

from __future__ import annotations

import getpass
import socket

__all__ = ["own_user"]


def own_user() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
