"""The sink of a group has each message once, though workers die or sleep: a table, or a queue."""

from __future__ import annotations

import copy
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from support.rule_variants import first, rule_variant
from support.sinks import OF_QUEUES, OF_TABLES, SCHEMA, make_sink, values
from support.tables import context_of

from spark_mq import ConsumerGroup, Lease, Message, Queue, errors
from spark_mq.errors import ContentionTimeout
from spark_mq.testing import ManualClock


@pytest.fixture
def group(tmp_path: Path, clock: ManualClock, sink: str) -> ConsumerGroup:
    queue = Queue.create(tmp_path / "queue", clock=clock, max_delivery_attempts=None)
    group = queue.group("billing")
    group.configure(sink=sink)
    return group


def publish(group: ConsumerGroup, *messages: str | Message) -> None:
    Queue.open(context_of(group).path).publish(messages)


def rows_of(lease: Lease) -> pa.Table:
    return pa.table({"value": [message.text for message in lease.messages]}, SCHEMA)


def append(lease: Lease) -> bool:
    return lease.append(rows_of(lease).to_reader())


def take(group: ConsumerGroup, messages: int = 100) -> Lease:
    lease = group.lease("w", max_messages=messages)
    assert lease is not None
    return lease


def begin(group: ConsumerGroup, *messages: str | Message) -> Lease:
    """Publish messages, and lease them."""
    publish(group, *messages)
    return take(group)


def relay(group: ConsumerGroup, messages: int = 100) -> None:
    """Lease messages, append them and ack them."""
    lease = take(group, messages)
    append(lease)
    lease.ack()


def drain(group: ConsumerGroup, clock: ManualClock) -> None:
    """Append and ack all messages."""
    while group.stats().ready:
        relay(group)
        clock.advance("1m")


@contextmanager
def refused(match: str, option: str = "sink") -> Iterator[None]:
    """Expect an error about an option."""
    with pytest.raises(errors.InvalidOption, match=match) as caught:
        yield
    assert caught.value.option == option


def die(lease: Lease, clock: ManualClock) -> None:
    """Let the lease expire, as that of a dead worker does."""
    clock.advance("5m")


ENDS: list[Callable[[Lease, ManualClock], object]] = [
    die,
    lambda lease, clock: (lease.nack(), clock.advance("5m")),
    lambda lease, clock: lease.release(),
]


@pytest.mark.parametrize("end", ENDS, ids=["dies", "nacks", "releases"])
def test_what_no_earlier_holder_has_written_is_written_once(
    group: ConsumerGroup, clock: ManualClock, sink: str, end: Callable[..., object]
) -> None:
    publish(group, "a", "b")
    slept = []
    for _ in range(3):
        slept.append(take(group))
        end(slept[-1], clock)
    drain(group, clock)  # in pieces, because the whole lease failed several times
    for sleeper in slept:
        with pytest.raises(errors.LeaseLost, match="another worker has"):
            append(sleeper)
    assert values(sink) == ["a", "b"]


def test_after_the_append_only_a_whole_lease_is_given_back(group: ConsumerGroup, sink: str) -> None:
    lease = begin(group, "a", Message("b", priority=1))
    first = [lease.messages[0].sequence]
    with ThreadPoolExecutor(1) as thread:
        lease.append(RowsThatMeet(lease, lambda: thread.submit(lease.ack, first).result(10)))
    for settle in (lease.nack, lease.reject, lease.release):
        with refused("has appended its rows, so it cannot", "sequences"):
            settle(first)
    with refused("has appended its rows already", "rows"):
        append(lease)
    lease.nack()
    assert values(sink) == ["a", "b"]


def test_a_group_settles_no_single_messages_of_a_lease_that_may_write(group: ConsumerGroup) -> None:
    lease = begin(group, "a", "b")
    first = [lease.messages[0].sequence]
    for settle in (group.nack, group.reject, group.release):
        for named in ((lease.lease_id, first), ({lease.lease_id: first},)):
            with refused("by the lease's own methods", "sequences"):
                settle(*named)
    group.ack(lease.lease_id, first)
    group.nack(lease.lease_id)


def test_a_lease_that_lost_a_message_it_named_appends_nothing(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    """Its rows lack the message, and the next holder would take it for written."""
    lease = begin(group, "a", "b")
    sequences = [m.sequence for m in lease.messages]
    die(lease, clock)
    other = take(group)
    with pytest.raises(errors.LeaseLost):
        lease.nack(sequences[:1])
    with pytest.raises(errors.LeaseLost, match="may append no rows"):
        lease.append(pa.table({"value": ["b"]}, SCHEMA))
    append(other)
    other.ack()
    assert values(sink) == ["a", "b"]


def test_a_failed_nack_of_an_ordered_group_keeps_the_lease_from_appending(
    tmp_path: Path, clock: ManualClock, sink: str
) -> None:
    """A nack of a message takes the later ones of its key from the lease, too."""
    queue = Queue.create(tmp_path / "ordered", clock=clock, lanes=4)
    group = queue.group("billing")
    group.configure(sink=sink, order="key")
    queue.publish([Message("a", key="k"), Message("b", key="k"), Message("c", key="other")])
    lease = take(group)
    lease.nack([lease.messages[0].sequence])
    with pytest.raises(errors.LeaseLost, match="later messages of a key"):
        append(lease)
    lease.nack()
    clock.advance("1m")
    drain(group, clock)
    assert values(sink) == ["a", "b", "c"]


def give_back(lease: Lease) -> list[dict[str, Any]]:
    append(lease)
    return [{"sequence": lease.messages[0].sequence, "outcome": "nack"}]


@pytest.mark.parametrize(
    ("handler", "why"),
    [(give_back, "before the append"), (append, r"Do not return what lease\.append")],
)
def test_what_a_handler_may_not_return_after_its_append(
    group: ConsumerGroup, sink: str, handler: Any, why: str
) -> None:
    publish(group, "a", "b")
    with pytest.raises(errors.InvalidHandlerResult, match=why):
        group.work(handler, mode="batch", max_messages=2, until="empty")
    assert values(sink) == ["a", "b"]


def test_the_letter_of_a_poison_names_the_sink_that_may_have_its_rows(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    group.configure(max_delivery_attempts=1)
    append(begin(group, "7"))
    clock.advance("5m")
    queue = Queue.open(context_of(group).path, clock=clock)
    queue.sweep()
    (letter,) = queue.list_dead_letters().to_pylist()
    assert letter["value"] == b"7"
    assert f"expired. The sink {sink} may have its rows: look before a redrive" in letter["error"]


def test_a_sleeper_writes_nothing_although_its_message_was_settled_by_an_earlier_write(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    """The writer of that write is free then, and a fence of its next write hides the first."""
    died = begin(group, "a")
    append(died)
    die(died, clock)
    die(take(group), clock)
    sleeper = take(group)
    die(sleeper, clock)
    finder = take(group)
    assert not append(finder), "the sink has it"
    finder.ack()
    die(begin(group, "b"), clock)
    relay(group)  # fences the write of the lease before it
    with pytest.raises(errors.LeaseLost, match=f"{sink}: another worker has"):
        append(sleeper)
    assert values(sink) == ["a", "b"]


@OF_TABLES
def test_a_writer_is_free_once_its_messages_are_settled(group: ConsumerGroup, sink: str) -> None:
    for n in range(5):
        publish(group, str(n))
        relay(group)
    table = DeltaTable(sink)
    names = [f"spark_mq/{group.settings.sink_key}/{n}" for n in range(3)]
    assert [table.transaction_version(name) is None for name in names] == [False, True, True]


class RowsThatMeet:
    """Rows that are read just before their commit, when something else happens."""

    def __init__(self, lease: Lease, meet: Callable[[], object]) -> None:
        self._rows, self._meet = rows_of(lease), meet

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        self._meet()
        return self._rows.__arrow_c_stream__(schema)


def lose(*_: Any, **__: Any) -> None:
    raise CommitFailedError("others came first")


@OF_TABLES
def test_a_try_that_lands_during_the_next_one_is_taken_for_it(
    group: ConsumerGroup, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = begin(group, "a")
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.write_deltalake", lose)
        with pytest.raises(errors.StorageError, match="others came first"):
            append(lease)
    first = copy.copy(lease)
    lease.append(RowsThatMeet(lease, lambda: append(first)))
    lease.ack()
    assert values(sink) == ["a"]


@OF_TABLES
def test_a_write_that_lands_before_its_fence_is_not_repeated(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    sleeper = begin(group, "a")
    die(sleeper, clock)
    lease = take(group)

    with rule_variant("delta_sink:_add_files", first(lose)), pytest.raises(ContentionTimeout):
        append(lease)
    with rule_variant("delta_sink:_add_files", first(lambda _: append(sleeper))):
        assert not append(lease)
    assert values(sink) == ["a"]


@OF_TABLES
def test_a_lease_that_is_fenced_during_its_append_writes_nothing(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    lease = begin(group, "a")

    def next_worker() -> None:
        die(lease, clock)
        drain(group, clock)

    with pytest.raises(errors.LeaseLost, match="another worker has"):
        lease.append(RowsThatMeet(lease, next_worker))
    assert values(sink) == ["a"]


@pytest.mark.parametrize(
    ("sink", "name", "error"),
    [("table", "deltalake.write_deltalake", Exception),
     ("table", "deltalake.write_deltalake", DeltaError),
     ("queue", "spark_mq.operations.sinks.publish_messages", OSError)],
    indirect=["sink"],
)  # fmt: skip
def test_an_outage_of_the_sink_costs_no_row(
    group: ConsumerGroup, sink: str, name: str, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails after the commit has landed, and the worker tries again."""
    lease = begin(group, "a")
    real = pkgutil.resolve_name(name)

    def fail_after(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise error("the connection was reset")

    with monkeypatch.context() as patch:
        patch.setattr(name, fail_after)
        with pytest.raises(error, match="was reset"):
            append(lease)
    with refused("so it cannot nack", "sequences"):
        lease.nack([lease.messages[0].sequence])  # the rows may be there
    assert append(lease)
    lease.ack()
    assert values(sink) == ["a"]


# -- the door


def test_a_place_that_cannot_be_a_sink_is_refused(group: ConsumerGroup, tmp_path: Path) -> None:
    for name, properties, why in (
        ("mapped", {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2",
                    "delta.minWriterVersion": "5"}, "columnMapping"),
        ("forgets", {"delta.setTransactionRetentionDuration": "interval 1 day"}, "forget"),
    ):  # fmt: skip
        path = str(tmp_path / name)
        DeltaTable.create(path, SCHEMA, configuration=properties)  # type: ignore[arg-type]
        with refused(why):
            group.configure(sink=path)
    with refused("there is no Delta table"):
        group.configure(sink=tmp_path / "nothing")
    for name in ("messages", "leases"):
        with refused("it is a table of a queue"):
            group.configure(sink=f"{context_of(group).path}/{name}")


def test_without_a_sink_or_before_it_a_lease_appends_nothing(
    tmp_path: Path, clock: ManualClock, sink: str
) -> None:
    queue = Queue.create(tmp_path / "plain", clock=clock)
    queue.publish(["a", "b", "c"])
    lease = take(queue.group(), 1)
    with refused("has no sink"):
        append(lease)
    queue.group().configure(sink=sink)
    with refused("is older than the sink"):
        append(lease)
    take(queue.group(), 1).nack()  # the sink may have it, but not the others
    lease.release()
    relay(queue.group())
    assert values(sink) == ["a", "c"]


def test_the_sink_changes_only_while_no_message_may_be_in_it(
    group: ConsumerGroup, tmp_path: Path, sink: str
) -> None:
    other = make_sink(tmp_path / "other")
    lease = begin(group, "a")
    for path in (other, None):
        with refused("1 unsettled messages may be in"):
            group.configure(sink=path)
    append(lease)
    lease.ack()
    group.configure(sink=other)
    publish(group, "b")
    relay(group)
    assert (values(sink), values(other)) == (["a"], ["b"])


def test_the_same_sink_again_changes_nothing(group: ConsumerGroup, sink: str) -> None:
    """A worker may set it each time it starts, also after a crash."""
    append(begin(group, "a"))
    before, version = group.settings.sink_key, group.stats().latest_version
    settings = group.configure(sink=Path(sink), retry_delay="0s")
    assert (settings.sink_key, settings.retry_delay) == (before, timedelta(0))
    assert group.settings.sink_key == before
    assert group.stats().latest_version == version


def make_again(sink: str) -> None:
    if Path(sink, "messages").exists():
        Queue.drop_at(sink, "sink")
        Queue.create(sink)
    else:
        shutil.rmtree(sink)
        make_sink(Path(sink))


def test_a_sink_that_was_made_again_is_refused_until_it_is_set_again(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    """It does not know what the old one had, so all unsettled messages are written there."""
    publish(group, "a", "b", "c")
    append(take(group, 1))
    old = take(group, 1)
    make_again(sink)
    with refused(f"sink='{sink}' cannot be used: it is another"):
        append(old)
    elsewhere = Queue.open(context_of(group).path, clock=clock).group(group.name)
    with refused("than when it was set"):
        append(take(elsewhere))
    group.configure(sink=sink)
    with refused("is older than the sink"):
        append(old)
    clock.advance("5m")
    drain(group, clock)
    assert values(sink) == ["a", "b", "c"]


@OF_TABLES
def test_a_copy_of_the_queue_appends_once_its_sink_is_set_again(
    group: ConsumerGroup, tmp_path: Path, sink: str
) -> None:
    publish(group, "a")
    copy = Queue.open(shutil.copytree(context_of(group).path, tmp_path / "copy"))
    lease = take(copy.group(group.name))
    with pytest.raises(errors.CopiedQueue, match="rows go to"):
        append(lease)
    lease.release()
    own = copy.rehome(copy=True).group(group.name)
    lease = take(own)
    with refused("was moved or copied"):
        append(lease)
    lease.release()
    own.configure(sink=sink)
    relay(own)
    relay(group)
    assert values(sink) == ["a", "a"]


@OF_TABLES
def test_a_table_can_be_taken_off_once_it_is_gone_but_not_if_it_was_spoilt(
    group: ConsumerGroup, tmp_path: Path, sink: str
) -> None:
    """A spoilt one still has what was written, so that may not be written elsewhere."""
    lease = begin(group, "a")
    forgets = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    DeltaTable(sink).alter.set_table_properties(forgets)
    for other in (make_sink(tmp_path / "other"), None):
        with refused("the sink cannot change"):
            group.configure(sink=other)
    shutil.rmtree(sink)
    with refused("there is no Delta table"):
        append(lease)
    assert group.configure(sink=None).sink is None
    lease.ack()
    assert group.stats().acked == 1


@OF_TABLES
def test_after_rows_that_do_not_fit_others_are_appended(group: ConsumerGroup, sink: str) -> None:
    lease = begin(group, "a", "b")
    wide = pa.table({"value": ["a"], "more": [1]})
    for rows, text in (
        (wide, 'unknown more. .*schema_mode="merge"'),
        (pa.table({"more": [1]}), "missing value; unknown more"),
        (["a"], "rows is a list: give an Arrow table"),
        (None, "rows is a NoneType: give an Arrow table"),
    ):
        with refused(text, "rows"):
            lease.append(rows)
    with refused("schema_mode", "schema_mode"):
        lease.append(wide, schema_mode="overwrite")  # type: ignore[arg-type]
    lease.nack([lease.messages[1].sequence])  # because nothing was written
    assert lease.append(wide, schema_mode="merge")
    lease.ack()
    assert DeltaTable(sink).to_pyarrow_table().to_pylist() == [{"value": "a", "more": 1}]


@OF_QUEUES
def test_a_queue_takes_messages_with_keys_and_headers(group: ConsumerGroup, sink: str) -> None:
    lease = begin(group, "a", "b")
    with refused("schema_mode is for a sink", "schema_mode"):
        lease.append(["a"], schema_mode="merge")
    with pytest.raises(errors.InvalidSchema):
        lease.append(pa.table({"text": ["a"]}))
    assert lease.append([Message(m.value, key="k", headers={"n": "1"}) for m in lease.messages])
    lease.ack()
    published = take(Queue.open(sink).group("look")).messages
    assert [(m.text, m.key, m.headers) for m in published] == [
        (text, "k", {"n": "1"}) for text in "ab"
    ]


@OF_QUEUES
def test_a_lease_without_results_publishes_nothing_and_is_acked(
    group: ConsumerGroup, clock: ManualClock, sink: str
) -> None:
    slow = begin(group, "a", "b")
    die(slow, clock)
    lease = take(group)
    assert lease.append([])
    lease.ack()
    with pytest.raises(errors.LeaseLost, match="another worker has"):
        slow.append(["late"])
    assert values(sink) == []


def test_a_queue_may_be_the_sink_of_its_own_group(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    group = queue.group("g")
    group.configure(sink=queue.path)
    queue.publish(["3"])

    def count_down(lease: Lease) -> None:
        lease.append([str(int(m.text) - 1) for m in lease.messages if m.text != "0"])

    assert group.work(count_down, mode="batch", until="settled").acked == 4
    assert values(queue.path) == ["0", "1", "2", "3"]


@OF_TABLES
def test_an_error_of_the_rows_has_none_of_their_values(
    group: ConsumerGroup, tmp_path: Path, sink: str
) -> None:
    path = str(tmp_path / "typed")
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
    write_deltalake(path, schema.empty_table())
    group.configure(sink=path)
    lease = begin(group, "a")
    for n in ("secret", None):
        with pytest.raises(errors.InvalidOption, match=r"cannot be cast .* null in n") as caught:
            lease.append(pa.table({"n": [n], "text": ["secret"]}))
        assert "secret" not in str(caught.value)
    assert lease.append(pa.table({"n": [1], "text": ["a"]}))


def test_a_handler_of_single_messages_cannot_have_a_sink(group: ConsumerGroup, sink: str) -> None:
    publish(group, "a")
    with refused("mode='message' has no lease", "mode"):
        group.work(lambda message: None, mode="message", until="empty")
    assert group.stats().ready == 1
