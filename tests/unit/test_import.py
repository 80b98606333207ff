"""``import spark_mq`` is fast and needs no extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from support.commands import run_program
from support.marks import slow

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 0.3


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip


def test_the_package_is_imported_within_its_limit() -> None:
    # CPU time: other tests run at the same time.
    program = (
        "import time; t = time.process_time(); import spark_mq; print(time.process_time() - t)"
    )
    assert min(float(run(program)) for _ in range(3)) < LIMIT_SECONDS


ARCHIVED = """
import sys
sys.path.insert(0, {archive!r})
import spark_mq
from starlette.testclient import TestClient
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, create_app

assert spark_mq.__file__.startswith({archive!r})
queue = spark_mq.Queue.create({folder!r} + "/orders")
queue.publish("hello")
assert "hello" in queue.peek(1)._repr_html_()
app = create_app(QueueMonitor({folder!r}), Access(user="alice"), None)
visit = TestClient(app, base_url="http://localhost")
page = visit.get("/queue/orders")
assert page.status_code == 200 and "orders" in page.text
style = visit.get("/static/style.css")
assert style.status_code == 200 and style.headers["content-type"].startswith("text/css")
assert style.content == {style!r}
"""


@pytest.mark.slow
def test_the_package_runs_from_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted((ROOT / "spark_mq").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                opened.write(path, path.relative_to(ROOT))
    style = (ROOT / "spark_mq/interfaces/web/static/style.css").read_bytes()
    program = ARCHIVED.format(archive=str(archive), folder=str(tmp_path), style=style)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)


ZONES = """
import sys
sys.modules["tzdata"] = {tzdata}
from spark_mq import Queue, SparkMQError
try:
    queue = Queue.create({path!r})
except SparkMQError as error:
    print(error)
else:
    queue.publish("a")
    queue.group("g").lease("w").ack()
    queue.sweep()
    print(queue.peek(1)[0].published_at.tzname())
"""


@pytest.mark.parametrize("hidden", [slow(False), True])
def test_without_zones_of_the_machine_the_package_brings_them(tmp_path: Path, hidden: bool) -> None:
    tzdata = "None" if hidden else "__import__('tzdata')"
    program = ZONES.format(path=str(tmp_path / "queue"), tzdata=tzdata)
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONTZPATH": ""},
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    assert ("Install the package tzdata" in printed) is hidden
    assert (printed.strip() == "UTC") is not hidden


def extras() -> list[str]:
    """The packages to import that the extras install, and those that only tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = str(project["optional-dependencies"])
    names = {*re.findall(r"[\w-]+", wanted), "pytest", "prometheus-client"}
    return [
        package
        for package, of in packages_distributions().items()
        if names & {name.replace("_", "-") for name in of}
    ]


def test_the_package_needs_no_extra() -> None:
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in extras())
    assert all(f"[{name!r}] = None" in hidden for name in ("typer", "prometheus_client"))
    program = (
        f"import sys; {hidden}; import spark_mq; [getattr(spark_mq, n) for n in dir(spark_mq)]"
    )
    run(program)


FORMATS = "from spark_mq.integrations.formats import *; "
TABLE = "from spark_mq.util.records import Records; Records()."
PLOT = (
    "from spark_mq.testing import memory_queue; queue = memory_queue(); queue.publish('a'); "
    "queue.group('g').ensure(); queue.plot."
)
MISSING = [
    ("airflow", "import spark_mq.integrations.airflow.triggers", "spark-mq[airflow]"),
    ("fastavro", f"{FORMATS}Avro('long')", "spark-mq[avro]"),
    ("google.protobuf", f"{FORMATS}Protobuf(int)", "spark-mq[protobuf]"),
    ("pydantic", f"{FORMATS}Pydantic(int)", "spark-mq[pydantic]"),
    *((name, f"{TABLE}to_{name}()", name) for name in ("pandas", "polars")),
    *(
        ("matplotlib", f"{PLOT}{call}", "spark-mq[plot]")
        for call in ("throughput()", "ages()", "lanes('g')", "life(queue.peek()[0].sequence)")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "program", "wanted"), MISSING)
def test_an_error_says_what_to_install(package: str, program: str, wanted: str) -> None:
    caught = "except ModuleNotFoundError as error: print(error)"
    assert f"install {wanted}" in run(
        f"import sys; sys.modules[{package!r}] = None\ntry: {program}\n{caught}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "words", "extra"), [("typer", [], "cli"), ("starlette", ["web"], "web")]
)
def test_a_command_says_in_one_line_what_to_install(
    package: str, words: list[str], extra: str
) -> None:
    done = run_program(
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['spark-mq', *{words}]; "
        "import runpy; runpy.run_module('spark_mq', run_name='__main__')"
    )
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"pip install 'spark-mq[{extra}]'" in done.err


@pytest.mark.slow
def test_a_stream_function_can_be_made_from_a_group_alone() -> None:
    program = (
        "from spark_mq.testing import memory_queue; "
        "print(callable(memory_queue().group().for_each_batch(lambda batch, lease: None)))"
    )
    pytest.importorskip("pyspark")
    assert run(program).strip() == "True"


WITHOUT_SPARK = (
    "import sys, pytest\n"
    "sys.modules |= dict.fromkeys(('pyspark', 'delta', 'nbformat', 'nbclient'))\n"
    "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *{}]))"
)


@pytest.mark.slow  # it imports all test modules
def test_without_spark_the_tests_that_need_none_are_collected() -> None:
    listed = run(WITHOUT_SPARK.format(["--collect-only"]))
    for there in ("docs/test_figures.py::", "operations/test_identity.py::", "unit/test_import.py"):
        assert f"tests/{there}" in listed
    for left_out in ("tests/model/test_scenarios.py::", "tests/unit/spark/test_peek_reader.py::"):
        assert left_out not in listed


@pytest.mark.slow
def test_without_spark_the_tests_beside_those_of_spark_pass() -> None:
    """Those that import it late: `make test-core` would stop at them, and CI has pyspark."""
    beside = ["tests/unit/spark", "tests/unit/test_public_names.py", "tests/docs"]
    ended = run(WITHOUT_SPARK.format(["-m", "not spark and not slow", *beside]))
    assert " passed" in ended
