"""Run a command of the table, and turn an error into one line and an exit code."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import typer
from typer.exceptions import TyperException

from spark_mq.interfaces.cli.command import COMMANDS, option
from spark_mq.interfaces.cli.output import (
    INTERRUPTED,
    OK,
    USAGE,
    CommandFormatter,
    complain,
    exit_code_of,
)
from spark_mq.util.failures import safe_text, traceable
from spark_mq.util.show import printable

# Each module enters its commands in the table, in the order of the help.
_MODULES: Final = (
    "publish",
    "messages",
    "letters",
    "workers",
    "top",
    "watch",
    "queues",
    "groups",
)
_GROUPS: Final = {
    "queue": "List, create, describe, configure, purge and drop queues.",
    "group": "Look at groups, configure and move them.",
    "schedule": "List, make, pause, resume and remove schedules.",
    "dlq": "Look at dead letters, repair and redrive them.",
}


def _make_app() -> typer.Typer:
    for name in _MODULES:
        import_module(f"spark_mq.interfaces.cli.{name}")
    made = typer.Typer(
        name="spark-mq",
        help="Look after queues of spark_mq.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=(
            "Exit codes: 0 done, 1 failed or unhealthy, 2 wrong arguments, 3 not found, "
            "4 the store failed, 130 interrupted."
        ),
    )
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in _GROUPS.items()}
    for name, group in groups.items():
        made.add_typer(group, name=name)
    for entry in COMMANDS.values():
        within, _, name = entry.name.rpartition(" ")
        groups.get(within, made).command(name)(entry.function())
    return made


app = _make_app()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    debug: bool = option(
        "Show the traceback of an error.", "--debug", envvar="SPARK_MQ_DEBUG", default=False
    ),
    verbose: bool = option(
        "Log to stderr.", "--verbose", "-v", envvar="SPARK_MQ_VERBOSE", default=False
    ),
    version: bool = option("Print the version.", "--version", default=False),
) -> None:
    if version:
        from spark_mq import __version__

        print(__version__)
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(USAGE)
    context.with_resource(_log_to_stderr(logging.INFO if verbose else logging.WARNING))


@contextmanager
def _log_to_stderr(level: int) -> Iterator[None]:
    """Log to stderr while a command runs, without a trace in the process of a caller."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(CommandFormatter("spark-mq: %(levelname)s: %(message)s"))
    handler.setLevel(level)
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def run(arguments: Sequence[str]) -> int:
    try:
        code = app(list(arguments), prog_name="spark-mq", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _end_of_pipe()
    except SystemExit as end:
        # typer exits with 1 if the pipe is closed.
        piped = isinstance(end.__context__, BrokenPipeError)
        code = _end_of_pipe() if piped else end.code
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        code = INTERRUPTED
    except typer.Exit as error:
        code = error.exit_code
    except Exception as error:
        code = _failed(error, arguments)
    return code if isinstance(code, int) else OK


def _failed(error: Exception, arguments: Sequence[str]) -> int:
    if isinstance(error, TyperException):
        text = _with_suggestion(error)
        if text.startswith("Usage:"):  # a command without a subcommand
            print(text, file=sys.stderr)
        else:
            complain(text)
        return error.exit_code
    if "--debug" in arguments or os.environ.get("SPARK_MQ_DEBUG") not in (None, "", "0"):
        text = "".join(traceback.format_exception(traceable(error)))
        print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
    complain(safe_text(error) or type(error).__name__)
    return exit_code_of(error)


def _with_suggestion(error: TyperException) -> str:
    """Return the text of an error, with what the caller may have meant."""
    text, context = error.format_message(), getattr(error, "ctx", None)
    if text.startswith("Got unexpected extra") and context is not None:
        options = {name for parameter in context.command.params for name in parameter.opts}
        return f"{text}: give the queue by -q/--queue" if "-q" in options else text
    unknown = re.fullmatch(r"(No such command '([\w-]+)'\.)( Did you mean .*)?", text)
    if unknown is None:
        return text
    said, word, guess = unknown.groups()
    meant = [name for name in COMMANDS if name.rpartition(" ")[2] == word and not guess]
    commands = " or ".join(f"`spark-mq {name}`" for name in meant)
    return f"{said} Use {commands}" if meant else text


def _end_of_pipe() -> int:
    """Return the exit code for a reader that has read enough, such as `head`."""
    # Python flushes stdout again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return OK
