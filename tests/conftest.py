"""Options, what runs without them, and profiles of Hypothesis.

``-m "not slow"`` runs the daily tests, with the Hypothesis profile ``daily``.
``HYPOTHESIS_PROFILE=long`` looks for minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.byte_store import byte_store
from support.limits import limits, short_leases
from support.marks import without_delta
from support.stores import SERVERS, RemoteStore
from support.tables import forget_row_groups

__all__ = ["byte_store", "limits", "short_leases"]

HERE = Path(__file__).parent

settings.register_profile(
    "default", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", settings.get_profile("default"), max_examples=3_000, stateful_step_count=80
)
settings.register_profile("daily", settings.get_profile("default"), max_examples=25)

HAS_PYSPARK = find_spec("pyspark") is not None
NOT_IN_CORE = ("pyspark", "nbformat")
"""Packages that ``make setup-core`` leaves out. A test module that imports one is left out, too."""

OPTIONAL = {
    "airflow": "run tests in an environment that has Airflow",
    "browser": "open the web page in headless Chromium",
    "catalog": "run the tests on a Unity Catalog server",
    "cluster": "run the tests on a Spark cluster of processes",
    "connect": "run the tests over Spark Connect",
    "pipelines": "run the tests of Spark Declarative Pipelines",
    "release": "check what make wheel has built, the workflows and examples/deploy",
    "wheel": "install the wheel in dist/ in bare environments",
}
"""The folders whose tests run with an option of that name alone."""
ON_SPARK = ("cluster", "connect", "jobs", "notebooks", "pipelines", "spark")
MAY_NEED_SPARK = {*ON_SPARK, *OPTIONAL, "docs", "stores"}
"""The folders in which the Makefile looks for tests that need Spark."""

MEMORY = Path("/dev/shm")
"""A folder in memory, where the daily tests keep their files. The others use a disk."""
MEMORY_BYTES = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Choose how long Hypothesis looks. Test modules are imported later."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts jobs in the background so. The tests of Ctrl-C would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_daily(config) and _has_memory():  # a sync takes milliseconds on a disk
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    settings.load_profile(
        os.environ.get("HYPOTHESIS_PROFILE", "daily" if _is_daily(config) else "default")
    )


def _has_memory() -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES


def pytest_report_header() -> str:
    return "" if HAS_PYSPARK else "without pyspark, the tests that import it are left out"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip what can't be imported because ``make setup-core`` doesn't install a package it needs.

    Any other import that fails is an error, as each of them is where pyspark is installed. The
    conftest of a folder is imported before, so it must import pyspark within its fixtures.
    """
    report = yield
    if HAS_PYSPARK or not report.failed:
        return report
    error = report.call.excinfo.value
    error = error.__cause__ or error  # pytest wraps those of test modules
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if package not in NOT_IN_CORE:
        return report
    skipped = (report.nodeid, 0, f"needs {package}")
    return pytest.CollectReport(report.nodeid, "skipped", skipped, [])


def _is_daily(config: pytest.Config) -> bool:
    elsewhere = any(
        config.getoption(name) for name in ("--store", *(f"--{folder}" for folder in OPTIONAL))
    )
    return "not slow" in config.option.markexpr and not elsewhere


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        choices=tuple(SERVERS),
        help="run the tests that can on this server of an object store, instead of local files",
    )
    for folder, does in OPTIONAL.items():
        parser.addoption(f"--{folder}", action="store_true", help=does)
    parser.addoption(
        "--large-worlds",
        action="store_true",
        help="look at larger worlds in tests/model: some take an hour",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs Spark, and leaves out what needs a store or a cluster that was not asked
    for.
    """
    store = config.getoption("--store")
    wanted, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        fixtures = getattr(item, "fixturenames", ())
        if folder in ON_SPARK or "spark" in fixtures:
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") and folder not in MAY_NEED_SPARK:
            raise pytest.UsageError(f"no target runs {item.nodeid}: move it to tests/spark")
        if item.get_closest_marker("delta") and (reason := without_delta()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if store or folder == "stores" or "remote" in fixtures:
            there = store and _is_for(item, store)
        else:
            there = folder not in OPTIONAL or config.getoption(f"--{folder}")
        (wanted if there else others).append(item)
    items[:] = wanted
    config.hook.pytest_deselected(items=others)


def _is_for(item: pytest.Item, store: str) -> bool:
    """Return whether a test can run on a server of an object store."""
    only = item.get_closest_marker("only_on")
    if only is not None and store not in only.args:
        return False
    if item.get_closest_marker("on_stores") is not None:
        return "queue" in item.fixturenames
    return bool({"make", "place", "remote"} & {*getattr(item, "fixturenames", ())})


@pytest.fixture(autouse=True)
def _no_kept_row_groups() -> Iterator[None]:
    """No test sees the row groups of another one. Some come from a memory pool that ends."""
    yield
    forget_row_groups()


@pytest.fixture(scope="session")
def remote(request: pytest.FixtureRequest) -> Iterator[RemoteStore]:
    """The server of ``--store``. Without atomic conditional puts no test could trust it."""
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(SERVERS[request.config.getoption("--store")]())
        except AssertionError as error:
            pytest.exit(f"the store cannot be used: {error}", returncode=1)
        yield store
