"""The Spark session of the tests. Starting one takes tens of seconds.

It has Delta, unless its Spark is one that Delta has no JAR for (``make test-suite SUITE=spark43``).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.marks import without_delta
from support.processes import SPAWN
from support.servers import server
from support.stores import STORES


def spark_class(
    name: str, *arguments: object, port: int | None = None, log: Path, **env: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a class of Spark's in a JVM of its own; what it says goes to `log`."""
    import pyspark

    home = Path(pyspark.__file__).parent
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [home / "bin" / "spark-class", name, *arguments]
    return server(command, port, log, SPARK_HOME=str(home), **python, **env)


def plan_of(rows: Any) -> str:
    """Return the physical plan of a DataFrame."""
    return str(rows._jdf.queryExecution().executedPlan().toString())


def is_read_by_spark(rows: Any) -> bool:
    """Return whether Spark's Parquet reader gives rows, and no step of the plan asks Python."""
    plan = plan_of(rows)
    return "FileScan parquet" in plan and "Python" not in plan and "ExistingRDD" not in plan


def s3_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which Spark uses an S3 server, by Hadoop's S3A."""
    s3a = {
        "endpoint": options["AWS_ENDPOINT_URL"],
        "endpoint.region": options["AWS_REGION"],
        "access.key": options["AWS_ACCESS_KEY_ID"],
        "secret.key": options["AWS_SECRET_ACCESS_KEY"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        "spark.jars": ",".join(map(str, s3a_jars())),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
    }


def s3a_jars() -> list[Path]:
    """Return the JARs of S3A. The first call downloads 46 MB into ``.venv/stores``."""
    from pyspark.find_spark_home import _find_spark_home

    folder = STORES / "s3a"
    complete = folder / "complete"
    if not complete.exists():
        client = next(Path(_find_spark_home(), "jars").glob("hadoop-client-api-*.jar"))
        # What S3A needs of the SDK, instead of its bundle of 600 MB.
        sdk = ("s3", "s3-transfer-manager", "sts", "kms", "auth-crt", "apache-client")
        packages = [f"org.apache.hadoop:hadoop-aws:{client.stem.rpartition('-')[2]}",
                    *(f"software.amazon.awssdk:{name}:2.57.8" for name in sdk)]  # fmt: skip
        # In a process, because a session resolves packages only as its JVM starts.
        process = SPAWN.Process(
            target=_stop_session,
            args=(folder, {"spark.jars.packages": ",".join(packages),
                           "spark.jars.ivy": str(folder)}),
        )  # fmt: skip
        process.start()
        process.join()
        assert process.exitcode == 0, "the JARs of S3A could not be downloaded"
        complete.touch()
    return sorted((folder / "jars").glob("*.jar"))


def _stop_session(folder: Path, settings: Mapping[str, str]) -> None:
    new_session(folder, settings).stop()


def new_session(warehouse: Path, own: Mapping[str, str] | None = None) -> Any:
    """Start a session with settings of its own, or with Delta if its Spark has it."""
    from spark_mq.spark import session

    settings = {
        "spark.master": "local[2]",
        # The session lives for minutes: compiling better code takes longer than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.databricks.delta.snapshotPartitions": "1",
        # An idle query reports its progress each 10 seconds, and some tests wait for it.
        "spark.sql.streaming.noDataProgressEventInterval": "200",
        # Half of what conf/spark-defaults.conf says of it: the packages that Delta and S3A drag in
        # and Spark has already, and the SDK's bundle.
        "spark.jars.excludes": ",".join(
            f"org.apache.{name}"
            for name in (
                "hadoop:hadoop-client-api",
                "hadoop:hadoop-client-runtime",
                "logging.log4j:log4j-api",
                "logging.log4j:log4j-core",
                "logging.log4j:log4j-slf4j2-impl",
            )
        )
        + ",software.amazon.awssdk:bundle",
        **(own or {}),
    }
    delta = own is None and without_delta() is None
    started = session("spark_mq tests", settings, delta=delta, quiet=True)
    started.sparkContext.setLogLevel("OFF")  # the deaths that the tests arrange would fill pages
    return started


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = new_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_query_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop what a test left running."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
