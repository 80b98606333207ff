"""Write the tables of commands and options into reference/cli.md and jobs.md, between markers.

    .venv/bin/python docs/write_reference.py

``<!-- options: NAME -->`` begins the options of a command, ``<!-- commands: NAME -->`` the commands
of a group, and ``<!-- end -->`` ends both. ``<!-- job: NAME -->`` begins the options of a job.
tests/docs fails if a page differs from its tables.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from spark_mq.cli.app import app

REFERENCE = Path(__file__).parent / "reference"
JOBS = Path(__file__).parents[1] / "jobs"
COMMON = {"help", "queue", "group", "yes", "storage_option", "output"}
_MARKED = re.compile(r"(<!-- (options|commands|job): ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
_OF_ALL_JOBS = {"help", "queue", "queues", "storage_options"}
_HELP_DEFAULT = re.compile(r"[.;] Default: (.+)$")


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its words, as the program has it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def rewritten(text: str) -> str:
    """Return a page with the tables as the commands and jobs are now."""
    known = dict(commands())

    def table(found: re.Match[str]) -> str:
        start, kind, name, end = found.groups()
        if kind == "commands":
            rows = "".join(row for word, one in known.items() if word.startswith(f"{name} ")
                           for row in _command_row(word, one))  # fmt: skip
            return f"{start}| command | does |\n| --- | --- |\n{rows}{end}"
        if kind == "job":
            rows = "".join(map(_job_row, job_options(name)))
        else:
            rows = "".join(map(_option_row, own_options(known[name])))
        return f"{start}| option | default | meaning |\n| --- | --- | --- |\n{rows}{end}"

    return _MARKED.sub(table, text)


def _option_row(option: Any) -> str:
    return f"| {_names(option)} | {_default(option)} | {_code(_lower(option.help))} |\n"


def _command_row(name: str, command: Any) -> Iterator[str]:
    words = [name]
    for one in command.params:
        if one.param_type_name == "argument":
            named = (one.metavar or one.name).upper()
            words.append(named if one.required else f"[{named}]")
    text = " ".join(command.help.split())
    for one in own_options(command):
        default = _default(one)
        text += f" {_names(one)}: {_lower(one.help)}"
        text += "." if default in ("", "off") else f", by default {default}."
    yield f"| `{' '.join(words)}` | {_code(text)} |\n"


def job_options(name: str) -> list[Any]:
    """Return the options of a job that not all jobs have."""
    sys.path.insert(0, str(JOBS))  # for what the jobs share
    try:
        job = runpy.run_path(str(JOBS / f"{name}.py"))
    finally:
        sys.path.remove(str(JOBS))
    return [one for one in job["options"]()._actions if one.dest not in _OF_ALL_JOBS]


def _job_row(option: Any) -> str:
    text, default = " ".join(option.help.split()), ""
    if found := _HELP_DEFAULT.search(text):
        text, default = text[: found.start()], found[1]
    if option.required:
        default = "required"
    elif option.const is True:
        default = "off"
    words = [*option.option_strings]
    if option.const is not True:
        words.append(option.metavar or ("|".join(option.choices) if option.choices else "NAME"))
    name = " ".join(words).replace("|", "\\|")
    return f"| `{name}` | {default} | {_code(_lower(text))} |\n"


def own_options(command: Any) -> list[Any]:
    """Return the options that the page does not explain for all commands."""
    options = [one for one in command.params if one.param_type_name == "option"]
    return [one for one in options if one.name not in COMMON or _is_filter(one)]


def _is_filter(option: Any) -> bool:
    """Return whether --group only narrows what the command shows."""
    return bool(option.name == "group" and option.default != "default" and not option.required)


def _lower(text: str) -> str:
    """Return a help within a sentence."""
    text = text.rstrip(".")
    return text if text[1:2].isupper() or text[1:2] == "-" else text[:1].lower() + text[1:]


def _names(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}`" for name in sorted(names, key=len, reverse=True))


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    if option.secondary_opts:
        return "on" if option.default else "off"
    if option.is_flag:
        return "off"
    return "" if option.default is None else f"`{option.default}`"


def _code(text: str) -> str:
    """Return a help as Markdown, with options as code."""
    text = re.sub(r"(?<![`\w])(--[a-z][a-z-]*)", r"`\1`", text)
    return re.sub(r"\b([A-Z_]+=[A-Z]+|\w+ -> \w+)\b", r"`\1`", text).replace("|", "\\|")


def main() -> None:
    for page in (REFERENCE / "cli.md", REFERENCE / "jobs.md"):
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"changed {page}")


if __name__ == "__main__":
    main()
