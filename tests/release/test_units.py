"""The units of systemd and the lines of cron in examples/deploy."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "examples" / "deploy" / "systemd"
COMMAND = "/opt/spark-mq/bin/spark-mq"
INSTALLED = Path(sys.executable).with_name("spark-mq")
NAMES = ("spark-mq-worker@1.service", "spark-mq-sweep.service", "spark-mq-sweep.timer",
         "spark-mq-web.service")  # fmt: skip

CHECK = """\
import sys
from datetime import datetime
from cronsim import CronSim
print(next(CronSim(sys.argv[1], datetime(2026, 1, 1))))
"""

Run = Callable[..., str]


def verify(folder: Path) -> str:
    """Let systemd read the units with a command that is there, and return what it finds wrong."""
    for path in folder.glob("spark-mq-*"):
        path.write_text(path.read_text().replace(COMMAND, str(INSTALLED)))
    done = subprocess.run(
        ["systemd-analyze", "verify", *NAMES], cwd=folder, capture_output=True, text=True,
        env={"SYSTEMD_UNIT_PATH": f"{folder}:", "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    return "\n".join(line for line in done.stderr.splitlines() if "spark-mq" in line)


def test_systemd_finds_nothing_but_a_mistake(tmp_path: Path) -> None:
    units = Path(shutil.copytree(SYSTEMD, tmp_path / "units"))
    assert verify(units) == ""
    path = units / "spark-mq-web.service"
    path.write_text(path.read_text().replace("Restart=always", "Restart=sometimes"))
    assert "specifier, ignoring: sometimes" in verify(units)


def environment(name: str) -> dict[str, str]:
    text = (SYSTEMD / f"{name}.env.example").read_text()
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", ["worker", "sweep", "web"])
def test_each_unit_starts_a_command_that_accepts_its_variables(
    name: str, parse_command: Callable[..., None]
) -> None:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    (path,) = (path for path in SYSTEMD.glob("*.service") if name in path.name)
    unit.read(path)
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == COMMAND
    assert service["EnvironmentFile"] == f"/etc/spark-mq/{name}.env"
    parse_command(*words, **environment(name))
    if name == "worker":
        shutdown = int(words[words.index("--shutdown-timeout") + 1].removesuffix("s"))
        assert int(service["TimeoutStopSec"]) >= shutdown + 15


def test_each_line_of_cron_is_a_time_a_user_and_a_command_that_exists(
    tools: Run, parse_command: Callable[..., None]
) -> None:
    text = (ROOT / "examples" / "deploy" / "cron" / "spark-mq").read_text()
    lines = [line for line in text.splitlines() if not re.match(r"#|[A-Z]+=|$", line)]
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text()
    lines += re.findall(r"^\*/5 .*$", page, re.M)
    assert len(lines) == 3
    for line in lines:
        *schedule, user, command = line.split(maxsplit=6)
        assert tools("python", "-c", CHECK, " ".join(schedule)).strip() == "2026-01-01 00:05:00"
        assert user == "queues"
        _, _, words = command.rpartition(COMMAND)
        parse_command(*shlex.split(words))
    tools("python", "-c", CHECK, "61 * * * *", expect=1)
