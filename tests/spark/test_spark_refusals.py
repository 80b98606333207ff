"""Bad input through Spark: a clear error that names option, value and fix, and nothing changed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.harness import Stream, numbered, versions

from spark_mq import Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark import check_interpreter


@pytest.fixture
def filled(queue: Queue) -> Queue:
    queue.publish(numbered(3))
    return queue


def test_a_stream_with_a_bad_option_is_refused(spark: Any, filled: Queue) -> None:
    """Spark hands the names of options over in lower case.

    tests/unit/spark/test_read_options.py has all that is refused, without a session.
    """
    before = versions(filled)
    reader = spark.readStream.format("spark_mq").options(path=filled.path, consumerGrup="g")
    with pytest.raises(Exception, match=r"InvalidOption.*consumergrup.*mean 'consumerGroup'"):
        reader.load()
    assert versions(filled) == before
    assert filled.groups() == []


def test_a_batch_without_lease_id_is_refused_and_not_acked(stream: Stream, filled: Queue) -> None:
    called: list[int] = []
    with pytest.raises(Exception, match=r"no column 'lease_id'.*Keep lease_id and sequence"):
        stream.settle_with(
            lambda batch, lease: called.append(1), frame=stream.frame().select("value", "sequence")
        )
    assert called == []
    stats = stream.group.stats()
    assert (stats.acked, stats.leased) == (0, 3)


# -- the workers' interpreter: no session is needed to see what it would start them with


def session_with(python: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))


def test_an_interpreter_without_our_packages_is_refused_by_name_with_the_fix(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "python-without-packages"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(InvalidOption, match="No module named") as caught:
        check_interpreter(session_with(str(bare)))
    assert str(bare) in str(caught.value)
    assert f"PYSPARK_PYTHON={sys.executable}" in str(caught.value)


def test_an_interpreter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"there is no .*Set PYSPARK_PYTHON="):
        check_interpreter(session_with(str(tmp_path / "python9")))


def test_the_interpreter_of_this_session_is_fine(spark: Any) -> None:
    check_interpreter(spark)
