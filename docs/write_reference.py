"""Write the tables of commands and options into reference/cli.md, between markers.

    .venv/bin/python docs/write_reference.py

``<!-- options: NAME -->`` begins the options of a command, ``<!-- commands: NAME -->`` the commands
of a group, and ``<!-- end -->`` ends both. tests/docs fails if the page differs from the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from spark_mq.cli.app import app

PAGE = Path(__file__).parent / "reference" / "cli.md"
COMMON = {"help", "queue", "group", "yes", "storage_option", "output"}
_MARKED = re.compile(r"(<!-- (options|commands): ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its words, as the program has it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def rewritten(text: str) -> str:
    """Return the page with the tables as the commands are now."""
    known = dict(commands())

    def table(found: re.Match[str]) -> str:
        start, kind, name, end = found.groups()
        if kind == "options":
            return f"{start}{_options_table(known[name])}{end}"
        rows = (row for word, one in known.items() if word.startswith(f"{name} ")
                for row in _command_row(word, one))  # fmt: skip
        return f"{start}| command | does |\n| --- | --- |\n{''.join(rows)}{end}"

    return _MARKED.sub(table, text)


def _options_table(command: Any) -> str:
    rows = [f"| {_names(one)} | {_default(one)} | {_code(_lower(one.help))} |\n"
            for one in own_options(command)]  # fmt: skip
    return f"| option | default | meaning |\n| --- | --- | --- |\n{''.join(rows)}"


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
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before)
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
        print(f"changed {PAGE}")


if __name__ == "__main__":
    main()
