"""Compare the reference pages with the code: nothing public may be missing from them."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Collection
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest
import yaml
from deltalake import DeltaTable
from model.scenarios import SLOW, WORLDS
from support.blocks import OF_PAGES, ROOT, blocks_of, pages
from support.commands import parse
from support.handles import lease, leased
from typer.exceptions import TyperException

from spark_mq import (
    ConsumerGroup,
    GroupSettings,
    GroupStats,
    Lease,
    Queue,
    QueueSettings,
    WorkSummary,
    errors,
)

REFERENCE = ROOT / "docs" / "reference"
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_OPTION = re.compile(r"--[a-z][a-z-]*")
NOT_IN_MAKE_TEST = {"browser", "chaos", "cluster", "connect", "stores", "wheel"}


def words_in_code(page: Path) -> set[str]:
    """Return every word that a page sets as code."""
    return set(re.findall(r"`([^`\n]+)`", _FENCED.sub("", page.read_text(encoding="utf-8"))))


def words_of(source: str, place: str, word: str = r'"(\w+)"') -> list[str]:
    """Return the words at a place in a module, which may need pyspark to be imported."""
    (found,) = re.findall(place, (ROOT / source).read_text(encoding="utf-8"), re.S)
    return re.findall(word, found)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONS, PUBLISH = "spark_mq/spark/options.py", "spark_mq/interfaces/cli/publish.py"
NAMES = [
    ("howto/install.md", PROJECT["optional-dependencies"]),
    ("reference/cli.md", words_of(PUBLISH, r'return \{([^}]*"skipped_lines[^}]*)\}', r'"(\w+)":')),
    ("reference/cli.md", [field.name for field in fields(WorkSummary)]),
    ("reference/errors.md", errors.__all__),
    ("reference/options.md", words_of(OPTIONS, r"READ_OPTIONS: Final = \((.*?)\)")),
    ("reference/settings.md", [f.name for f in fields(GroupSettings)]),
    ("reference/settings.md", [f.name for f in fields(QueueSettings) if f.name != "group"]),
    ("reference/states.md", [f.name for f in fields(GroupStats)]),
]


@pytest.mark.parametrize(("page", "names"), NAMES)
def test_every_name_of_the_code_has_its_place(page: str, names: Collection[str]) -> None:
    assert len(names) > 2
    assert {*names} <= words_in_code(ROOT / "docs" / page)


def test_the_runbook_has_a_section_for_each_alert() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    page = (ROOT / "docs" / "howto" / "runbook.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, re.M) == alerts


@pytest.mark.parametrize("owner", [Queue, ConsumerGroup, GroupStats, Lease])
def test_every_method_has_its_place(owner: type) -> None:
    page = (REFERENCE / "api.md").read_text(encoding="utf-8")
    listed = re.search(rf"autoclass:: spark_mq\.{owner.__name__}\n   :members: (.*)", page)
    assert listed is not None
    found = {
        name for name in set(dir(owner)) - {"to_arrow", "to_pandas", "to_polars"}
        if not name.startswith("_") and (getattr(owner, name).__doc__ or "").strip()
        and (callable(getattr(owner, name)) or isinstance(getattr(owner, name), property))
    }  # fmt: skip
    assert found <= set(listed[1].split(", "))


def test_every_option_of_a_job_has_its_place() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "jobs").glob("*.py"))
    names = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source))
    assert "--checkpoint" in names
    assert names <= {word.split()[0] for word in words_in_code(REFERENCE / "jobs.md")}


def test_every_command_and_option_of_the_command_line_has_its_place(
    write_reference: ModuleType,
) -> None:
    commands = dict(write_reference.commands())
    assert {"queue describe", "top", "dlq redrive"} <= set(commands)
    options = {name for one in commands.values() for p in one.params for name in p.opts}
    options = {name for name in options if name.startswith("--")}
    assert {"--max-dead", "--execute", "--queue"} <= options
    words = words_in_code(REFERENCE / "cli.md")
    documented = {word for code in words for word in _OPTION.findall(code)}
    assert options <= documented
    for command in commands:
        assert any(code == command or code.startswith(f"{command} ") for code in words), command


def test_each_command_with_options_has_a_table_of_them(write_reference: ModuleType) -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"<!-- (?:options|commands): ([\w-]+) -->", text))
    own = write_reference.own_options
    assert {name.split()[0] for name, one in write_reference.commands() if own(one)} <= named


@pytest.mark.parametrize("page", ["api.md", "cli.md", "jobs.md", "settings.md", "states.md"])
def test_tables_and_signatures_are_those_of_the_code(
    write_reference: ModuleType, page: str
) -> None:
    if page in ("api.md", "jobs.md"):
        pytest.importorskip("pyspark")
    text = (REFERENCE / page).read_text(encoding="utf-8")
    run_it = "run docs/write_reference.py, which writes it"
    assert write_reference.rewritten(text) == text, run_it
    assert write_reference.TYPES.read_text(encoding="utf-8") == write_reference.types(), run_it


def test_the_site_shows_the_docstrings_instead_of_the_signatures() -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    site = runpy.run_path(str(ROOT / "docs" / "conf.py"))["with_directives"](text)
    assert "def publish(" in text
    assert "def publish(" not in site
    directives = re.findall(r"^\.\. auto\w+:: .*$", text, re.M)
    blocks = re.findall(r"^```{eval-rst}\n(.*?)^```$", site, re.M | re.S)
    assert re.findall(r"^\.\. auto\w+:: .*$", "\n".join(blocks), re.M) == directives


@pytest.fixture(scope="module")
def write_reference() -> ModuleType:
    pytest.importorskip("typer")
    spec = spec_from_file_location("write_reference", ROOT / "docs" / "write_reference.py")
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@OF_PAGES
def test_every_command_of_a_page_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names, options and arguments are parsed, and it is not run."""
    texts = [b.text for b in blocks_of(page) if b.language in ("sh", "ini", "text")]
    for name, value in re.findall(r"\b(SPARK_MQ_(?:QUEUE|GROUP))=(\S+)", "\n".join(texts)):
        monkeypatch.setenv(name, value)
    text = "\n".join(texts).replace("\\\n", " ")
    for line in re.findall(r"(?:^|[\s/])spark-mq ([^-\n].*)", text, re.M):
        assert parse(*shlex.split(line, comments=True))


@OF_PAGES
def test_every_command_in_a_sentence_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence may leave out what a command needs, but names nothing that it does not have."""
    monkeypatch.setenv("SPARK_MQ_QUEUE", "/queues/orders")
    prose, wrong = _FENCED.sub("", page.read_text(encoding="utf-8")), []
    for line in re.findall(r"`(?:\S*/)?spark-mq ([^`-][^`]*)`", prose):
        try:
            parse(*shlex.split(line.replace("\\|", "|"), comments=True))
        except TyperException as error:
            if not error.format_message().startswith("Missing "):
                wrong.append(f"spark-mq {line}: {error.format_message()}")
    assert not wrong


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    """The folder of a queue that has all of its tables."""
    queue = Queue.create(tmp_path / "queue")
    held = leased(queue, "good", "bad")
    held.reject([held.messages[1].sequence])
    held.ack()
    queue.sweep()
    return tmp_path / "queue"


@pytest.mark.parametrize("table", ["messages", "leases", "commits", "history"])
def test_every_column_of_a_table_has_its_place(swept: Path, table: str) -> None:
    text = (REFERENCE / "tables.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    columns = {f.name for f in DeltaTable(swept / table).schema().fields}
    columns -= {"lane"}  # leaves the table with its next format
    assert columns <= set(re.findall(r"`([^`\n]+)`", section))


def test_every_header_of_a_dead_letter_has_its_place(swept: Path) -> None:
    headers = set(lease(Queue.open(swept / "dead_letters")).messages[0].headers)
    assert "spark_mq.reason" in headers
    assert headers <= words_in_code(REFERENCE / "tables.md")


def left_out(path: Path, tree: ast.Module, test: ast.FunctionDef) -> bool:
    """Return whether ``make test`` leaves a test out with all of its parameters."""
    module = next((ast.unparse(n.value) for n in tree.body if _sets_marks(n)), "")
    marks = [module, *map(ast.unparse, test.decorator_list)]
    elsewhere = path.relative_to(ROOT / "tests").parts[0] in NOT_IN_MAKE_TEST
    return elsewhere or any("pytest.mark.slow" in re.split(r"[][, ]+", mark) for mark in marks)


def _sets_marks(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


@pytest.fixture(scope="module")
def all_tests() -> dict[str, bool]:
    """Whether ``make test`` leaves a test out, by the test's name."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    return {
        node.name: left_out(path, tree, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(("page", "least"), [("guarantees.md", 20), ("threat-model.md", 5)])
def test_each_test_that_shows_a_guarantee_exists_and_is_marked_if_it_is_slow(
    all_tests: dict[str, bool], page: str, least: int
) -> None:
    text = (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8")
    named = dict(re.findall(r"`(test_\w+)`( \(slow\))?", text))
    assert len(named) > least
    slow = {name: all_tests[name] for name in named if name in all_tests}
    assert {name: bool(mark) for name, mark in named.items()} == slow


def test_each_world_that_shows_a_guarantee_exists_and_is_marked_if_it_is_slow() -> None:
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    cells = re.findall(r"the worlds ([^|]*)\|", text)
    named = dict(re.findall(r"`(\w+)`( \(slow\))?", " ".join(cells)))
    assert len(named) > 3
    assert named.keys() <= WORLDS.keys()
    assert {name: bool(mark) for name, mark in named.items()} == {n: n in SLOW for n in named}


def test_the_readme_has_at_most_130_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


@OF_PAGES
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_file_that_contributing_names_is_there() -> None:
    """A file of the package stands in CONTRIBUTING without the package's folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    made = {"build/soak.json", "build/sbom.cdx.json", "dist/"}
    other = made | {"conftest.py"}  # one of several
    named = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|md|json|toml)))`", text)) - other
    assert len(named) > 50
    found = {
        name for name in named for folder in ("", "spark_mq") if (ROOT / folder / name).exists()
    }
    assert sorted(named - found) == []


def test_llms_txt_links_every_page() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / target).with_suffix(".md") for target in _LINK.findall(text)}
    built = {page for page in pages() if ROOT / "docs" in page.parents}
    assert linked == built - {ROOT / "docs" / "index.md"}
