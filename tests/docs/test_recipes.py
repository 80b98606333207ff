"""Run the recipes in examples/ and check what they print."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.blocks import ROOT
from support.marks import slow_but

RECIPES = ROOT / "examples"

PLAIN = {
    "python_worker": ["acked 1, nacked 1, rejected 1", "routed: 1"],
    "publish_once": ["day-0.txt: published", "day-2.txt: published"],
    "call_api": ["acked 396, refused 0"],
    "nightly_schedule": [
        "report for 2027-03-27T01:30:00+00:00\n",
        "report for 2027-03-28T01:00:00+00:00\n",  # 03:00 in Berlin, after the clocks have changed
        "nightly: 30 2 * * * in Europe/Berlin, next at 2027-03-30 00:30:00+00:00",
    ],
    "outbox": ["published 2\n", "published 0 in a second run"],
}
SPARK = {
    "stream_to_delta": ["archived 10 rows", "acked 10"],
    "upsert_accounts": ["100 accounts of second in Bern, closed: True\n", "acked 400"],
    "validate_orders": ["valid: 1", "not JSON: invalid character", "negative amount"],
}


def run(name: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: int) -> str:
    """Import a recipe, call its main function and return what it prints."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(folder), *more)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PLAIN)
def test_a_recipe_without_spark_prints_what_it_should(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(name, tmp_path, capsys)
    assert [line for line in PLAIN[name] if line not in printed] == []


@pytest.mark.parametrize("files", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_batch_of_files_ends_with_its_final_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: int
) -> None:
    printed = run("process_files", tmp_path, capsys, files)
    bad = files // 1_000
    assert f"import-7: {files - bad} of {files} files are parsed\n" in printed
    assert f"{bad} files are in the dead-letter queue\n" in printed


def test_a_repeated_publish_skips_what_landed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("publish_once", tmp_path, capsys)
    assert run("publish_once", tmp_path, capsys).split("\n")[:3] == [
        f"day-{n}.txt: skipped" for n in range(3)
    ]


@pytest.mark.spark
@pytest.mark.parametrize("name", slow_but({"stream_to_delta"}, SPARK))
def test_a_recipe_with_spark_prints_what_it_should(
    name: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(name, tmp_path, capsys)
    assert [line for line in SPARK[name] if line not in printed] == []


def test_every_recipe_is_run_and_listed() -> None:
    files = {path.stem for path in RECIPES.glob("*.py")}
    assert files == {*PLAIN, *SPARK, "process_files"}
    listed = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert [name for name in files if f"`{name}.py`" not in listed] == []
