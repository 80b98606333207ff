"""The defaults that the documentation names are those that work, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.handles import Killed
from support.rule_variants import first, instead, rule_variant
from support.tables import as_in_a_store

from spark_mq import Queue

OPTIONS = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


@pytest.mark.parametrize(("in_a_store", "seconds"), [(False, 0.5), (True, 2.0)])
def test_who_waits_looks_twice_a_second_and_each_two_seconds_over_a_store(
    tmp_path: Path, in_a_store: bool, seconds: float
) -> None:
    queue = Queue.create(tmp_path / "queue", durable=False)
    queue = as_in_a_store(queue) if in_a_store else queue
    waits = list[float]()

    def wait(_: Any, asked: Any) -> None:
        waits.append(asked.poll)
        raise Killed

    with rule_variant("wait_for_lease", instead(wait)), pytest.raises(Killed):
        queue.group().lease("w", wait="1m")
    opening = first(lambda a: waits.extend((a.linger, a.demand.most)))
    with rule_variant("OpenTasks.__init__", opening):
        queue.group().work(lambda _: None, mode="message", max_messages=7, until="empty")
    assert waits == [seconds, 0.1, 7], "a finished message waits 100 ms for others, at most 7"


def documented() -> dict[str, list[str]]:
    """The default values of the source's options, by option."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", OPTIONS.read_text(), re.M)
    return {name: re.findall(r"`([^`]*)`", default) for name, default in rows}


@pytest.mark.parametrize("path", ["/tmp/queue", "s3://bucket/queue"])
def test_the_source_has_the_defaults_that_its_page_names(path: str) -> None:
    source = pytest.importorskip("spark_mq.spark.options")
    read_options = source.ReadOptions
    table = {name: found for name, found in documented().items() if name in source.READ_OPTIONS}
    defaults = {name: found[0] for name, found in table.items() if found}
    del defaults["visibilityTimeout"], defaults["consumerGroup"]  # the group's, and noted if given
    defaults["idlePollInterval"] = table["idlePollInterval"]["://" in path]
    given = {name.lower(): value for name, value in defaults.items()}
    expected = read_options.parse({"path": path, **given})
    assert read_options.parse({"path": path}) == expected
    assert [table["consumerGroup"][0]] == [expected.group]
