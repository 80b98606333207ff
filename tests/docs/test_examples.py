"""Run every code block of the README and the documentation.

The Python blocks of a page run in order in one namespace. ``/tmp/`` in a block is a folder of its
own for each test. The first line of a block may say more than its language: ``python spark`` and
``sql spark`` need a session, ``python skip: reason`` is only compiled.
"""

from __future__ import annotations

import ast
import configparser
import doctest
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.blocks import OF_PAGES, ROOT, Block, blocks_of, pages
from support.marks import slow

CHECKED = {
    *("python", "pycon", "sh", "sql", "json", "toml", "yaml", "ini", "dockerfile", "text"),
    *("{eval-rst}", "{toctree}"),
}


def _needs_spark(page: Path) -> bool:
    return any(block.info == "spark" for block in blocks_of(page))


def _runnable(page: Path) -> bool:
    return any(b.language in ("python", "pycon") and b.skip_reason is None for b in blocks_of(page))


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


PLAIN = [page for page in pages() if _runnable(page) and not _needs_spark(page)]
LONG = {
    *("docs/howto/backup.md", "docs/howto/operating.md", "docs/howto/order.md"),
    *("docs/howto/spark-workers.md", "docs/tutorial.md"),
}
"""Pages that run several queries. `make test-all` runs them."""
SPARK = [slow(p) if _name(p) in LONG else p for p in pages() if _needs_spark(p)]


class Page:
    """Runs the blocks of one page."""

    def __init__(self, folder: Path, session: Any = None) -> None:
        self.folder = folder
        self.session = session
        self.names: dict[str, Any] = {"__name__": "__main__"}
        if session is not None:
            self.names["spark"] = session
        # What each runner needs is chosen here, so that an unknown language is a KeyError.
        self._run: dict[str, Callable[[Block, str], None]] = {
            "python": self._python,
            "pycon": self._pycon,
            "sql": self._sql,
        }

    def run(self, page: Path) -> None:
        for block in blocks_of(page):
            if block.language in self._run and block.skip_reason is None:
                self._run[block.language](block, block.text.replace("/tmp/", f"{self.folder}/"))

    def _python(self, block: Block, text: str) -> None:
        # The line numbers of a traceback are those of the page.
        tree = ast.parse(text, filename=str(block.page))
        ast.increment_lineno(tree, block.line - 1)
        exec(compile(tree, str(block.page), "exec"), self.names)

    def _pycon(self, block: Block, text: str) -> None:
        parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
        test = parser.get_doctest(text, self.names, _name(block.page), str(block.page), block.line)
        runner.run(test, clear_globs=False)
        assert runner.summarize(verbose=False).failed == 0
        self.names |= test.globs

    def _sql(self, block: Block, text: str) -> None:
        for statement in filter(str.strip, text.split(";")):
            self.session.sql(statement).collect()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for /tmp. The block's relative paths lie in it, also the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PLAIN, ids=_name)
def test_the_python_blocks_of_a_page_run_in_order(page: Path, folder: Path) -> None:
    Page(folder).run(page)


@pytest.mark.spark
@pytest.mark.parametrize("page", SPARK, ids=_name)
def test_the_blocks_of_a_page_with_spark_run_in_order(page: Path, folder: Path, spark: Any) -> None:
    Page(folder, spark).run(page)


@OF_PAGES
def test_each_block_has_a_language_that_is_checked(page: Path) -> None:
    for block in blocks_of(page):
        place = f"{_name(page)}:{block.line}"
        assert block.language in CHECKED, f"{place}: {block.language!r} is not checked"
        assert block.skip_reason != "", f"{place}: a skipped block needs a reason"
        assert block.info in ("", "spark") or block.skip_reason, f"{place}: {block.info!r}"


@OF_PAGES
def test_blocks_that_do_not_run_are_well_formed(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "sh":
            parsed = subprocess.run(["sh", "-n", "-c", block.text], check=False)
            assert parsed.returncode == 0, f"{_name(page)}:{block.line}"
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "ini":
            configparser.ConfigParser().read_string(block.text)
        elif block.language == "python":
            compile(block.text, f"{_name(page)}:{block.line}", "exec")


@pytest.mark.spark
@pytest.mark.slow
def test_the_code_of_the_readme_runs_as_pasted(tmp_path: Path) -> None:
    """In a new process without settings for Spark, whose ``python3`` has no spark_mq."""
    code = "".join(b.text for b in blocks_of(ROOT / "README.md") if b.language == "python")
    env = {name: text for name, text in os.environ.items() if not name.startswith(("PYS", "SPARK"))}
    own = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if p != own)
    ran = subprocess.run(
        [sys.executable, "-c", code.replace("/tmp/", f"{tmp_path}/")],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert "has already settled" not in ran.stderr


BLOCKS = [block for page in pages() for block in blocks_of(page)]


def test_no_page_installs_from_an_index_that_does_not_have_the_package() -> None:
    """In an environment that has it, a page may add an extra, but no block has to come first."""
    for block in BLOCKS:
        wanted = re.findall(r"pip install .*?spark[-_]mq(?!.*(?:@ file:|\.whl))", block.text)
        assert not wanted, f"{_name(block.page)}:{block.line}"


def test_no_page_sends_a_token_over_plain_http() -> None:
    read = [yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml"]
    scrapes = [job for one in read for job in one.get("scrape_configs", ())]
    assert [job["scheme"] for job in scrapes if "authorization" in job] == ["https"]


def test_images_in_the_docs_have_a_python_that_is_new_enough() -> None:
    built = "\n".join(block.text for block in BLOCKS if block.language == "dockerfile")
    images = re.findall(r"^FROM (\S+)", built, re.M)
    versions = [re.match(r"python:3\.(\d+)-", image) for image in images]
    assert versions
    assert all(version is not None and int(version[1]) >= 11 for version in versions), images
