"""Run a command, and turn an error into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.exceptions import TyperException

from spark_mq.cli import (
    changes,
    dead_letters,
    groups,
    health,
    lanes,
    messages,
    metrics,
    queues,
    throughput,
    top,
    web,
    workers,
)
from spark_mq.cli.exits import INTERRUPTED, OK, USAGE, exit_code_of
from spark_mq.cli.hints import CommandFormatter, text_for_commands
from spark_mq.cli.options import option
from spark_mq.cli.output import complain
from spark_mq.util.show import printable

__all__ = ["app", "run"]

app = typer.Typer(
    name="spark-mq",
    help="Look after queues of spark_mq. Each option is also an environment variable SPARK_MQ_*.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done, 1 failed or unhealthy, 2 wrong arguments, 3 not found, "
        "4 the store failed, 130 interrupted."
    ),
)
for part in (messages, lanes, workers, top, throughput, changes, health, metrics, web):
    part.register(app)
app.add_typer(queues.app, name="queue")
app.add_typer(groups.app, name="group")
app.add_typer(dead_letters.app, name="dlq")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    debug: Annotated[bool, option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[bool, option("--verbose", "-v", help="Log to stderr.")] = False,
    version: Annotated[bool, option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from spark_mq import __version__

        print(__version__)
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(USAGE)
    context.obj = {"debug": debug}
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
    """Run one command and return its exit code."""
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
    """Print an error and return its exit code."""
    if isinstance(error, TyperException):
        text = error.format_message()
        if text.startswith("Usage:"):  # a command without a subcommand
            print(text, file=sys.stderr)
        else:
            complain(text)
        return error.exit_code
    if "--debug" in arguments or os.environ.get("SPARK_MQ_DEBUG") not in (None, "", "0"):
        text = "".join(traceback.format_exception(error))
        print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
    complain(text_for_commands(error))
    return exit_code_of(error)


def _end_of_pipe() -> int:
    """Return the exit code for a reader that has read enough, such as `head`."""
    # Python flushes stdout again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return OK
