"""The public names: each is there, exported and documented."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

import spark_mq
import spark_mq.spark
from spark_mq import BufferedPublisher, ConsumerGroup, Lease, Queue, errors


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_public_methods_say_what_they_do() -> None:
    for kind in (Queue, ConsumerGroup, Lease, BufferedPublisher):
        for name in public(kind):
            assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


def test_the_package_exports_all_errors() -> None:
    assert set(errors.__all__) <= set(spark_mq.__all__)
    for name in errors.__all__:
        assert getattr(spark_mq, name) is getattr(errors, name)


@pytest.mark.parametrize("package", [spark_mq, spark_mq.spark], ids=lambda p: p.__name__)
def test_each_public_name_is_there_and_completion_shows_it(package: ModuleType) -> None:
    if package is spark_mq.spark:
        pytest.importorskip("pyspark")
    assert set(package.__all__) <= set(dir(package))
    declared = _declared(package)
    assert sorted(package._MODULES) == sorted(declared)
    for name, module in declared.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def _declared(package: ModuleType) -> dict[str, str]:
    """The names that type checkers see, by the imports that run only for them."""
    tree = ast.parse(Path(package.__file__ or "").read_text())
    return {
        alias.name: str(node.module)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.slow
def test_a_task_of_spark_loads_little() -> None:
    """Each Python worker of Spark waits for what it loads, in the first batch of a run."""
    code = "import sys, spark_mq.spark.stream_reader; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "spark_mq.parquet.reader" in found
    unwanted = ("deltalake", "spark_mq.queue", "spark_mq.operations", "spark_mq.storage")
    assert not [name for name in found if name.startswith(unwanted)]


@pytest.mark.slow
def test_a_queue_is_used_without_deltalake() -> None:
    code = (
        "import sys, spark_mq; queue = spark_mq.Queue.open(sys.argv[1]);"
        "queue.publish('a'); queue.group().lease('w').ack(); queue.sweep();"
        "assert 'deltalake' not in sys.modules"
    )
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue.create(f"{folder}/queue")
        queue.publish("a")
        queue.group().lease("w").ack()
        queue.sweep()  # creates all tables, which needs it
        subprocess.run([sys.executable, "-c", code, f"{folder}/queue"], check=True)
