"""Check the options of ``format("spark_mq")``. Unknown ones are refused with a hint.

Spark passes options with lower-cased names, so names are compared without case.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pyspark.sql.types import StructType

from spark_mq.delta.object_store import absolute_path, canonical_uri
from spark_mq.errors import InvalidOption
from spark_mq.handler import WHEN
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.create import open_context
from spark_mq.spark.batch_publish import PRODUCER_OPTIONS, SinkProducer
from spark_mq.spark.json_values import JsonParser
from spark_mq.spark.schema import check_projection, read_schema, with_json_values
from spark_mq.streaming.source import StreamOptions
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import (
    short_repr,
    suggest,
    validate_choice,
    validate_count,
    validate_duration,
    validate_group,
    validate_name,
    validate_position,
    validate_size,
)

STORAGE_PREFIX: Final = "storageoptions."

READ_OPTIONS: Final = (
    "path",
    "consumerGroup",
    "createGroup",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "visibilityTimeout",
    "maxLeaseDuration",
    "workerId",
    "ack",
    "startingPosition",
    "failOnDataLoss",
    "minPartitions",
    "pollInterval",
    "idlePollInterval",
    "valueSchema",
    "outcomes",
)
WRITE_OPTIONS: Final = ("path", *PRODUCER_OPTIONS)
# Spark passes these options of its own on to a source or sink.
_SPARKS_OWN: Final = ("checkpointLocation", "queryName", "paths")
# Names that are no options, each with the place to set it.
_ELSEWHERE: Final = {
    "lanes": "create the queue with Queue.create(path, lanes=64)",
    "order": "set it with group.configure(order='key'), in a queue with lanes",
    "priority": "give a column 'priority' with whole numbers from 0 to 9",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a read. Durations are in microseconds."""

    paths: tuple[str, ...]
    several: bool = False  # whether the path was given as a list
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    group: str = "default"
    group_named: bool = False
    create_group: bool = True
    start: str | int | datetime = "earliest"
    stream: StreamOptions = field(default_factory=StreamOptions)
    min_partitions: int = 1
    poll: int = SECOND // 20
    idle_poll: int = SECOND // 10
    value_schema: str | None = None  # of JSON values, as DDL
    outcomes: bool = False  # read what the group has settled, a batch only

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check the options of a read. Raise InvalidOption."""
        own, storage = _split(options, READ_OPTIONS)
        paths, several = _paths(own, storage)
        poll, idle_poll = _polls(own, paths)
        return cls(
            paths=paths,
            several=several,
            storage_options=storage,
            group=validate_group("consumerGroup", own.get("consumergroup", "default")),
            group_named="consumergroup" in own,
            create_group=_is_on(own, "createGroup", "true"),
            start=validate_position("startingPosition", own.get("startingposition", "earliest")),
            stream=_stream_options(own),
            min_partitions=validate_count(
                "minPartitions", own.get("minpartitions", 1), most=100_000
            ),
            poll=poll,
            idle_poll=idle_poll,
            value_schema=_value_schema(own),
            outcomes=_outcomes(own),
        )

    def columns(self) -> StructType | str:
        """Return the columns of a read, as DDL if Spark has to parse some of them."""
        schema = read_schema(self.several, outcomes=self.outcomes)
        return schema if self.value_schema is None else with_json_values(schema, self.value_schema)

    def check_columns(self, schema: StructType) -> None:
        """Raise InvalidSchema for columns that a read lacks, InvalidOption for types of JSON."""
        data = None
        if self.value_schema is not None and "data" in schema.names:
            data = schema["data"].dataType
            JsonParser(data)  # which refuses types that no JSON value has
        check_projection(schema, read_schema(self.several, data, outcomes=self.outcomes))

    def open(self) -> list[GroupLedger]:
        """Return the group in the queue at each path. Raise NotAQueue."""
        return [
            open_context(path, self.storage_options).group(
                self.group, self.start, create=self.create_group
            )
            for path in self.paths
        ]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    path: str
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    producer: SinkProducer | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check the options of a write. Raise InvalidOption."""
        own, storage = _split(options, WRITE_OPTIONS)
        path = _path(own)
        if path.lstrip().startswith("["):
            raise InvalidOption(
                f"path={short_repr(path)} is a list. A write goes to one queue",
                option="path",
                value=path,
            )
        return cls(path, storage, SinkProducer.parse(own))

    def open(self) -> QueueContext:
        return open_context(self.path, self.storage_options)


def _is_on(own: Mapping[str, str], name: str, default: str) -> bool:
    return validate_choice(name, own.get(name.lower(), default), ("true", "false")) == "true"


def _value_schema(own: Mapping[str, str]) -> str | None:
    text = own.get("valueschema")
    if text is not None and not text.strip():
        raise InvalidOption(
            "valueSchema is empty: give columns, such as 'id INT, items ARRAY<STRING>'",
            option="valueSchema",
            value=text,
        )
    return text


def _outcomes(own: Mapping[str, str]) -> bool:
    """Return whether a read is of settled messages. It needs the name of a group."""
    wanted = _is_on(own, "outcomes", "false")
    if wanted and "consumergroup" not in own:
        raise InvalidOption(
            "outcomes='true' reads what a group has settled: name it by the option consumerGroup",
            option="outcomes",
            value=own["outcomes"],
        )
    return wanted


def _stream_options(own: Mapping[str, str]) -> StreamOptions:
    defaults = StreamOptions()
    if "visibilitytimeout" in own and "maxleaseduration" in own:
        _in_order(own, "visibilityTimeout", "maxLeaseDuration")
    return StreamOptions(
        worker_id=validate_name("workerId", own.get("workerid", defaults.worker_id)),
        max_messages=validate_count(
            "maxMessagesPerTrigger", own.get("maxmessagespertrigger", defaults.max_messages)
        ),
        max_bytes=validate_size("maxBytesPerTrigger", own["maxbytespertrigger"])
        if "maxbytespertrigger" in own
        else None,
        visibility_timeout=validate_duration("visibilityTimeout", own["visibilitytimeout"])
        if "visibilitytimeout" in own
        else None,
        max_lease_duration=validate_duration(
            "maxLeaseDuration", own.get("maxleaseduration", "30m")
        ),
        ack_on_commit=_acks(own.get("ack", "on_success")),
        fail_on_data_loss=_is_on(own, "failOnDataLoss", "true"),
    )


def _acks(value: str) -> bool:
    """Return whether the source acks each batch that Spark has committed."""
    when = validate_choice("ack", value, WHEN)
    if when == "on_receive":
        raise InvalidOption(
            "ack='on_receive' needs foreachBatch: give it to for_each_batch. The source's own ack "
            "is 'on_success' or 'manual'",
            option="ack",
            value=value,
        )
    return when == "on_success"


def _polls(own: Mapping[str, str], paths: Sequence[str]) -> tuple[int, int]:
    """Return the shortest and the longest wait between looks."""
    # A look at a local log is cheap. At an object store it is two requests.
    polls = {
        "pollinterval": "50ms",
        "idlepollinterval": "2s" if any("://" in path for path in paths) else "100ms",
    }
    given = {**polls, **own}
    if "pollinterval" in own or "idlepollinterval" in own:
        _in_order(given, "pollInterval", "idlePollInterval")
    low = validate_duration("pollInterval", given["pollinterval"])
    return low, validate_duration("idlePollInterval", given["idlepollinterval"])


def _split(
    options: Mapping[str, str], known: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return own options by lower-cased name, and storage options without their prefix."""
    lowered = {name.lower() for name in (*known, *_SPARKS_OWN)}
    own: dict[str, str] = {}
    storage: dict[str, str] = {}
    if "owner" in map(str.lower, options):  # which Spark gives to a table of its catalog alone
        raise InvalidOption(
            "CREATE TABLE cannot name a queue, because Spark could not read that table. Use CREATE "
            "TEMPORARY VIEW orders USING spark_mq OPTIONS (path '/queues/orders')",
            option="owner",
            value=None,
        )
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(STORAGE_PREFIX):
            storage[lower[len(STORAGE_PREFIX) :]] = value
        elif lower in lowered:
            own[lower] = value
        else:
            if lower in _ELSEWHERE:
                raise InvalidOption(
                    f"option {short_repr(name)} is not one of Spark: {_ELSEWHERE[lower]}",
                    option=name,
                    value=value,
                )
            hint = suggest(name, [*known, "storageOptions.*"])
            # Not the value, because the name may be a misspelt secret.
            raise InvalidOption(
                f"unknown option {short_repr(name)}"
                + (
                    f": did you mean {hint!r}?" if hint else f"; the options are {', '.join(known)}"
                ),
                option=name,
                value=None,
            )
    return own, storage


def _path(own: Mapping[str, str]) -> str:
    path = own.get("path", "")
    if not path.strip():
        raise InvalidOption(
            "option 'path' is missing: .option('path', ...) or .load(path) names the queue",
            option="path",
            value=path,
        )
    # A task has another home and another working directory.
    return path if path.lstrip().startswith("[") else absolute_path(path)


def _paths(own: Mapping[str, str], storage: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """Return the paths of the queues to read, and whether they were given as a JSON list."""
    text = own.get("path") or own.get("paths", "")
    if not text.lstrip().startswith("["):
        return (_path(own),), False
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if (
        not isinstance(paths, list)
        or not paths
        or not all(isinstance(path, str) and path.strip() for path in paths)
    ):
        raise InvalidOption(
            f'path={short_repr(text)} is not a list of paths: give JSON like ["/queues/orders", '
            f'"/queues/returns"]',
            option="path",
            value=text,
        )
    paths = [absolute_path(path) for path in paths]
    places = Counter(canonical_uri(path, storage) for path in paths)
    if twice := [path for path, times in places.items() if times > 1]:
        raise InvalidOption(
            f"path={short_repr(text)} names {twice[0]} twice: a queue is read once",
            option="path",
            value=text,
        )
    return tuple(paths), True


def _in_order(own: Mapping[str, str], low: str, high: str) -> None:
    if validate_duration(low, own[low.lower()]) > validate_duration(high, own[high.lower()]):
        raise InvalidOption(
            f"{low}={own[low.lower()]!r} is longer than {high}={own[high.lower()]!r}",
            option=low,
            value=own[low.lower()],
        )
