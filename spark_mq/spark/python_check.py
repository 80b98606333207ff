"""Check that the Python of Spark's workers can load spark_mq.

Otherwise a query fails after a long wait. The error is "Python worker failed to connect back", or
an import error from deep inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

from spark_mq.errors import InvalidOption

__all__ = ["check_interpreter"]

_NEEDED = "import pyarrow, deltalake, spark_mq.spark.source"
_checked: set[str] = set()


def check_interpreter(spark: Any) -> None:
    """Check that Spark's Python workers can load spark_mq.

    Each interpreter that passes is checked once in a process.

    Parameters
    ----------
    spark
        The session.

    Raises
    ------
    InvalidOption
        They cannot. The error names the interpreter and the fix.

    Examples
    --------
    >>> check_interpreter(spark)  # doctest: +SKIP
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
