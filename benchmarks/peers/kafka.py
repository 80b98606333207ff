"""Apache Kafka on one node: broker and controller in one process (KRaft).

Read by Spark's own source.

The jars come from Maven Central through Ivy, which pyspark ships. Ivy keeps them in its cache.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from peers.base import Missing
from peers.server import running, server_folder

VERSION: Final = "4.1.1"
CONNECTOR: Final = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
TOPIC: Final = "queue"
PARTITIONS: Final = 2
"""One for each core."""
SURVIVES: Final = "what the system had written out: Kafka syncs no message, it relies on replicas"
_DOWNLOAD_SECONDS: Final = 600.0
_SETTINGS: Final = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_CENTRAL: Final = """<ivysettings><settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>"""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A new broker in a folder of its own: its address. Raises Missing."""
    with server_folder() as folder:
        java = _java()
        _fetch_jars(java, folder)
        port, controller = _free_ports()
        settings = folder / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, folder=folder, partitions=PARTITIONS)
        )
        run = [java, "-Xmx1g", "-cp", f"{folder}/jars/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        _check(
            [*run, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings],
            folder,
            "its storage cannot be formatted",
        )
        with running([*run, "kafka.Kafka", settings], folder, signal.SIGKILL, port=port):
            yield f"127.0.0.1:{port}"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not found:
        raise Missing("Kafka needs Java: set JAVA_HOME")
    return found


def _fetch_jars(java: str, folder: Path) -> None:
    """Put the jars of the broker into ``jars`` of a folder."""
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    settings = folder / "ivysettings.xml"
    settings.write_text(_CENTRAL)
    resolve = [java, "-jar", ivy, "-settings", settings, "-confs", "default"]
    resolve += ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION]
    resolve += ["-retrieve", f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    _check(resolve, folder, f"Maven Central does not give the jars of Kafka {VERSION}")


def _check(command: list[object], folder: Path, failure: str) -> None:
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"no Kafka: {failure} within {error.timeout:.0f} s") from error
    if done.returncode:
        raise Missing(f"no Kafka: {failure}: {(done.stdout + done.stderr).strip()[-200:]}")


def _free_ports() -> list[int]:
    """Two ports. Both are bound before either is given back."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in free:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in free]
