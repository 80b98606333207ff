"""Spark Declarative Pipelines: `examples/pipeline`, run by the command `spark-pipelines`.

With --pipelines only: `make test-suite` has the packages, by SUITE=spark43 and SUITE=connect.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from support.blocks import ROOT

from spark_mq import Queue

pytestmark = pytest.mark.slow

OF_SPARK = ("Python worker failed to connect back", "Illegal size")
"""Errors of Spark itself on a busy machine: a process starts too slowly, two flows race."""


class Pipeline:
    """The example, with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pipeline"
        self.queues = folder / "queues"
        shutil.copytree(ROOT / "examples" / "pipeline", self.folder)
        spec = self.folder / "spark-pipeline.yml"
        text = spec.read_text()
        assert "file:///tmp/pipeline/" in text
        spec.write_text(text.replace("file:///tmp/pipeline/", f"file://{folder}/"))
        self.incoming = Queue.create(self.queues / "incoming", durable=False)
        self.large = Queue.create(self.queues / "large", durable=False)

    def publish(self, *amounts: int) -> None:
        self.incoming.publish([json.dumps({"amount": amount}) for amount in amounts])

    def run(self, *options: str) -> str:
        """Run the command, and return what a person sees of it."""
        home = Path(pyspark.__file__).parent
        env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "QUEUES": str(self.queues),
        }
        # A catalog that outlives the run: a folder in the current one.
        catalog = ("--conf", "spark.sql.catalogImplementation=hive")
        for _ in range(3):
            ended = subprocess.run(
                [home / "bin" / "spark-pipelines", "run", *catalog, *options],
                cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
            )  # fmt: skip
            if ended.returncode == 0:
                return ended.stdout
            assert any(error in ended.stdout for error in OF_SPARK), ended.stdout[-8_000:]
        raise AssertionError(ended.stdout[-8_000:])

    def table(self) -> list[str]:
        """Return the amounts in the table."""
        files = sorted((self.folder / "spark-warehouse" / "orders").glob("*.parquet"))
        return sorted(text for file in files for text in pq.read_table(file)["amount"].to_pylist())

    def published(self) -> list[bytes]:
        """Return what the sink has published."""
        return sorted(bytes(message.value) for message in self.large.peek())


def test_a_pipeline_reads_and_publishes_and_says_why_a_refreshed_table_lacks_messages(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.publish(20, 150, 300)
    pipeline.run()
    assert pipeline.table() == ["150", "20", "300"]
    assert pipeline.published() == [b'{"amount": 150}', b'{"amount": 300}']
    for group in ("pipeline-orders", "pipeline-large"):
        stats = pipeline.incoming.group(group).stats()
        assert (stats.acked, stats.ready, stats.leased) == (3, 0, 0)

    pipeline.publish(70)
    out = pipeline.run("--full-refresh-all")
    assert pipeline.table() == ["70"], "the group does not deliver what it has acked"
    assert len(pipeline.published()) == 2
    for group in ("pipeline-orders", "pipeline-large"):
        assert out.count(f"a new checkpoint begins in group '{group}' of queue") == 1
    assert "which has already settled 3 messages. The stream will not get them again" in out

    # What the warning advises, followed to the letter.
    advised = re.search(r"run `(spark-mq group seek pipeline-orders .*?)`", out)
    assert advised is not None
    command = shlex.split(advised[1])[1:]
    subprocess.run([sys.executable, "-m", "spark_mq", *command], check=True, timeout=120)
    out = pipeline.run("--full-refresh", "orders")
    assert pipeline.table() == ["150", "20", "300", "70"]
    assert "a new checkpoint begins in group 'pipeline-orders'" not in out
    assert len(pipeline.published()) == 2, "the other flow kept its group"
