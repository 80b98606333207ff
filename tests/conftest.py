"""Profiles of Hypothesis (HYPOTHESIS_PROFILE=long looks for minutes, the default for seconds), options, an object store for ``--s3``."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("default"), max_examples=3_000, stateful_step_count=80)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--s3", action="store_true", help="run tests that can on an S3 endpoint on this machine (moto), instead of local files"
    )
    parser.addoption("--cluster", action="store_true", help="run the tests on a Spark cluster of processes")
    parser.addoption("--connect", action="store_true", help="run the tests over Spark Connect")
    parser.addoption("--large-worlds", action="store_true", help="look at larger worlds in tests/worlds: some take an hour")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs Spark, and leaves out what needs a store or a cluster that was not asked for."""
    wanted, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        folder = item.path.parent.name
        if folder in ("cluster", "connect", "s3", "spark"):
            item.add_marker(pytest.mark.spark)
        needed = "s3" if "s3" in getattr(item, "fixturenames", ()) else folder
        there = needed not in ("cluster", "connect", "s3") or config.getoption(f"--{needed}")
        (wanted if there else others).append(item)
    items[:] = wanted
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Storage options of an S3 endpoint on this machine, with the bucket ``queues``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=quiet, stderr=quiet, stdin=quiet)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None, "moto's server did not start: make test-s3 installs it"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/moto-api/"):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with urllib.request.urlopen(urllib.request.Request(f"{url}/queues", method="PUT")):
            pass
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()
