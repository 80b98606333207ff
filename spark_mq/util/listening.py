"""Listen on an address."""

from __future__ import annotations

import socket

from spark_mq.errors import InvalidOption

__all__ = ["host_of", "listen"]


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens, with port 0 on any free one. Raise InvalidOption."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {address}:{port}: {error.strerror}. Give another --port",
            option="--port",
            value=port,
        ) from error


def host_of(address: str) -> str:
    """Return an address as a URL has it."""
    return f"[{address}]" if ":" in address else address
