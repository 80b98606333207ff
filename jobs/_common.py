"""The jobs' common arguments, their session, and their exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spark_mq.errors import (
    GroupNotFound,
    InvalidOption,
    InvalidSchema,
    NotAQueue,
    QueueNotFound,
    SparkMQError,
)
from spark_mq.util.failures import safe_text
from spark_mq.util.show import encode_anything
from spark_mq.util.validation import validate_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BAD_ARGUMENTS = (InvalidOption, InvalidSchema, QueueNotFound, NotAQueue, GroupNotFound)
_HERE = Path(__file__).resolve().parent
# A wheel keeps conf/ beside the jobs, the repository keeps it beside their folder.
_CONF = next((p for p in (_HERE / "conf", _HERE.parent / "conf") if p.is_dir()), _HERE / "conf")


class Parser(argparse.ArgumentParser):
    """Arguments of a job. An error of theirs is one line."""

    def __init__(self, doc: str, *, several: bool = False, **options: Any) -> None:
        super().__init__(
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )
        queue = "the queue: a path or URI (s3://..., abfss://..., gs://...)"
        if several:
            self.add_argument(
                "--queue",
                required=True,
                metavar="PATH",
                action="append",
                dest="queues",
                help=f"{queue}; repeatable",
            )
        else:
            self.add_argument("--queue", required=True, metavar="PATH", help=queue)
        self.add_argument(
            "--storage-option", action="append", default=[], type=pair, metavar="NAME=VALUE",
            dest="storage_options",
            help="option of the object store, as delta-rs names it; repeatable. Give secrets by "
                 "the environment (AWS_..., AZURE_..., GOOGLE_...), because the list of "
                 "processes shows arguments",
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def duration(text: str) -> str:
    """Return the text of a duration after a check."""
    try:
        validate_duration("", text)
    except InvalidOption:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration: give seconds, or 30s, 5m, '5 minutes', 250ms"
        ) from None
    return text


def session(name: str, *, module_path: str | None = None) -> SparkSession:
    """Return the session. Plain Python uses the jobs' conf/ unless SPARK_CONF_DIR is set.

    Delta Lake comes from there. ``module_path`` is a directory from which Spark's Python workers
    can import too.
    """
    from spark_mq import spark

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        os.environ.setdefault("SPARK_CONF_DIR", str(_CONF))
    path = os.pathsep.join(filter(None, [module_path, os.environ.get("PYTHONPATH")]))
    settings = {"spark.executorEnv.PYTHONPATH": path} if module_path else {}
    return spark.session(name, settings, delta=False, quiet=True)


def run(main: Callable[[], None]) -> NoReturn:
    """Run a job and exit with 0, 2 (wrong arguments) or 1.

    An error of spark_mq is one line. Any other one is a traceback.
    """
    encode_anything(sys.stdout, sys.stderr)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stdout,
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("DataFrameQueryContextLogger").setLevel(
        logging.CRITICAL
    )  # pyspark's errors, once more, as JSON
    try:
        main()
    except SparkMQError as error:
        _fail(safe_text(error), 2 if isinstance(error, _BAD_ARGUMENTS) else 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        line = _in_a_line(error)
        if line is None:
            raise
        _fail(*line)
    sys.exit(0)


def _in_a_line(error: Exception) -> tuple[str, int] | None:
    """Return message and exit code of an error that needs no traceback, or None."""
    from pyspark.errors import AnalysisException, PySparkException

    # An error of spark_mq in another process arrives as the text of a Spark error.
    if ours := re.search(r"spark_mq\.errors\.\w+: (.*)", safe_text(error)):
        return ours[1], 1
    if isinstance(error, PySparkException) and (line := str(error).partition("\n")[0]):
        if isinstance(error, AnalysisException):  # a path or a column is missing
            return line, 2
        if error.getCondition() == "USER_RAISED_EXCEPTION":
            return line.removeprefix("[USER_RAISED_EXCEPTION] "), 1
    return None


def _fail(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(code)
