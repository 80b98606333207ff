"""A new setting is one field: all else follows from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.blocks import ROOT

pytestmark = pytest.mark.slow  # it copies the code, and runs the copy in a process of its own

FIELD = """    {name}: timedelta = setting(kinds.duration(), "9s", "How long a {owner} naps.")

"""
USES = """
import json
import sys

from starlette.testclient import TestClient
from typer.testing import CliRunner

from spark_mq import GroupSettings, InvalidOption, Queue
from spark_mq.interfaces.cli.app import app
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, create_app

path, seen = sys.argv[1], {"described": GroupSettings.__doc__}

def stored():
    queue = Queue.open(path)
    return [queue.group("g").settings.nap.total_seconds(), queue.settings.siesta.total_seconds()]

def run(*words):
    done = CliRunner().invoke(app, words)
    return (done.output or str(done.exception)).strip()

queue = Queue.create(path, nap="3s", siesta="2h", durable=False)
group = queue.group("g").ensure()
seen["created"] = stored()
group.configure(nap=5)
queue.configure(siesta="1d")
seen["changed"] = stored()
try:
    group.configure(nap="soon")
except InvalidOption as error:
    seen["refused"] = str(error)
of_group = "group", "configure", "g", "-q", path, "-o", "json", "--set"
seen["command of the group"] = json.loads(run(*of_group, "nap=7s"))
seen["command refused"] = run(*of_group, "nap=0")
seen["command of the queue"] = run("queue", "configure", path, "--set", "siesta=3d")
app = create_app(QueueMonitor(path), Access(allow_changes=True))
page = TestClient(app, base_url="http://localhost")
seen["page"] = page.get("/group/q?group=g").text
seen["page of changes"] = page.get("/change/q?do=configure&group=g").text
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def run(tree: Path, *command: str) -> str:
    """Return what a command prints that runs the code of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen(tree: Path) -> Any:
    """What a program sees that uses a queue, the command line and the page of that code."""
    return json.loads(run(tree, "-c", USES, str(tree / "q")))


def test_it_is_an_argument_that_is_checked_and_stored(seen: Any) -> None:
    assert (seen["created"], seen["changed"]) == ([3, 7_200], [5, 86_400])
    assert "nap='soon' is not a duration: give more than zero" in seen["refused"]


def test_the_command_line_shows_and_changes_it(seen: Any) -> None:
    assert seen["command of the group"]["nap"] == 7
    assert seen["command refused"].startswith("nap=0 is not a duration: give more than zero")
    assert "1d -> 3d" in seen["command of the queue"]


def test_the_web_page_shows_it_and_offers_to_change_it(seen: Any) -> None:
    assert "<bdi>nap</bdi>" in seen["page"]
    assert 'aria-label="Change nap"' in seen["page of changes"]


def test_its_types_and_its_row_of_the_reference_are_written(tree: Path, seen: Any) -> None:
    types = (tree / "spark_mq" / "ledger" / "setting_options.py").read_text(encoding="utf-8")
    of_group, _, of_queue = types.partition("class QueueOptions")
    assert "    nap: Duration\n" in of_group
    assert "    siesta: Duration\n" in of_queue
    page = (tree / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert "| `nap` | `9s` | a duration above 0 | How long a group naps. |" in page
    assert "| `siesta` | `9s` | a duration above 0 | How long a queue naps. |" in page
    assert "nap\n    How long a group naps. Default: 9s." in seen["described"]
