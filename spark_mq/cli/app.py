"""Put the commands together, run one, and turn errors into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from spark_mq.cli import dead_letters, groups, health, messages, metrics, queues, top, workers
from spark_mq.cli.exits import FAILED, INTERRUPTED, OK, USAGE, exit_code_of
from spark_mq.cli.options import option

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
for part in (messages, workers, top, health, metrics):
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
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(
        level=level, stream=sys.stderr, format="spark-mq: %(levelname)s: %(message)s"
    )


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code."""
    debug = "--debug" in arguments or os.environ.get("SPARK_MQ_DEBUG") not in (None, "", "0")
    try:
        code = app(list(arguments), standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except BrokenPipeError:
        # The reader, such as `head`, has all that it wants. Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return INTERRUPTED
    except typer.Exit as error:
        return error.exit_code
    except TyperException as error:
        _complain(error.format_message())
        return error.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = exit_code_of(error)
        unknown = code == FAILED and not str(error)
        _complain(type(error).__name__ if unknown else str(error))
        return code


def _complain(text: str) -> None:
    """Print an error as one line."""
    print(f"spark-mq: error: {' '.join(text.split())}", file=sys.stderr)
