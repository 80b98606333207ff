"""A Unity Catalog server over a real S3 server, whose keys work for some seconds."""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from short_keys import ShortKeys, short_keys
from support.stores import STORES, started

__all__ = ["UnityServer", "unity_server"]

BUCKET: Final = "queues"
SCHEMA: Final = {"catalog_name": "main", "schema_name": "app"}


@dataclass(frozen=True)
class UnityServer:
    """A catalog with the schema ``main.app``, and the store that its credentials open."""

    url: str
    store: str  # the address of the S3 server
    keys: ShortKeys

    @property
    def options(self) -> dict[str, str]:
        """The storage options to use it. None of them opens the store."""
        return {
            "databricks_host": self.url,
            "databricks_token": "token-of-the-catalog",
            "aws_endpoint_url": self.store,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def call(self, path: str, body: Any = None) -> Any:
        """Return the answer of the catalog. Raise HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}/api/2.1/unity-catalog{path}"
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return json.load(reply)

    def new_volume(self) -> str:
        """Create an external volume and return its full name."""
        name = f"v{uuid.uuid4().hex}"
        place = {"volume_type": "EXTERNAL", "storage_location": f"s3://{BUCKET}/data/{name}"}
        self.call("/volumes", {"name": name, **SCHEMA, **place})
        return f"main.app.{name}"

    def new_table(self) -> str:
        """Create an external table and return its full name."""
        name = f"t{uuid.uuid4().hex}"
        place = {"table_type": "EXTERNAL", "storage_location": f"s3://{BUCKET}/data/{name}"}
        self.call("/tables", {"name": name, "data_source_format": "DELTA", **SCHEMA, **place})
        return f"main.app.{name}"


@contextlib.contextmanager
def unity_server(life: float) -> Iterator[UnityServer]:
    """Run until the block ends. `life` is the number of seconds that keys work."""
    with tempfile.TemporaryDirectory(prefix="unity") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "files" / BUCKET).mkdir(parents=True)
        (folder / "accounts").mkdir()
        store = stack.enter_context(
            started(
                "versitygw", "--access", "root", "--secret", "root-secret", "--keep-alive",
                "--quiet", "--port", "127.0.0.1:{port}", "--iam-dir", str(folder / "accounts"),
                "--iam-cache-disable", "posix", str(folder / "files"),
            )
        )  # fmt: skip
        admin = [str(STORES / "versitygw"), "admin", "--access", "root", "--secret", "root-secret"]
        keys, around = stack.enter_context(
            short_keys([*admin, "--endpoint-url", store], folder, life)
        )
        config = folder / "config.yaml"
        secret = base64.b64encode(uuid.uuid4().bytes * 2).decode()
        config.write_text(
            f'backend:\n  engine: sqlite\n  path: ":memory:"\n'
            f'encryption:\n  active:\n    id: tests\n    key: "{secret}"\n'
            f'managed_storage_root: "s3://{BUCKET}/managed"\n'
        )
        url = stack.enter_context(
            started(
                "uc-server", "serve", "--config", str(config), "--host", "127.0.0.1",
                "--port", "{port}", "--no-ui", environment=around,
            )
        )  # fmt: skip
        server = UnityServer(url, store, keys)
        role = {"role_arn": "arn:aws:iam::1:role/queues", "region": "us-east-1",
                "access_key_id": "base", "secret_access_key": "base-secret"}  # fmt: skip
        credential = {"name": "role", "purpose": "STORAGE", "aws_iam_role": role}
        server.call("/credentials", {**credential, "skip_validation": True})
        location = {"name": "data", "url": f"s3://{BUCKET}/data", "credential_name": "role"}
        server.call("/external-locations", location)
        server.call("/catalogs", {"name": "main"})
        server.call("/schemas", {"name": "app", "catalog_name": "main"})
        yield server
