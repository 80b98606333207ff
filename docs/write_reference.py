"""Write what follows from the code: tables and signatures of the reference, and types of settings.

    .venv/bin/python docs/write_reference.py

In a page, a marker begins a table, and ``<!-- end -->`` ends it. ``<!-- options: NAME -->`` is for
the options of a command, ``<!-- commands: NAME -->`` for the commands of a group, and
``<!-- job: NAME -->`` for the options of a job. ``<!-- settings: OWNER -->`` is for the settings of
a group or a queue, and ``<!-- figures: group -->`` for the statistics of a group. A marker
``<!-- api`` holds autodoc directives. What is written below it are the signatures for people who
read the page in a clone; ``conf.py`` puts the directives in their place. tests/docs fails if a page
or the types differ.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from spark_mq.interfaces.cli.app import app
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.util.setting_fields import Setting, settings_of

REFERENCE = Path(__file__).parent / "reference"
PAGES = ("api.md", "cli.md", "jobs.md", "settings.md", "states.md")
TYPES = Path(__file__).parents[1] / "spark_mq" / "ledger" / "setting_options.py"
OWNERS: dict[str, type[Any]] = {"group": GroupSettings, "queue": QueueSettings}
JOBS = Path(__file__).parents[1] / "jobs"
COMMON = {"help", "queue", "group", "yes", "storage_option", "output"}
_MARKED = re.compile(
    r"(<!-- (options|commands|job|settings|figures): ([\w-]+) -->\n).*?(<!-- end -->)", re.S
)
_API = re.compile(r"(<!-- api\n(.*?)-->\n).*?(<!-- end -->)", re.S)
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)\n((?:   :.*\n)*)", re.M)
_WIDTH = 95  # of a line of a signature, which a class indents by four
_OF_ALL_JOBS = {"help", "queue", "queues", "storage_options"}
_DURATION = re.compile(r"\b[0-9]+(?:ms|[smhd])\b")
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
    """Return a page with the tables and signatures as the code is now."""
    known = dict(commands())

    def table(found: re.Match[str]) -> str:
        start, kind, name, end = found.groups()
        head = ["option", "default", "meaning"]
        if kind == "commands":
            head, words = ["command", "does"], [one for one in known if one.startswith(f"{name} ")]
            rows = (row for word in words for row in _command_row(word, known[word]))
        elif kind == "job":
            rows = map(_job_row, job_options(name))
        elif kind == "settings":
            head = ["setting", "default", "values", "meaning"]
            rows = map(_setting_row, settings_of(OWNERS[name]).values())
        elif kind == "figures":
            head = ["field", "meaning"]
            figures = figures_of(GroupStats).items()
            rows = (f"| `{word}` | {one.doc.replace('``', '`')} |\n" for word, one in figures)
        else:
            rows = map(_option_row, own_options(known[name]))
        line = "| --- " * len(head)
        return f"{start}| {' | '.join(head)} |\n{line}|\n{''.join(rows)}{end}"

    return _API.sub(_signatures, _MARKED.sub(table, text))


def _signatures(found: re.Match[str]) -> str:
    start, directives, end = found.groups()
    stubs = "\n\n".join(_stub(*one) for one in _DIRECTIVE.findall(directives))
    return f"{start}```python skip: signatures\n{stubs}\n```\n{end}"


def _stub(kind: str, name: str, options: str) -> str:
    """Return what a directive documents, as the stub of a class, a function or a constant."""
    if kind == "module":
        module = importlib.import_module(name)
        members = [value for one, value in vars(module).items() if one in module.__all__]
        return "\n\n".join(_class_stub(one, []) for one in members)
    module_name, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module_name), last)
    if kind == "data":
        return f"{last}: {type(value).__qualname__}"
    if kind == "function":
        return _function_stub(last, value)
    listed = re.search(r":members:(.*)", options)
    members = listed[1].replace(",", " ").split() if listed else []
    if listed and not members:
        members = [one for one in vars(value) if one[0] != "_" and _function_of(value, one)]
    made = not is_dataclass(value) and not getattr(value, "_is_protocol", False)
    if made and ":class-doc-from:" not in options and "__init__" in vars(value):
        members.insert(0, "__init__")
    return _class_stub(value, members)


def _class_stub(owner: type[Any], members: Iterable[str]) -> str:
    bases = ", ".join(one.__name__ for one in owner.__bases__ if issubclass(one, BaseException))
    head = f"class {owner.__name__}({bases}):" if bases else f"class {owner.__name__}:"
    parts = [_first_line(owner)]
    if is_dataclass(owner):
        public = (one for one in fields(owner) if one.name[0] != "_")
        parts.append("\n".join(f"{one.name}: {one.type}" for one in public))
    for name in members:
        if function := _function_of(owner, name):
            parts.append(_decorator(owner, name) + _function_stub(name, function))
        else:
            parts.append(f"{name}: {owner.__annotations__[name]}")
    return head + "\n" + textwrap.indent("\n\n".join(filter(None, parts)), "    ")


def _function_of(owner: type[Any], name: str) -> Any:
    """Return the function behind a method or a property, or None if it is something else."""
    match inspect.getattr_static(owner, name, None):
        case property() as member:
            return member.fget
        case cached_property() as member:
            return member.func
        case classmethod() | staticmethod() as member:
            return member.__func__
        case member:
            return member if inspect.isfunction(member) else None


def _decorator(owner: type[Any], name: str) -> str:
    match inspect.getattr_static(owner, name, None):
        case property() | cached_property():
            return "@property\n"
        case classmethod():
            return "@classmethod\n"
        case staticmethod():
            return "@staticmethod\n"
        case _:
            return ""


def _function_stub(name: str, function: Any) -> str:
    """Return the signature of a function, and the first line of its docstring."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    word = "async def" if isinstance(tree, ast.AsyncFunctionDef) else "def"
    end = f") -> {ast.unparse(tree.returns)}:" if tree.returns else "):"
    arguments = list(_arguments(tree.args, source))
    line = f"{word} {name}({', '.join(arguments)}{end}"
    if len(line) > _WIDTH:
        line = f"{word} {name}(\n{_filled(arguments)}\n{end}"
    return f"{line}\n{textwrap.indent(_first_line(function), '    ')}"


def _arguments(arguments: ast.arguments, source: str) -> Iterator[str]:
    """Yield each argument of a function as its source has it."""
    placed = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(placed) - len(arguments.defaults)) + arguments.defaults
    for one, default in zip(placed, defaults, strict=True):
        yield _argument(one, default, source)
    if arguments.vararg:
        yield "*" + _argument(arguments.vararg, None, source)
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(one, default, source)
    if arguments.kwarg:
        yield "**" + _argument(arguments.kwarg, None, source)


def _argument(one: ast.arg, default: ast.expr | None, source: str) -> str:
    text = ast.get_source_segment(source, one) or one.arg
    if default is not None:
        text += f" = {ast.get_source_segment(source, default)}"
    return " ".join(text.split())


def _filled(arguments: list[str]) -> str:
    """Return arguments in lines that end between two of them."""
    lines = [""]
    for one in arguments:
        if lines[-1] and len(lines[-1]) + len(one) + 1 > _WIDTH - 4:
            lines.append("")
        lines[-1] += f"{one}, "
    return textwrap.indent("\n".join(line.rstrip() for line in lines), "    ")


def _first_line(thing: Any) -> str:
    """Return the first paragraph of a docstring as a docstring, in Markdown."""
    first = " ".join(inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].split())
    first = re.sub(r":\w+:`~?(?:spark_mq\.)?([^`]+)`", r"`\1`", first).replace("``", "`")
    return f'"""{first}"""' if first else "..."


def _setting_row(one: Setting) -> str:
    default = "none" if one.default is None else f"`{one.shown_default}`"
    fixed = "" if one.fixed is None or not one.argument else ". Fixed"
    default = default if one.argument else "not an argument"
    return f"| `{one.name}` | {default} | {one.values}{fixed} | {one.doc} |\n"


def types() -> str:
    """Return the module that types the settings which a user gives."""
    own = [one for one in settings_of(QueueSettings).values() if one.argument]
    return _TYPES.format(
        group=_keys(settings_of(GroupSettings).values()),
        queue=_keys(one for one in own if one.fixed is None),
        fixed=_keys(one for one in own if one.fixed is not None),
    )


def _keys(settings: Iterable[Setting]) -> str:
    pairs = ((one.name, one.kind.accepts + " | None" * one.optional) for one in settings)
    return "\n".join(f"    {name}: {kind}" for name, kind in pairs)


_TYPES = '''"""Type the settings that a user gives. Written by ``docs/write_reference.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from spark_mq.util.clock import Duration


class GroupOptions(TypedDict, total=False):
    """Settings of a group, also the defaults of new groups."""

{group}


class QueueOptions(TypedDict, total=False):
    """Settings of a queue that may change."""

{queue}


class CreateOptions(QueueOptions, GroupOptions, total=False):
    """Settings of a new queue, and the defaults of its groups."""

{fixed}
'''


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
    default = _DURATION.sub(r"`\g<0>`", default)
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
    TYPES.write_text(types(), encoding="utf-8")
    for page in (REFERENCE / name for name in PAGES):
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"changed {page}")


if __name__ == "__main__":
    main()
