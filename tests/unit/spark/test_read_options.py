"""The options of the source and the sink: what they mean for the tasks, and what they refuse."""

from __future__ import annotations

import json

import pytest

from spark_mq import GroupSettings
from spark_mq.errors import InvalidOption
from spark_mq.spark.options import ReadOptions, WriteOptions
from spark_mq.spark.schema import READ_SCHEMA
from spark_mq.spark.stream_reader import LeaseReader
from spark_mq.streaming.source import check_attempts


def test_the_driver_resolves_a_path_for_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have another home, and another working directory."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir("/")
    for given, path in [("~/q", "/home/me/q"), ("file:///a%20b", "/a b"), ("q", "/q")]:
        assert WriteOptions.parse({"path": given}).path == path
        assert ReadOptions.parse({"path": given}).paths == (path,)
        assert ReadOptions.parse({"path": json.dumps([given, "/x"])}).paths == (path, "/x")


@pytest.mark.parametrize("path", ["$HOME/q", ""])
def test_a_path_that_nobody_means_is_refused(path: str) -> None:
    for parse in (WriteOptions.parse, ReadOptions.parse):
        with pytest.raises(InvalidOption) as caught:
            parse({"path": path})
        assert caught.value.data["option"] == "path"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"consumergrup": "g"}, ["consumergrup", "did you mean 'consumerGroup'"]),
        ({"colour": "red"}, ["colour", "maxMessagesPerTrigger"]),
        # Spark gives an owner only to a table of its catalog, which it could not read.
        ({"Owner": "me"}, ["CREATE TABLE", "Use CREATE TEMPORARY VIEW orders USING spark_mq"]),
        ({"lanes": "64"}, ["option 'lanes'", "Queue.create(path, lanes=64)"]),
        ({"order": "key"}, ["option 'order'", "group.configure(order='key')"]),
        ({"visibilityTimeout": "soon"}, ["visibilityTimeout='soon'", "'30s'"]),
        ({"visibilityTimeout": "1ms"}, ["visibilityTimeout='1ms' is too short: give 1s or more"]),
        ({"maxLeaseDuration": "1ms"}, ["maxLeaseDuration='1ms' is too short: give 1s or more"]),
        ({"maxLeaseDuration": "0s"}, ["maxLeaseDuration='0s'", "more than zero"]),
        (
            {"visibilityTimeout": "2h", "maxLeaseDuration": "1h"},
            ["visibilityTimeout='2h'", "maxLeaseDuration='1h'"],
        ),
        ({"consumerGroup": ".."}, ["consumerGroup='..'", "a dot"]),
        ({"consumerGroup": "a b"}, ["consumerGroup='a b'", "letters"]),
        ({"workerId": "w/1"}, ["workerId='w/1'", "letters"]),
        ({"maxMessagesPerTrigger": "0"}, ["maxMessagesPerTrigger='0'", "whole number from 1"]),
        ({"maxBytesPerTrigger": "lots"}, ["maxBytesPerTrigger='lots'", "'64m'"]),
        ({"ack": "on_succes"}, ["ack='on_succes'", "did you mean 'on_success'"]),
        ({"ack": "onCommit"}, ["ack='onCommit' is called ack='on_success' now"]),
        ({"ack": "on_receive"}, ["ack='on_receive' needs foreachBatch", "give it to for_each_b"]),
        ({"startingPosition": "yesterday"}, ["startingPosition='yesterday'", "earliest"]),
        ({"path": '["a", "a"]'}, ["path=", "twice"]),
        ({"path": "[]"}, ["path='[]' is not a list of paths"]),
        ({"path": "[1]"}, ["path='[1]' is not a list of paths"]),
        ({"path": '["a"'}, ["is not a list of paths"]),
        ({"createGroup": "no"}, ["createGroup='no'", "true, false"]),
        ({"failOnDataLoss": "perhaps"}, ["failOnDataLoss='perhaps'", "true, false"]),
        ({"outcomes": "yes", "consumerGroup": "g"}, ["outcomes='yes' is not valid: use one of"]),
        ({"outcomes": "true"}, ["name it by the option consumerGroup"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_refused_option_of_the_source_is_named_with_its_value(
    given: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InvalidOption) as caught:
        ReadOptions.parse({"path": "/q", **given})
    for part in words:
        assert part in str(caught.value)


def test_the_source_has_the_words_of_for_each_batch_for_its_ack() -> None:
    for given, acks in [({}, True), ({"ack": "On_Success"}, True), ({"ack": "manual"}, False)]:
        assert ReadOptions.parse({"path": "/q", **given}).stream.ack_on_commit is acks


@pytest.mark.parametrize(("attempts", "good"), [(2, False), (3, True), (None, True)])
def test_a_stream_needs_three_attempts(attempts: int | None, good: bool) -> None:
    settings = GroupSettings(max_delivery_attempts=attempts)
    if good:
        check_attempts("g", settings)
    else:
        with pytest.raises(InvalidOption, match="Set 3 or more"):
            check_attempts("g", settings)


def test_the_limits_of_a_batch_reach_the_stream() -> None:
    given = {"path": "/q", "maxMessagesPerTrigger": "7", "maxBytesPerTrigger": "64m"}
    stream = ReadOptions.parse(given).stream
    assert (stream.max_messages, stream.max_bytes) == (7, 64 * 2**20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"producerId": "p"}, "producerId needs 'producerSequence' too"),
        ({"producerId": "p", "producerSequence": "-1"}, "producerSequence='-1' is not a number"),
        ({"producerId": "a b", "producerSequence": "1"}, "producerId='a b'"),
        ({"pth": "p"}, "did you mean 'path'"),
    ],
)
def test_a_refused_option_of_the_sink_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        WriteOptions.parse({"path": "/q", **given})


def test_a_stream_refuses_to_read_outcomes() -> None:
    given = {"path": "/q", "consumerGroup": "g", "outcomes": "true"}
    with pytest.raises(InvalidOption, match=r"outcomes='true' is for spark\.read"):
        _ = LeaseReader(given, READ_SCHEMA).options
