"""What the wheel and the sdist contain, and that both are one release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from trove_classifiers import classifiers as known_classifiers

import spark_mq

ROOT = Path(__file__).parents[2]


def run(*command: object, folder: Path, site: Path | None = None) -> str:
    """Run Python. ``site`` is the only folder beside the installed packages to import from."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(site or "")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "--directory", folder, folder=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (built,) = dist.glob("*.tar.gz")
    return built


@pytest.mark.slow
def test_the_wheel_contains_each_module_each_job_and_the_settings(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    library = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "spark_mq").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    jobs = {f"spark_mq_jobs/{p.name}" for p in (ROOT / "jobs").glob("*.py")}
    settings = {f"spark_mq_jobs/conf/{p.name}" for p in (ROOT / "conf").iterdir()}
    assert {"spark_mq_jobs/worker.py", "spark_mq_jobs/sweep.py"} <= jobs
    assert "spark_mq/py.typed" in library
    assert names == library | jobs | settings | {"pyspark_mq.py"}


@pytest.mark.slow
def test_the_wheel_has_its_licences_and_commands(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = {*archive.namelist()}
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    htmx = "spark_mq/interfaces/web/static/htmx.LICENSE.txt"
    assert {htmx, f"{info}/licenses/LICENSE", f"{info}/licenses/{htmx}"} <= names
    commands = archive.read(f"{info}/entry_points.txt").decode()
    assert "spark-mq = spark_mq.interfaces.cli:main" in commands


@pytest.mark.slow
def test_the_metadata_names_licences_and_classifiers_that_an_index_accepts(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["License-Expression"] == "Apache-2.0 AND 0BSD"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.11"
    listed = metadata.get_all("Classifier", [])
    assert "Programming Language :: Python :: 3.13" in listed
    assert {*listed} <= known_classifiers


@pytest.mark.slow
def test_the_sdist_has_the_sources_tests_and_pages_and_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("tests/unit/test_wheel.py", "docs/tutorial.md", "examples", "CHANGELOG.md"):
        assert (source / name).exists()
    assert not {"benchmarks", ".ci", ".github", ".venv"} & {p.name for p in source.iterdir()}
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path, folder=source)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_one_version_stands_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert spark_mq.__version__ == version
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == version
    wheels = {
        (str(page.relative_to(ROOT)), found)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for found in re.findall(r"spark_mq-(\d[\d.]*\d)-py3", page.read_text())
    }
    assert len(wheels) >= 2
    assert {found for _, found in wheels} == {version}


@pytest.mark.slow
def test_an_installed_job_starts_from_the_folder_that_its_package_prints(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    jobs = Path(run("-m", "spark_mq_jobs", folder=tmp_path, site=site).strip())
    assert jobs == (site / "spark_mq_jobs").resolve()
    for job in ("publish", "worker", "sweep"):
        assert "--queue" in run(jobs / f"{job}.py", "--help", folder=tmp_path, site=site)
    found = run("-c", "import _common; print(_common._CONF)", folder=jobs, site=site).strip()
    assert Path(found) == jobs / "conf"
    assert (jobs / "conf" / "spark-defaults.conf").is_file()
