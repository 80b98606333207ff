"""What an index gets: the wheel and the sdist that make wheel has built."""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def distributions() -> list[Path]:
    found = sorted((ROOT / "dist").iterdir())
    names = [f"spark_mq-{PROJECT['version']}{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    assert [path.name for path in found] == names
    return found


def test_twine_finds_nothing_wrong_but_a_wheel_without_a_description(
    tools: Run, distributions: list[Path], tmp_path: Path
) -> None:
    assert tools("twine", "--no-color", "check", "--strict", *distributions).count("PASSED") == 2
    bare = tmp_path / distributions[0].name
    with zipfile.ZipFile(distributions[0]) as built, zipfile.ZipFile(bare, "w") as archive:
        for name in built.namelist():
            content = built.read(name)
            head = content.partition(b"\n\n")[0] if name.endswith("/METADATA") else content
            archive.writestr(name, head)
    assert "long_description" in tools("twine", "check", "--strict", bare, expect=1)


def test_the_readme_renders_as_an_index_renders_it(tools: Run) -> None:
    program = "import readme_renderer.markdown as m; print(m.render(open('README.md').read()))"
    page = tools("python", "-W", "error", "-c", program)
    assert page.count("<table") >= 1
    assert page.count("<pre") >= 4
    assert "First example" in page


@pytest.mark.slow
def test_the_bill_of_materials_lists_each_dependency_with_its_licence(
    make: Callable[..., None], tools: Run
) -> None:
    make("sbom")
    bill = json.loads((ROOT / "build" / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    parts = {part["name"]: part for part in bill["components"]}
    assert {"deltalake", "obstore", "pyarrow", "starlette", "opentelemetry-api"} <= {*parts}
    assert not {"pytest", "pip", "pyspark", "twine"} & {*parts}
    assert all(part["purl"].startswith("pkg:pypi/") for part in parts.values())
    unlicensed = {name for name, part in parts.items() if not part.get("licenses")}
    assert unlicensed == set()
