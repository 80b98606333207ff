"""The image of examples/deploy/docker: built, and run as a worker, a sweep and the page."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.handles import until
from support.servers import free_port

from spark_mq import Queue

ROOT = Path(__file__).parents[2]
USER = 10001

pytestmark = pytest.mark.slow  # the image is built for it

HANDLER = """\
import pathlib, time

def handle(lease):
    pathlib.Path("/queues/started").touch()
    time.sleep(3)
"""


PACKAGES = """\
from importlib.metadata import distributions
print(*{distribution.metadata["Name"] for distribution in distributions()})
"""


class Image:
    """Runs containers of the image, with a folder for queues and handlers."""

    def __init__(self, engine: list[str], folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.running: list[str] = []
        folder.chmod(0o777)
        for path in folder.rglob("*"):
            path.chmod(0o777)

    def arguments(self, *words: str) -> list[str]:
        limits = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
        least = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--network=host")
        return [*self.engine, "run", "--rm", *least, *limits, f"-v={self.folder}:/queues", *words]

    def run(self, *words: str) -> str:
        done = subprocess.run(
            self.arguments(*words), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        self.running.append(name)
        return subprocess.Popen(
            self.arguments(f"--name={name}", *words),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def stop(self, name: str, seconds: int) -> None:
        """Send SIGTERM, as a cluster does, and SIGKILL after ``seconds``."""
        subprocess.run(
            [*self.engine, "stop", f"--time={seconds}", name], capture_output=True, check=True
        )
        self.running.remove(name)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    engine = (ROOT / ".venv" / "image" / "engine").read_text().split()
    queue = Queue.create(str(tmp_path / "orders"))
    queue.publish(["one", "two"])
    (tmp_path / "billing.py").write_text(HANDLER)
    image = Image(engine, tmp_path)
    yield image
    for name in image.running:
        subprocess.run([*engine, "rm", "--force", name], capture_output=True, check=False)


def test_the_image_has_the_version_and_neither_root_nor_a_package_manager(
    image: Image, version: str
) -> None:
    assert image.run("spark-mq:test", "--version").strip() == version
    assert image.run("--entrypoint=id", "spark-mq:test", "-u").strip() == str(USER)
    found = image.run("--entrypoint=python", "spark-mq:test", "-c", PACKAGES).split()
    assert {"spark-mq", "starlette", "opentelemetry-api"} <= {*found}
    assert not {"pip", "pytest", "setuptools"} & {*found}


def test_a_worker_that_is_stopped_finishes_what_it_handles(image: Image) -> None:
    worker = image.start(
        "spark-mq-test-worker", "spark-mq:test", "work", "/queues/billing.py:handle",
        "-q", "/queues/orders", "-g", "billing", "--max-messages", "2", "-o", "json",
    )  # fmt: skip
    until((image.folder / "started").exists, seconds=300)
    image.stop("spark-mq-test-worker", seconds=30)
    out, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0, out
    stats = Queue.open(str(image.folder / "orders")).group("billing").stats()
    assert (stats.acked, stats.leased) == (2, 0)


def test_a_sweep_runs_once_and_ends(image: Image) -> None:
    assert "expired" in image.run("spark-mq:test", "sweep", "-q", "/queues/orders", "-o", "json")


def test_the_page_answers_and_ends_after_sigterm(image: Image) -> None:
    port = free_port()
    page = image.start("spark-mq-test-web", "spark-mq:test", "web", "/queues", "--port", str(port))

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                return b"orders" in answer.read()
        except (urllib.error.URLError, ConnectionError):
            return False

    until(answers, seconds=300)
    image.stop("spark-mq-test-web", seconds=20)
    out, _ = page.communicate(timeout=120)
    assert page.returncode == 0, out


def test_hadolint_finds_nothing(tools: Callable[..., str]) -> None:
    tools("hadolint", "--strict-labels", ROOT / "examples" / "deploy" / "docker" / "Dockerfile")
