"""A new setting is one field: all else follows from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.blocks import ROOT

pytestmark = pytest.mark.slow  # each change is tried in a process of its own

FIELD = """    {name}: timedelta = setting(kinds.duration(), "9s", "How long a {owner} naps.")

"""
PAGE = """
import sys
from starlette.testclient import TestClient
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, create_app
app = create_app(QueueMonitor(sys.argv[1]), Access(user="alice", allow_changes=True))
client = TestClient(app, base_url="http://localhost")
print(client.get("/group/q", params={"group": "g"}).text)
print(client.get("/change/q", params={"do": "configure", "group": "g"}).text)
"""
Tree = Path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The code with one more setting of groups, `nap`, and of queues, `siesta`."""
    pytest.importorskip("pyspark")  # the reference has the options of the source, too
    root = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("spark_mq", "jobs", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    path = root / "spark_mq" / "ledger" / "settings.py"
    code = path.read_text(encoding="utf-8")
    for name, owner in (("nap", "group"), ("siesta", "queue")):
        end = re.search(rf'    owner: ClassVar\[str\] = "(a|the) {owner}"', code)
        code = code[: end.start()] + FIELD.format(name=name, owner=owner) + code[end.start() :]
    path.write_text(code, encoding="utf-8")
    run(root, "docs/write_reference.py")
    return root


def run(tree: Tree, *command: str, code: int = 0) -> str:
    """Return what a command prints that runs the code of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def queue(tree: Tree, tmp_path: Path) -> str:
    """The path of a queue with a group, made by that code."""
    path = str(tmp_path / "q")
    code = (
        "import sys; from spark_mq import Queue;"
        "queue = Queue.create(sys.argv[1], nap='3s', siesta='2h', durable=False);"
        "queue.group('g').ensure()"
    )
    run(tree, "-c", code, path)
    return path


def test_it_is_an_argument_that_is_checked_and_stored(tree: Tree, queue: str) -> None:
    code = (
        "import sys; from spark_mq import Queue, errors;"
        "queue = Queue.open(sys.argv[1]); group = queue.group('g');"
        "print(group.settings.nap.total_seconds(), queue.settings.siesta.total_seconds());"
        "group.configure(nap=5); queue.configure(siesta='1d');"
        "again = Queue.open(sys.argv[1]);"
        "print(again.group('g').settings.nap.days, again.settings.siesta.days);"
        "group.configure(nap='soon')"
    )
    shown = run(tree, "-c", code, queue, code=1)
    assert shown.startswith("3.0 7200.0\n0 1\n")
    assert "InvalidOption: nap='soon' is not a duration: give more than zero" in shown


def test_the_command_line_shows_and_changes_it(tree: Tree, queue: str) -> None:
    code = (
        "import sys; from typer.testing import CliRunner\n"
        "from spark_mq.interfaces.cli.app import app\n"
        "def run(*words):\n"
        "    done = CliRunner().invoke(app, words)\n"
        "    print((done.output or str(done.exception)).strip())\n"
        "group = 'group', 'configure', 'g', '-q', sys.argv[1], '-o', 'json', '--set'\n"
        "run(*group, 'nap=7s')\n"
        "run(*group, 'nap=0')\n"
        "run('queue', 'configure', sys.argv[1], '--set', 'siesta=1d')"
    )
    of_group, refused, *of_queue = run(tree, "-c", code, queue).strip().split("\n")
    assert json.loads(of_group)["nap"] == 7
    assert refused.startswith("nap=0 is not a duration: give more than zero")
    assert any("2h -> 1d" in line for line in of_queue)


def test_the_web_page_shows_it_and_offers_to_change_it(
    tree: Tree, queue: str, tmp_path: Path
) -> None:
    shown = run(tree, "-c", PAGE, str(tmp_path))
    assert "<bdi>nap</bdi>" in shown
    assert 'aria-label="Change nap"' in shown


def test_its_types_and_its_row_of_the_reference_are_written(tree: Tree) -> None:
    types = (tree / "spark_mq" / "ledger" / "setting_options.py").read_text(encoding="utf-8")
    of_group, _, of_queue = types.partition("class QueueOptions")
    assert "    nap: Duration\n" in of_group
    assert "    siesta: Duration\n" in of_queue
    page = (tree / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert "| `nap` | `9s` | a duration above 0 | How long a group naps. |" in page
    assert "| `siesta` | `9s` | a duration above 0 | How long a queue naps. |" in page
    described = run(tree, "-c", "import spark_mq; print(spark_mq.GroupSettings.__doc__)")
    assert "nap\n    How long a group naps. Default: 9s." in described
