"""spark_mq.spark.session: a session in which pasted code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.blocks import ROOT
from support.marks import without_delta
from support.rule_variants import returns, rule_variant

from spark_mq.errors import InvalidOption
from spark_mq.spark import session

PROGRAM = """
import sys
from spark_mq import Queue
from spark_mq.spark import session

spark = session("pasted", {"spark.master": "local[1]", "spark.ui.enabled": "false"})
folder = sys.argv[1]
Queue.create(f"{folder}/orders").group("g").ensure()
spark.createDataFrame([("a",)], "value string").write.format("spark_mq").mode("append").save(
    f"{folder}/orders"
)
messages = spark.read.format("spark_mq").option("consumerGroup", "g").load(f"{folder}/orders")
if sys.argv[2] == "delta":
    messages.write.format("delta").save(f"{folder}/table")
    messages = spark.read.format("delta").load(f"{folder}/table")
print("read", messages.count())
"""


@pytest.mark.slow
def test_a_fresh_program_needs_no_variable_and_no_configuration(tmp_path: Path) -> None:
    delta = without_delta() is None
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK")) or name.endswith("MAVEN")
    }
    own["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "delta" if delta else "plain"],
        env=own, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "read 1" in done.stdout, done.stderr[-3_000:]
    assert "registered data source" not in done.stderr, "Spark has found the source by itself"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("spark_mq started")]
    assert f"Its workers run {sys.executable}." in line
    assert ("with Delta Lake" if delta else "has no JAR for Spark 4.3") in line


def test_a_session_that_runs_is_used_as_it_is(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session("other").sparkContext.appName == spark.sparkContext.appName
    assert capsys.readouterr().err.startswith(f"spark_mq uses Spark {spark.version} with")
    session(quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(without_delta() is None, reason="this Spark has Delta")
def test_delta_is_refused_on_a_spark_that_it_has_no_jar_for() -> None:
    with pytest.raises(InvalidOption, match=r"no JAR for Spark 4\.3.*pip install '.*delta.*'"):
        session(delta=True)


class Asked(Exception):
    """In the place of a session."""


@pytest.fixture
def asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return what ``session`` asks Spark for, beside the user's ``spark-defaults.conf``."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.jars.packages org.example:b:1\n"
        "spark.jars.excludes=org.slf4j:slf4j-api\n"
        "spark.sql.extensions: org.example.Extensions\n"
    )

    def get_or_create(builder: Any) -> None:
        raise Asked

    def ask(settings: Mapping[str, str]) -> dict[str, str]:
        asked: dict[str, str] = {}
        config = lambda builder, *given: asked.update([given]) or builder  # noqa: E731
        monkeypatch.setattr(SparkSession.Builder, "config", config)
        with rule_variant("has_java", returns(False)), pytest.raises(Asked):
            session("x", settings, delta=True)
        assert asked.pop("spark.app.name") == "x"
        return asked

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
    return ask


@pytest.mark.delta
def test_packages_and_extensions_of_the_user_stay(asked_for: Callable[..., dict[str, str]]) -> None:
    changed = asked_for({"spark.jars.packages": "org.example:a:1", "spark.app.id": "x"})
    assert changed["spark.jars.packages"].startswith("org.example:a:1,io.delta:delta-spark_4.2_")
    assert changed["spark.jars.excludes"].count("org.slf4j:slf4j-api") == 1
    assert changed["spark.sql.extensions"] == (
        "org.example.Extensions,io.delta.sql.DeltaSparkSessionExtension"
    )
    assert changed["spark.app.id"] == "x"
    assert changed["spark.databricks.delta.snapshotPartitions"] == "2"  # on one machine
    on_yarn = asked_for({"spark.master": "yarn"})
    assert "spark.databricks.delta.snapshotPartitions" not in on_yarn
    assert asked_for(changed) == changed
