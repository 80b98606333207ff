"""What a group's handle gives to Spark's source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_mq import ConsumerGroup, Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark.options import ReadOptions


class Session:
    """A session whose readers note the options of a read, as Spark passes them on."""

    def __init__(self) -> None:
        self.read = self.readStream = self
        self.given: dict[str, str] = {}

    def format(self, name: str) -> Session:
        assert name == "spark_mq"
        return self

    def options(self, **given: str) -> Session:
        self.given = given
        return self

    def load(self) -> ReadOptions:
        assert all(isinstance(text, str) for text in self.given.values())
        return ReadOptions.parse(self.given)


@pytest.fixture
def group(tmp_path: Path) -> ConsumerGroup:
    options = {"aws_region": "eu-central-1"}
    return Queue.create(tmp_path / "q", storage_options=options).group("billing")


def test_a_stream_has_the_queue_the_group_and_the_storage_options_of_the_handle(
    group: ConsumerGroup,
) -> None:
    read = group.read_stream(Session(), maxMessagesPerTrigger=7, visibilityTimeout=None)
    assert read.paths == (group._context.path,)
    assert (read.group, read.group_named, read.several) == ("billing", True, False)
    assert read.storage_options == {"aws_region": "eu-central-1"}
    assert (read.start, read.create_group, read.stream.max_messages) == ("earliest", True, 7)


@pytest.mark.parametrize("start", ["latest", 17, datetime(2026, 1, 31, 12, tzinfo=UTC)])
def test_a_stream_creates_the_group_where_the_handle_would(tmp_path: Path, start: Any) -> None:
    queue = Queue.create(tmp_path / "q")
    assert queue.group("g", start=start).read_stream(Session()).start == start
    queue.group("there").ensure()
    assert not queue.group("there", create=False).read_stream(Session()).create_group


def test_a_read_takes_further_options_as_python_values(group: ConsumerGroup) -> None:
    session = Session()
    read = group.read(session, outcomes=True, minPartitions=3, valueSchema="id INT")
    assert (read.outcomes, read.min_partitions) == (True, 3)
    assert read.value_schema is not None
    assert not {"createGroup", "startingPosition"} & set(session.given)


def test_a_stream_of_several_groups_reads_their_queues(tmp_path: Path) -> None:
    one, two = (Queue.create(tmp_path / name).group("g") for name in ("one", "two"))
    session = Session()
    read = one.read_stream(session, more_groups=[two])
    assert read.several
    assert json.loads(session.given["path"]) == [str(tmp_path / "one"), str(tmp_path / "two")]


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
