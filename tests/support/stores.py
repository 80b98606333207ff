"""Start the servers of stores on this machine, and race writers on each before it is used.

Versitygw is an S3 server over files, Azurite Microsoft's emulator of Azure's blobs, fake-gcs-server
an emulator of Google's store. ``scripts/install-store`` installs them into ``.venv/stores``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import obstore
from obstore import exceptions
from pyarrow import fs

from spark_mq.delta.storage_options import store_options
from support.gcs_proxy import GcsProxy
from support.relays import running
from support.servers import free_port, server

__all__ = ["SERVERS", "STORES", "RemoteStore", "race", "s3_options", "started", "versitygw"]

BUCKET: Final = "queues"
STORES: Final = Path(__file__).parents[2] / ".venv" / "stores"

ACCOUNT: Final = "devstoreaccount1"
ACCOUNT_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account that each Azurite has. Azurite's documentation names both."""


_OTHER_ROOTS: Final = {
    "versitygw": (f"s3a://{BUCKET}", f"S3://{BUCKET}"),
    "azurite": (
        f"azure://{BUCKET}",
        f"abfs://{BUCKET}",
        f"adl://{BUCKET}",
        f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net",
        f"abfs://{BUCKET}@{ACCOUNT}.blob.core.windows.net",
        f"https://{ACCOUNT}.blob.core.windows.net/{BUCKET}",
    ),
    "gcs": (f"GS://{BUCKET}",),
}


@dataclass(frozen=True)
class RemoteStore:
    """A bucket on a server of this machine. `options_at` gives the options for another address."""

    server: str
    root: str
    url: str
    secret: str
    options_at: Callable[[str], dict[str, str]]

    @property
    def options(self) -> dict[str, str]:
        """The storage options to use it."""
        return self.options_at(self.url)

    def new_path(self) -> str:
        """Return where no queue is."""
        return f"{self.root}/{uuid.uuid4().hex}/queue"

    def spellings(self, path: str) -> list[str]:
        """Return other texts that name the place of a path of this store."""
        below = path.removeprefix(self.root)
        return [f"{root}{below}" for root in _OTHER_ROOTS[self.server]] + [f"{path}/"]


@contextlib.contextmanager
def versitygw() -> Iterator[RemoteStore]:
    """An S3 server over files, with one bucket."""
    with tempfile.TemporaryDirectory(prefix="versitygw") as folder:
        (Path(folder) / BUCKET).mkdir()
        with started(
            "versitygw", "--access", "testing", "--secret", "testing-secret", "--keep-alive",
            "--quiet", "--port", "127.0.0.1:{port}", "posix", folder,
        ) as url:  # fmt: skip
            yield _raced(
                RemoteStore("versitygw", f"s3://{BUCKET}", url, "testing-secret", s3_options)
            )


@contextlib.contextmanager
def azurite() -> Iterator[RemoteStore]:
    """An emulator of Azure's blobs, with one container."""
    with (
        tempfile.TemporaryDirectory(prefix="azurite") as folder,
        started(
            "azurite", "--blobHost", "127.0.0.1", "--blobPort", "{port}", "--location", folder,
            "--silent", "--disableTelemetry", "--skipApiVersionCheck",
        ) as url,
    ):  # fmt: skip
        fs.AzureFileSystem(
            ACCOUNT,
            account_key=ACCOUNT_KEY,
            blob_storage_authority=url.removeprefix("http://"),
            blob_storage_scheme="http",
        ).create_dir(BUCKET)
        yield _raced(RemoteStore("azurite", f"az://{BUCKET}", url, ACCOUNT_KEY, azure_options))


@contextlib.contextmanager
def fake_gcs() -> Iterator[RemoteStore]:
    """An emulator of Google's store behind a proxy that adds its XML uploads, with one bucket."""
    with (
        started(
            "fake-gcs-server", "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1",
            "-public-host", "127.0.0.1", "-port", "{port}",
        ) as target,
        running(GcsProxy, target) as url,
    ):  # fmt: skip
        made = urllib.request.Request(
            f"{target}/storage/v1/b",
            json.dumps({"name": BUCKET}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(made, timeout=30).close()
        yield _raced(RemoteStore("gcs", f"gs://{BUCKET}", url, "private-key", google_options))


SERVERS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[RemoteStore]]]] = {
    "versitygw": versitygw,
    "azurite": azurite,
    "gcs": fake_gcs,
}
"""By the value of pytest's option ``--store``."""


def s3_options(url: str) -> dict[str, str]:
    """With which delta-rs uses the endpoint, or a proxy in front of it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def azure_options(url: str) -> dict[str, str]:
    return {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": ACCOUNT_KEY,
        "azure_storage_endpoint": f"{url}/{ACCOUNT}",
        "allow_http": "true",
    }


def google_options(url: str) -> dict[str, str]:
    account = {
        "gcs_base_url": url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "private-key",
        "private_key_id": "",
    }
    return {"google_service_account_key": json.dumps(account), "allow_http": "true"}


def race(store: RemoteStore, writers: int, names: int, mode: Any = "create") -> None:
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
def started(
    program: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a server until the block ends. Its address is known once it answers."""
    path = STORES / program
    assert path.exists(), f"{program} is not installed: run scripts/install-store {program}"
    port = free_port()
    words = [word.format(port=port) for word in arguments]
    with server([path, *words], port, **(environment or {})):
        yield f"http://127.0.0.1:{port}"
