"""What a group's handle gives to Spark's source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_mq import ConsumerGroup, InvalidOption, Queue

pytest.importorskip("pyspark")


class Session:
    """A session that returns the options of a read, as Spark passes them on."""

    def __init__(self) -> None:
        self.read = self.readStream = self

    def format(self, name: str) -> Session:
        assert name == "spark_mq"
        return self

    def options(self, **given: str) -> Session:
        self._given = given
        return self

    def load(self) -> dict[str, str]:
        assert all(isinstance(text, str) for text in self._given.values())
        return self._given


@pytest.fixture
def group(tmp_path: Path) -> ConsumerGroup:
    options = {"aws_region": "eu-central-1"}
    return Queue.create(tmp_path / "q", storage_options=options).group("billing")


def test_a_stream_has_the_queue_the_group_and_the_storage_options_of_the_handle(
    group: ConsumerGroup,
) -> None:
    given: Any = group.read_stream(Session(), maxMessagesPerTrigger=7, visibilityTimeout=None)
    assert given == {
        "path": group._context.path, "consumerGroup": "billing", "createGroup": "true",
        "startingPosition": "earliest", "storageoptions.aws_region": "eu-central-1",
        "maxMessagesPerTrigger": "7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("latest", "latest"), (17, "17"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
    ],
)  # fmt: skip
def test_a_stream_creates_the_group_where_the_handle_would(
    tmp_path: Path, start: Any, text: str
) -> None:
    queue = Queue.create(tmp_path / "q")
    given: Any = queue.group("g", start=start).read_stream(Session())
    assert (given["startingPosition"], given["createGroup"]) == (text, "true")
    queue.group("there").ensure()
    given = queue.group("there", create=False).read_stream(Session())
    assert given["createGroup"] == "false"


def test_a_read_takes_further_options_as_python_values(group: ConsumerGroup) -> None:
    given: Any = group.read(Session(), outcomes=True, minPartitions=3, valueSchema="id INT")
    assert (given["outcomes"], given["minPartitions"]) == ("true", "3")
    assert given["valueSchema"] == "id INT"
    assert not {"createGroup", "startingPosition"} & set(given)


def test_a_stream_of_several_groups_reads_their_queues(tmp_path: Path) -> None:
    one, two = (Queue.create(tmp_path / name).group("g") for name in ("one", "two"))
    given: Any = one.read_stream(Session(), more_groups=[two])
    assert json.loads(given["path"]) == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_groups_that_no_stream_can_read_together_are_refused(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "one")
    elsewhere = Queue.create(tmp_path / "two", storage_options={"aws_region": "eu-west-1"})
    for more, why in [
        (elsewhere.group("other"), "has another name than 'g'"),
        (elsewhere.group("g"), "has other storage options"),
        ("g", "is not a group"),
    ]:
        with pytest.raises(InvalidOption, match=why):
            queue.group("g").read_stream(Session(), more_groups=[more])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("path", "Queue.open"),
        ("consumerGroup", "queue.group"),
        ("startingposition", "start="),
        ("createGroup", "create=False"),
        ("storageOptions.aws_region", "storage_options="),
    ],
)
def test_an_option_that_the_handle_has_is_refused_with_its_call(
    group: ConsumerGroup, name: str, call: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        group.read_stream(Session(), **{name: "x"})
    assert call in str(caught.value)
    assert caught.value.data["option"] == name


def test_an_unknown_option_is_refused_before_spark_gets_it(group: ConsumerGroup) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'valueSchema'"):
        group.read(Session(), valueScheme="id INT")
