"""Profiles of Hypothesis (HYPOTHESIS_PROFILE=long looks for minutes, the default for seconds), options, an object store for ``--s3``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.s3_endpoint import moto, storage_options

HERE = Path(__file__).parent

settings.register_profile(
    "default", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", settings.get_profile("default"), max_examples=3_000, stateful_step_count=80
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--s3",
        action="store_true",
        help="run tests that can on an S3 endpoint on this machine (moto), instead of local files",
    )
    parser.addoption(
        "--cluster", action="store_true", help="run the tests on a Spark cluster of processes"
    )
    parser.addoption("--connect", action="store_true", help="run the tests over Spark Connect")
    parser.addoption(
        "--wheel", action="store_true", help="install the wheel in dist/ in bare environments"
    )
    parser.addoption(
        "--large-worlds",
        action="store_true",
        help="look at larger worlds in tests/model: some take an hour",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs Spark, and leaves out what needs a store or a cluster that was not asked for."""
    wanted, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        fixtures = getattr(item, "fixturenames", ())
        if folder in ("cluster", "connect", "jobs", "notebooks", "spark") or "spark" in fixtures:
            item.add_marker(pytest.mark.spark)
        needed = "s3" if "s3" in fixtures else folder
        there = needed not in ("cluster", "connect", "s3", "wheel") or config.getoption(
            f"--{needed}"
        )
        (wanted if there else others).append(item)
    items[:] = wanted
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Storage options of an S3 endpoint on this machine, with the bucket ``queues``."""
    with moto() as url:
        yield storage_options(url)
