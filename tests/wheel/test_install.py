"""The built wheel with each extra, and the sdist, installed in bare environments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
from support.marks import slow_but

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])


def run(*command: object, expect: int = 0, stdin: str = "") -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), env=own, cwd=ROOT.anchor, input=stdin, capture_output=True,
        text=True, timeout=1_200, check=False,
    )  # fmt: skip
    assert done.returncode == expect, (command, done.stdout[-1_000:], done.stderr[-2_000:])
    return done.stdout if expect == 0 else done.stderr


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that make wheel has built."""
    (built,) = (ROOT / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist() -> Path:
    """The sdist that make wheel has built beside it."""
    (built,) = (ROOT / "dist").glob("*.tar.gz")
    return built


def install(folder: Path, wheel: Path, extra: str | None) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    name = f"spark-mq[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", name)
    run(python, "-m", "pip", "check", "--disable-pip-version-check")
    return python


def test_without_an_extra_a_queue_works_and_the_command_names_what_it_needs(
    wheel: Path, tmp_path: Path
) -> None:
    python = install(tmp_path / "venv", wheel, None)
    run_a_queue(python, tmp_path)
    command = python.with_name("spark-mq")
    assert "pip install 'spark-mq[cli]'" in run(command, "--version", expect=2)
    run(python, "-m", "pip", "install", "--quiet", "spark-mq[cli]")  # it is on no index
    assert PROJECT["version"] in run(command, "--version")
    assert run(python, "-m", "spark_mq_jobs").strip().endswith("spark_mq_jobs")


@pytest.mark.slow  # pip gets the build backend into an environment of its own
def test_the_sdist_installs_and_a_queue_works(sdist: Path, tmp_path: Path) -> None:
    run_a_queue(install(tmp_path / "venv", sdist, None), tmp_path)


@pytest.mark.slow  # Spark is a large download
def test_the_code_of_the_readme_runs_as_pasted_in_a_fresh_environment(
    wheel: Path, tmp_path: Path
) -> None:
    python = install(tmp_path / "venv", wheel, "spark,delta")
    readme = (ROOT / "README.md").read_text()
    code = "".join(re.findall(r"^```python[^\n]*\n(.*?)^```", readme, re.M | re.S))
    out = run(python, "-c", code.replace("/tmp/", f"{tmp_path}/"))
    assert "not an order" in out
    count = (
        "from spark_mq.spark import session; spark = session(quiet=True); "
        f"print(spark.read.format('delta').load('{tmp_path}/billed').count())"
    )
    assert run(python, "-c", count).strip().endswith("3")  # the others were rejected


def run_a_queue(python: Path, tmp_path: Path) -> None:
    program = (
        "from spark_mq import Queue; queue = Queue.create({path!r}); queue.publish('a'); "
        "queue.group().lease('w').ack(); queue.sweep(); print(queue.stats()['published'])"
    )
    assert run(python, "-c", program.format(path=str(tmp_path / "q"))).strip() == "1"


@pytest.mark.parametrize("extra", slow_but({"cli", "sql"}, EXTRAS))
def test_the_package_works_with_each_extra(wheel: Path, tmp_path: Path, extra: str) -> None:
    python = install(tmp_path / "venv", wheel, extra)
    version = run(python, "-c", "import spark_mq; print(spark_mq.__version__)").strip()
    assert version == PROJECT["version"]
    if extra == "cli":
        run_commands(python.with_name("spark-mq"), tmp_path)
    if extra == "sql":
        run_sql(python, tmp_path)
    if extra == "otel":
        run_with_opentelemetry(python, tmp_path)
    if extra == "spark":
        run(python, "-c", "import pyspark_mq, spark_mq.spark")


def with_work(command: Path, tmp_path: Path) -> tuple[Path, list[object]]:
    """Make a queue with two messages. Return it, and the command that handles them."""
    queue = tmp_path / "orders"
    run(command, "queue", "create", queue)
    run(command, "publish", "-q", queue, stdin='{"id": 1}\n{"id": 2}\n')
    (tmp_path / "handler.py").write_text("def handle(lease):\n    return None\n")
    handler = f"{tmp_path}/handler.py:handle"
    return queue, [command, "work", handler, "-q", queue, "--until", "empty"]


def run_commands(command: Path, tmp_path: Path) -> None:
    """Run the installed command as a new user would."""
    queue, work = with_work(command, tmp_path)
    run(*work, "-g", "g")
    run(command, "sweep", "-q", queue)
    row = json.loads(run(command, "queue", "describe", queue, "-o", "json"))
    assert row["groups"]["g"]["acked"] == 2
    assert run(command, "check", "-q", queue) == "healthy\n"
    assert "billing" in run(command, "group", "describe", "billing", "-q", queue, expect=3)
    for words in (["peek"], ["top"], ["dlq", "list"], ["trace", str(1 << 32)]):
        assert run(command, *words, "-q", queue)
    run(command, "queue", "drop", queue, "--yes")


def run_sql(python: Path, tmp_path: Path) -> None:
    """Ask a queue by SQL, and choose letters by it."""
    program = (
        "from spark_mq import Queue; queue = Queue.create({path!r}); queue.publish(['a', 'b']); "
        "queue.group().lease('w').reject(error='not an order'); queue.sweep(); "
        "print(queue.sql('SELECT count(*) AS n FROM letters').to_pylist(), "
        "queue.redrive(where=\"error LIKE '%order%'\", limit=1).messages)"
    )
    out = run(python, "-c", program.format(path=str(tmp_path / "q")))
    assert out.split() == ["[{'n':", "1}]", "1"]


def run_with_opentelemetry(python: Path, tmp_path: Path) -> None:
    """Run the command with what the page on telemetry installs."""
    page = (ROOT / "docs" / "howto" / "telemetry.md").read_text()
    (packages,) = re.findall(r"^pip install (.*)$", page, re.M)
    run(python, "-m", "pip", "install", "--quiet", "spark-mq[cli]", *packages.split())
    _, work = with_work(python.with_name("spark-mq"), tmp_path)
    exporters = "--traces_exporter console --metrics_exporter none --logs_exporter none"
    out = run(python.with_name("opentelemetry-instrument"), *exporters.split(), *work)
    assert '"name": "ack orders"' in out


@pytest.mark.slow  # pip gets pytest
def test_pytest_finds_the_fixtures_of_the_installed_package(wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "venv", wheel, None)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest")
    test = (
        "def test_it(mq_queue, drain):\n    mq_queue.publish('a')\n    assert len(drain()) == 1\n"
    )
    (tmp_path / "test_user.py").write_text(test)
    assert "1 passed" in run(python, "-m", "pytest", "-q", tmp_path / "test_user.py")
