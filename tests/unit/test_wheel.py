"""The wheel contains the library, the jobs and their settings, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", folder, folder=ROOT)
    (built,) = folder.glob("*.whl")
    return built


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
    assert names == library | jobs | settings | {"pyspark_mq.py"}


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
