"""The workflows of GitHub: what they may do, and that make has each of their targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), yaml.BaseLoader)


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in workflow(path)["jobs"].items():
            for step in job["steps"]:
                yield f"{path.stem}/{name}", step


def test_actionlint_finds_nothing_but_a_mistake(tools: Callable[..., str]) -> None:
    tools("actionlint", "-shellcheck=", "-pyflakes=", *WORKFLOWS)
    broken = WORKFLOWS[0].read_text().replace("runs-on: ubuntu-24.04", "runs-on: ubunto", 1)
    out = tools("actionlint", "-shellcheck=", "-", stdin=broken, expect=1)
    assert 'label "ubunto" is unknown' in out


def test_each_action_is_pinned_by_its_commit_with_the_version_beside_it() -> None:
    texts = "\n".join(path.read_text() for path in WORKFLOWS)
    lines = [line.strip().removeprefix("- ") for line in texts.splitlines() if "uses: " in line]
    pinned = re.compile(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    others = {line for line in lines if not pinned.fullmatch(line)}
    # Its commit of today is not known here. Its own documentation names this branch.
    assert others == {"uses: pypa/gh-action-pypi-publish@release/v1"}
    versions = {tuple(line.removeprefix("uses: ").split("@")) for line in {*lines} - others}
    assert len(versions) == len({name for name, _ in versions})  # one version of each


def test_only_the_jobs_that_publish_may_write() -> None:
    writes = {}
    for path in WORKFLOWS:
        content = workflow(path)
        assert content["permissions"] == {"contents": "read"}
        for name, job in content["jobs"].items():
            assert int(job["timeout-minutes"]) <= 120
            if "permissions" in job:
                writes[f"{path.stem}/{name}"] = {*job["permissions"].items()}
    token = ("id-token", "write")
    assert writes == {
        "docs/deploy": {("pages", "write"), token},
        "release/attest": {token, ("attestations", "write"), ("artifact-metadata", "write")},
        "release/publish": {token},
        "release/announce": {("contents", "write")},
    }
    for place, step in steps():
        assert "secrets." not in str(step), place
        if place in writes:  # a job that can write runs no code of the repository
            assert not step.get("uses", "").startswith("actions/checkout"), place
            assert "make" not in step.get("run", ""), place


def test_the_package_is_published_by_trust_in_the_workflow_alone() -> None:
    publish = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi"
    (upload,) = (s for s in publish["steps"] if s["uses"].startswith("pypa/gh-action-pypi-publish"))
    assert "with" not in upload  # neither a password nor attestations switched off


def test_make_has_each_target_of_a_workflow(make: Callable[..., None]) -> None:
    commands = [" ".join(step["run"].split()) for _, step in steps() if "run" in step]
    targets = {command for command in commands if command.startswith("make ")}
    assert "make test-all" in targets
    for target in targets:
        make(*target.split()[1:], "--dry-run")


@pytest.mark.parametrize(
    ("tag", "title", "said"),
    [
        ("v{}", "[{}] - 2026-12-01", ("### Added\n\n- New.\n", "")),
        ("v{}", "[{}] - unreleased", ("", "no dated notes")),
        ("v{}", "[9.9.9] - 2026-12-01", ("", "no dated notes")),
        ("v9.9.9", "[{}] - 2026-12-01", ("", "tag v{}")),
    ],
)
def test_the_notes_of_a_release_are_the_dated_section_of_its_version(
    tmp_path: Path, version: str, tag: str, title: str, said: tuple[str, str]
) -> None:
    """Without a date, or for another version, nothing is published."""
    notes, reason = said
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    sections = f"## {title}\n\n### Added\n\n- New.\n\n## [0.1.0] - unreleased\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{sections.format(version)}")
    command = [ROOT / "scripts" / "release-notes", tag.format(version)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (int(not notes), notes)
    assert reason.format(version) in done.stderr
