"""The defaults that the documentation names are those that work, and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from support.handles import lease
from support.tables import as_in_a_store, group_ledger_of

from spark_mq import ConsumerGroup, GroupSettings, Queue, group
from spark_mq.errors import InvalidOption
from spark_mq.operations.keep_alive import KeepAlive
from spark_mq.operations.pauses import default_poll
from spark_mq.streaming.source import StreamOptions, check_attempts
from spark_mq.testing import memory_queue
from spark_mq.util.clock import SECOND
from spark_mq.worker.run import WorkOptions

OPTIONS = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def recorded(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of a function's calls. The function does its work as before."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return real(*args, **options)

    patch.setattr(owner, name, call)
    return calls


def test_a_worker_runs_by_its_defaults() -> None:
    given = inspect.signature(ConsumerGroup.work).parameters
    names = [name for name in given if name not in ("self", "handler", "more_groups")]
    options = WorkOptions(**{name: given[name].default for name in names})
    assert (options.mode, options.threads, options.seconds("shutdown_timeout")) == ("batch", 1, 30)
    rules = options.task_options(batches=True)
    assert (rules.limit, rules.poll, rules.until) == (30 * 60 * SECOND, None, None)
    assert (rules.lease.max_messages, rules.lease.timeout) == (1, None)
    assert rules.lease.fail_on_data_loss
    assert (rules.policy.on_error, rules.policy.ack) == ("nack", "on_success")
    rules = options.task_options(batches=False)
    assert (rules.lease.max_messages, rules.linger) == (1_000, 0.1)


@pytest.mark.parametrize(("in_a_store", "seconds"), [(False, 0.5), (True, 2.0)])
def test_who_waits_looks_twice_a_second_and_each_two_seconds_over_a_store(
    tmp_path: Path, in_a_store: bool, seconds: float
) -> None:
    queue = Queue.create(tmp_path / "queue", durable=False)
    queue = as_in_a_store(queue) if in_a_store else queue
    assert default_poll(group_ledger_of(queue.group())) == seconds


def test_a_lease_looks_twice_a_second_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, group, "wait_for_lease")
    assert memory_queue().group().lease("w") is None
    ((_, options, time_left, poll),) = calls
    assert poll == 0.5
    assert time_left() == 0.0
    assert (options.max_messages, options.timeout) == (1, None)


def test_a_lease_is_kept_alive_for_half_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = memory_queue()
    queue.publish("a")
    calls = recorded(monkeypatch, KeepAlive, "add")
    with lease(queue).keep_alive():
        pass
    assert [limit for *_, limit in calls] == [30 * 60 * SECOND]


def test_a_publisher_tries_for_half_a_minute() -> None:
    with memory_queue().publisher() as publisher:
        assert publisher._retry_seconds == 30.0
        assert (publisher._max_messages, publisher._max_bytes) == (1_000, 4 * 2**20)
        assert publisher._linger == 0.1


def test_a_stream_takes_a_hundred_thousand_messages_for_half_an_hour() -> None:
    options = StreamOptions()
    assert (options.max_messages, options.max_bytes) == (100_000, None)
    assert (options.max_lease_duration, options.visibility_timeout) == (30 * 60 * SECOND, None)
    assert options.ack_on_commit
    assert options.fail_on_data_loss


@pytest.mark.parametrize(("attempts", "good"), [(2, False), (3, True), (None, True)])
def test_a_stream_needs_three_attempts(attempts: int | None, good: bool) -> None:
    settings = GroupSettings(max_delivery_attempts=attempts)
    if good:
        check_attempts("g", settings)
    else:
        with pytest.raises(InvalidOption, match="Set 3 or more"):
            check_attempts("g", settings)


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
    assert expected.idle_poll == (2 * SECOND if "://" in path else SECOND // 10)
    assert expected.poll == SECOND // 20
    assert expected.stream.max_messages == 100_000
    assert expected.stream.max_lease_duration == 30 * 60 * SECOND
