"""``spark-mq metrics``: serve the metrics of a queue to Prometheus (extra ``metrics``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_mq.cli.options import QueuePath, StorageOptions, open_queue, option
from spark_mq.cli.workers import stopping
from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.inspect.prometheus import QueueCollector

if TYPE_CHECKING:
    from spark_mq.inspect.overview import QueueOverview

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(metrics)


def metrics(
    queue: QueuePath,
    port: Annotated[int, option("--port", min=0, max=65_535, help="0: any free port.")] = 9464,
    address: Annotated[str, option("--address", help="Where to listen.")] = "127.0.0.1",
    storage_option: StorageOptions = None,
) -> None:
    """Serve the metrics of a queue to Prometheus until SIGTERM. Each request looks at the queue."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "metrics need prometheus_client, which is not installed. Run: pip install "
            "'spark-mq[metrics]'",
            option="metrics",
            value=None,
        ) from error
    registry = CollectorRegistry()
    opened = open_queue(queue, storage_option)
    registry.register(QueueCollector(lambda: _look(opened)))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {address}:{port}: {error.strerror}. Give another --port",
            option="--port",
            value=port,
        ) from error
    print(
        f"listening on http://{address}:{server.server_port}/metrics", file=sys.stderr, flush=True
    )
    with stopping() as stop:
        stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()


def _look(queue: Any) -> Mapping[str, QueueOverview | None]:
    """Look at a queue. None if the look fails."""
    try:
        return {queue.path: queue.describe()}
    except (SparkMQError, OSError) as error:
        print(f"spark-mq: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return {queue.path: None}
