"""What the jobs share: their arguments, their session, and how they end."""

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
from spark_mq.util.validation import validate_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BAD_ARGUMENTS = (InvalidOption, InvalidSchema, QueueNotFound, NotAQueue, GroupNotFound)
_HERE = Path(__file__).resolve().parent
# A wheel keeps conf/ beside the jobs, the repository keeps it beside their folder.
_CONF = next((p for p in (_HERE / "conf", _HERE.parent / "conf") if p.is_dir()), _HERE / "conf")


class Parser(argparse.ArgumentParser):
    """Arguments of a job; what is wrong with them is told in one line."""

    def __init__(self, doc: str, *, several: bool = False, **options: Any) -> None:
        super().__init__(
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )
        told = "the queue: a path or URI (s3://..., abfss://..., gs://...)"
        if several:
            self.add_argument(
                "--queue",
                required=True,
                metavar="PATH",
                action="append",
                dest="queues",
                help=f"{told}; repeatable",
            )
        else:
            self.add_argument("--queue", required=True, metavar="PATH", help=told)
        self.add_argument(
            "--storage-option", action="append", default=[], type=pair, metavar="NAME=VALUE", dest="storage_options",
            help="option of the object store, as delta-rs names it; repeatable. Secrets are better left to the environment (AWS_..., "
            "AZURE_..., GOOGLE_...), where the list of processes does not show them",
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help tells more)\n")


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def duration(text: str) -> str:
    """The text of a duration, once it is known to be one."""
    try:
        validate_duration("", text)
    except InvalidOption:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration: give seconds, or 30s, 5m, '5 minutes', 250ms"
        ) from None
    return text


def session(name: str, *, module_path: str | None = None) -> SparkSession:
    """The session, with what spark-submit was given; under plain Python with the jobs' conf/, unless SPARK_CONF_DIR is set.

    ``module_path``: a directory from which Spark's Python workers can import too.
    """
    from pyspark.sql import SparkSession

    from spark_mq.spark import check_interpreter

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        os.environ.setdefault("SPARK_CONF_DIR", str(_CONF))
    builder = SparkSession.builder.appName(name)
    if module_path:
        path = os.pathsep.join(filter(None, [module_path, os.environ.get("PYTHONPATH")]))
        builder = builder.config("spark.executorEnv.PYTHONPATH", path)
    spark = builder.getOrCreate()
    check_interpreter(spark)
    return spark


def run(main: Callable[[], None]) -> NoReturn:
    """Runs a job. Ends with 0, 2 (wrong arguments) or 1; an error of spark_mq is one line, any other a traceback."""
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
        _fail(str(error), 2 if isinstance(error, _BAD_ARGUMENTS) else 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        told = _in_a_line(error)
        if told is None:
            raise
        _fail(*told)
    sys.exit(0)


def _in_a_line(error: Exception) -> tuple[str, int] | None:
    """Message and exit code for those of Spark's errors that need no traceback."""
    from pyspark.errors import AnalysisException, PySparkException

    # What spark_mq raised in a process of Spark's arrives as the text of a Spark error.
    if ours := re.search(r"spark_mq\.errors\.\w+: (.*)", str(error)):
        return ours[1], 1
    if isinstance(error, PySparkException) and (line := str(error).partition("\n")[0]):
        if isinstance(error, AnalysisException):  # a path or a column that is not there
            return line, 2
        if error.getCondition() == "USER_RAISED_EXCEPTION":
            return line.removeprefix("[USER_RAISED_EXCEPTION] "), 1
    return None


def _fail(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(code)
