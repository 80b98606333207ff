"""Start a Spark session that can read and write queues, with Delta Lake if it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.spark.private_spark import has_java, has_source
from spark_mq.spark.source import SparkMQDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without it a query fails after a long wait, with "Python worker failed to connect back".
_NEEDED: Final = "import pyarrow, deltalake, spark_mq.spark.source"
_checked = set[str]()
_INSTALL: Final = "Run: pip install 'spark-mq[spark,delta]'"
_SUPPORTED: Final = "4.2"  # the version of Spark for which delta-spark 4.4.0 has a JAR
_PACKAGES: Final = "spark.jars.packages"
_EXCLUDES: Final = "spark.jars.excludes"
_EXTENSIONS: Final = "spark.sql.extensions"
_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# With Delta's own 50 tasks, the first look at a small table takes seconds on one machine.
_SNAPSHOT_TASKS: Final = "spark.databricks.delta.snapshotPartitions"
_LOCAL_SNAPSHOT_TASKS: Final = "2"
# Delta asks for these, in older versions than Spark's own. They are half of the download.
_IN_SPARK: Final = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.slf4j:slf4j-api",
)


def session(
    name: str = "spark_mq",
    settings: Mapping[str, str] | None = None,
    *,
    delta: bool | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Start a Spark session for queues, or prepare the one that runs.

    Spark's workers get the Python of this program unless ``PYSPARK_PYTHON`` names another one. The
    source is registered (see `register`). A new session gets Delta Lake
    for SQL, time travel and sinks, whose JARs it downloads from Maven at its first start; queues
    alone don't need it. The packages and the Python of a session that runs can no longer change.

    Parameters
    ----------
    name
        The name of the application, if a session starts.
    settings
        More settings of Spark, such as ``{"spark.master": "local[2]"}``. They go before those of
        this function.
    delta
        Whether the session must have Delta Lake. Default: if delta-spark is installed and has a JAR
        for this version of Spark.
    quiet
        Do not print the line about the session to stderr.

    Raises
    ------
    InvalidOption
        The session cannot have Delta, or the Python of its workers cannot load spark_mq. The error
        names the fix.
    """
    from pyspark.sql import SparkSession

    own = dict(settings or {})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    runs = SparkSession.getActiveSession() is not None
    # Packages are read when Java starts. Spark Connect has them at the server.
    can_add = not (
        runs
        or has_java()
        or "PYSPARK_GATEWAY_PORT" in os.environ
        or "spark.remote" in own
        or "SPARK_REMOTE" in os.environ
    )
    if can_add and delta is not False:
        problem = _why_no_delta()
        if problem is None:
            own = delta_settings(own, _defaults())
        elif delta:
            raise problem
    builder = SparkSession.builder
    if not runs:
        builder = builder.appName(name)
    for key, value in own.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    has_delta = "delta" in (spark.conf.get(_CATALOG, "") or "").lower()
    if delta and not has_delta:
        raise _why_no_delta() or InvalidOption(
            "the session that runs has no Delta Lake, and it can no longer be added. Call "
            "session() before the program starts Spark in another way. With spark-submit, give it "
            "--properties-file with conf/spark-defaults.conf",
            option="delta",
            value=delta,
        )
    register(spark)
    if not quiet:
        print(_describe(spark, has_delta=has_delta, started=not runs), file=sys.stderr)
    return spark


def register(spark: SparkSession) -> None:
    """Register ``format("spark_mq")`` with a session.

    If spark_mq is installed for the driver's Python, Spark finds the source by itself, as
    ``pyspark_mq``. Raise InvalidOption, as :func:`check_interpreter`, if the Python of the
    session's workers cannot load spark_mq.
    """
    check_interpreter(spark)
    if not has_source(spark, SparkMQDataSource.name()):  # Spark warns of a second one, often
        spark.dataSource.register(SparkMQDataSource)


def _why_no_delta() -> InvalidOption | None:
    """Return the reason why a session cannot have Delta, or None if it can."""
    from pyspark import __version__ as spark_version

    try:
        installed = version("delta-spark")
    except PackageNotFoundError:
        return InvalidOption(
            f"Delta in Spark needs delta-spark, which is not installed. {_INSTALL}",
            option="delta",
            value=True,
        )
    if not spark_version.startswith(_SUPPORTED + "."):
        return InvalidOption(
            f"Delta Lake {installed} has no JAR for Spark {spark_version}, only for {_SUPPORTED}. "
            f"{_INSTALL}, which brings pyspark {_SUPPORTED}. Or leave Delta out: only SQL on a "
            "queue's tables and Delta sinks need it",
            option="delta",
            value=True,
        )
    return None


def delta_settings(settings: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return settings with Delta's, beside the packages and extensions that Spark gets anyhow."""
    usual = {**defaults, **settings}
    package = f"io.delta:delta-spark_{_SUPPORTED}_2.13:{version('delta-spark')}"
    added = {_PACKAGES: _joined(usual.get(_PACKAGES), package, has="io.delta:delta-spark")}
    added[_EXTENSIONS] = _joined(usual.get(_EXTENSIONS), _DELTA_EXTENSION)
    added[_EXCLUDES] = usual.get(_EXCLUDES, "")
    for excluded in _IN_SPARK:
        added[_EXCLUDES] = _joined(added[_EXCLUDES], excluded)
    added[_CATALOG] = usual.get(_CATALOG, _DELTA_CATALOG)
    if usual.get("spark.master", "local").startswith("local"):
        added[_SNAPSHOT_TASKS] = usual.get(_SNAPSHOT_TASKS, _LOCAL_SNAPSHOT_TASKS)
    return {**settings, **added}


def _joined(items: str | None, item: str, *, has: str | None = None) -> str:
    """Return a list in Spark's form with one more item, unless ``has`` or the item is in it."""
    if not items:
        return item
    return items if (has or item) in items else f"{items},{item}"


def _defaults() -> dict[str, str]:
    """Read spark-defaults.conf, because settings of a session replace those of the file."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and Path(home, "conf"))
    try:
        text = Path(folder, "spark-defaults.conf").read_text("utf-8") if folder else ""
    except OSError:
        return {}
    lines = (line.strip() for line in text.splitlines())
    pairs = (re.split(r"[\s=:]+", line, maxsplit=1) for line in lines if line and line[0] != "#")
    return {pair[0]: pair[-1] for pair in pairs}


def _describe(spark: SparkSession, *, has_delta: bool, started: bool) -> str:
    delta = "without Delta Lake"
    if has_delta:
        delta = "with Delta Lake"
    elif started and (problem := _why_no_delta()) is not None:
        delta += f" ({str(problem).partition('. ')[0]})"
    verb = "started" if started else "uses"
    return (
        f"spark_mq {verb} Spark {spark.version} {delta}. Its workers run {worker_python(spark)}. "
        'format("spark_mq") is registered.'
    )


def check_interpreter(spark: Any) -> None:
    """Check that Spark's Python workers can load spark_mq.

    Each interpreter that passes is checked once in a process. Raise InvalidOption, with the fix.
    """
    name = worker_python(spark)
    path = shutil.which(name)
    if path == sys.executable or path in _checked:
        return
    if path is None:
        raise InvalidOption(
            f"Spark's Python workers cannot start: there is no {name!r}. Set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts",
            option="PYSPARK_PYTHON",
            value=name,
        )
    try:
        tried = subprocess.run(
            [path, "-c", _NEEDED],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        problem = tried.stderr.strip().rpartition("\n")[2] if tried.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        raise InvalidOption(
            f"Spark's Python workers ({path}) cannot load spark_mq: {problem}. Install spark-mq "
            f"there, or set PYSPARK_PYTHON={sys.executable} before the session starts",
            option="PYSPARK_PYTHON",
            value=path,
        )
    _checked.add(path)


def worker_python(spark: Any) -> str:
    """Return the command that the session starts Python workers with."""
    try:
        return str(spark.sparkContext.pythonExec)
    except Exception:  # Spark Connect. The server decides.
        return os.environ.get("PYSPARK_PYTHON", sys.executable)
