"""Serve the page until a signal comes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import uvicorn

from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.util.listening import host_of, listen
from spark_mq.web.app import Health, create_app
from spark_mq.web.looks import Looks
from spark_mq.web.security import Access, is_local

__all__ = ["serve"]

_log = logging.getLogger(__name__)


def serve(
    looks: Looks,
    access: Access,
    *,
    address: str,
    port: int,
    health: Health | None = None,
    listening: Callable[[str], None],
) -> None:
    """Serve the page until SIGTERM or Ctrl-C.

    Parameters
    ----------
    looks
        The queues.
    access
        The users who may look and change.
    address, port
        The address to listen at. Port 0: any free one.
    health
        When a queue counts as unhealthy.
    listening
        Called with the page's address once it can be opened.

    Raises
    ------
    InvalidOption
        The address is not this machine's alone and there is no password, or it is in use.
    """
    if access.is_open and not is_local(address):
        raise InvalidOption(
            f"--address {address} is open to other machines: set SPARK_MQ_WEB_PASSWORD or "
            "SPARK_MQ_WEB_TOKEN",
            option="--address",
            value=address,
        )
    with listen(address, port) as listener:
        config = uvicorn.Config(
            create_app(looks, access, health),
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=10,
            ws="none",
        )
        # So that the first visitor does not wait until all ledgers are read.
        threading.Thread(target=_look_once, args=[looks], daemon=True).start()
        listening(f"http://{host_of(address)}:{listener.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listener])


def _look_once(looks: Looks) -> None:
    """Look at all queues and at their last hour. The pages show the errors."""
    try:
        for name, overview in looks.all().items():
            if isinstance(overview, QueueOverview):
                looks.queue(name).throughput()
    except (SparkMQError, OSError) as error:
        _log.warning("the first look at %s failed: %s", looks.path, error)
