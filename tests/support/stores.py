"""Start the servers of stores on this machine, and race writers on each before it is used.

Versitygw is an S3 server over files. ``scripts/install-store`` installs it into ``.venv/stores``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import obstore
from obstore import exceptions

from spark_mq.delta.storage_options import store_options

__all__ = ["RemoteStore", "race", "s3_options", "versitygw"]

BUCKET: Final = "queues"
STORES: Final = Path(__file__).parents[2] / ".venv" / "stores"


@dataclass(frozen=True)
class RemoteStore:
    """A bucket on a server of this machine."""

    server: str
    root: str
    url: str
    options_at: Callable[[str], dict[str, str]]

    @property
    def options(self) -> dict[str, str]:
        """The storage options to use it."""
        return self.options_at(self.url)

    def new_path(self) -> str:
        """Return where no queue is."""
        return f"{self.root}/{uuid.uuid4().hex}"


@contextlib.contextmanager
def versitygw() -> Iterator[RemoteStore]:
    """An S3 server over files, with one bucket."""
    with tempfile.TemporaryDirectory(prefix="versitygw") as folder:
        (Path(folder) / BUCKET).mkdir()
        with _started(
            "versitygw", "--access", "testing", "--secret", "testing-secret", "--keep-alive",
            "--quiet", "--port", "127.0.0.1:{port}", "posix", folder,
        ) as url:  # fmt: skip
            yield _raced(RemoteStore("versitygw", f"s3://{BUCKET}", url, s3_options))


def race(store: RemoteStore, writers: int, names: int, mode: str = "create") -> None:
    """Let writers create each name at once. Raise AssertionError unless one of them wins it.

    Each has a client of its own, which sends a bare conditional put and never repeats it.
    """
    clients = [_client(store) for _ in range(writers)]
    folder = f"race/{uuid.uuid4().hex}"

    async def create(writer: int, name: str) -> int | None:
        try:
            await obstore.put_async(clients[writer], name, b"%d" % writer, mode=mode)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return None
        return writer

    async def run() -> None:
        for number in range(names):
            name = f"{folder}/{number}"
            found = await asyncio.gather(*(create(writer, name) for writer in range(writers)))
            won = [writer for writer in found if writer is not None]
            assert len(won) == 1, f"{store.server} let {len(won)} of {writers} create one name"
            data = await (await obstore.get_async(clients[0], name)).bytes_async()
            assert bytes(data) == b"%d" % won[0], f"{store.server} kept what a loser sent"

    asyncio.run(run())


def _raced(store: RemoteStore) -> RemoteStore:
    for writers in (2, 8):
        race(store, writers, 40)
    return store


def _client(store: RemoteStore) -> Any:
    given = store_options(store.root.partition(":")[0], store.options)
    return obstore.store.from_url(
        store.root, config=given.config, client_options=given.client_options,
        retry_config={"max_retries": 0},
    )  # fmt: skip


@contextlib.contextmanager
def _started(program: str, *arguments: str) -> Iterator[str]:
    """Run a server until the block ends. Its address is known once it answers."""
    path = STORES / program
    assert path.exists(), f"{program} is not installed: run scripts/install-store {program}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    command = [str(path), *(one.format(port=port) for one in arguments)]
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet, stdin=quiet)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None, f"{program} did not start"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, f"{program} does not answer"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def s3_options(url: str) -> dict[str, str]:
    """With which delta-rs uses the endpoint, or a proxy in front of it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
