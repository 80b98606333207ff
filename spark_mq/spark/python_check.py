"""Whether the Python that Spark starts its workers with can load spark_mq.

One that cannot ends in "Python worker failed to connect back" or an import error from deep inside,
after a long wait.
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
    """Raises InvalidOption, naming the interpreter and the fix, if workers could not load spark_mq.
    Checked once for each interpreter."""
    name = worker_python(spark)
    path = shutil.which(name)
    if path == sys.executable or path in _checked:
        return
    if path is None:
        raise InvalidOption(
            f"Spark would start its Python workers with {name!r}, which is not there: set "
            f"PYSPARK_PYTHON={sys.executable}",
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
            f"Spark would start its Python workers with {path}, which cannot load spark_mq "
            f"({problem}): install spark-mq there, "
            f"or set PYSPARK_PYTHON={sys.executable} before the session "
            f"starts",
            option="PYSPARK_PYTHON",
            value=path,
        )
    _checked.add(path)


def worker_python(spark: Any) -> str:
    """The command that the session starts Python workers with."""
    try:
        return str(spark.sparkContext.pythonExec)
    except Exception:  # Spark Connect: the server decides
        return os.environ.get("PYSPARK_PYTHON", sys.executable)
