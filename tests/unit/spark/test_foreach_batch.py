"""for_each_batch apart from settling, without Spark: the batch is a list of columns, its lease is
given.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.byte_store import ByteStore, Call
from support.having import having
from support.rule_variants import rule_variant
from support.tables import group_ledger_of, messages_of

from spark_mq import ConsumerGroup, Queue
from spark_mq.errors import (
    InvalidHandlerResult,
    InvalidOption,
    InvalidSchema,
    LeaseLost,
    StorageError,
    StreamFenced,
)
from spark_mq.ledger.settle import RELEASE, SettlePart
from spark_mq.spark import ack, lease_frame, nack, reject
from spark_mq.streaming.source import StreamOptions, StreamSource, stream_id_in_queue
from spark_mq.testing import ManualClock, memory_queue

BATCH: Any = SimpleNamespace(columns=["lease_id", "sequence"])
TABLE: Any = pa.table({"sequence": [4294967296]})
AWAY = StorageError("publishing failed", path="/other", landed=False)
"""Another store is away."""


@pytest.fixture
def queue() -> Queue:
    return memory_queue(clock_skew=0, retry_delay="10s")


def leases_of(*lease_ids: str, fresh: bool = True, batches: Any = (), scan: Any = None) -> Any:
    """What the lookup says of a batch: its leases, and whether it may be a replay."""
    return SimpleNamespace(
        lease_ids=[*lease_ids], fresh=fresh, union_batch=None, batches=batches, scan=scan
    )


def source_of(queue: Queue) -> StreamSource:
    """Return a source whose leases nothing keeps alive."""
    return StreamSource(
        group_ledger_of(queue.group().ensure()),
        StreamOptions(),
        keep_alive=lambda *_: SimpleNamespace(stop=lambda: None),
    )


def function_of(
    queue: Queue,
    process: Any,
    found: Any = None,
    group: ConsumerGroup | None = None,
    **options: Any,
) -> Any:
    """Return a function for foreachBatch. Its batches have a lease, or what `found` returns."""

    def find(_: Any) -> Any:
        batch = found() if callable(found) else found or queue.group().lease("w", max_messages=9)
        return batch if isinstance(batch, SimpleNamespace) else leases_of(batch.lease_id)

    each: Any = (group or queue.group()).for_each_batch(process, **options)
    each._finder = SimpleNamespace(find=find)
    return each


def raising(error: BaseException) -> Callable[..., None]:
    def process(*_: Any) -> None:
        raise error

    return process


def no_space(queue: Queue) -> AbstractContextManager[None]:
    """In the block no settle succeeds."""
    error = StorageError("no space", path=queue.path, landed=False)
    return rule_variant("GroupLedger.settle", lambda right: raising(error))


fail = raising(ValueError("boom"))


def left(queue: Queue) -> Any:
    """The only range of the group."""
    (only,) = group_ledger_of(queue.group()).current()
    return only


def test_a_function_of_the_wrong_signature_is_refused_before_any_batch_comes(queue: Queue) -> None:
    wrong: Any = lambda batch: None  # noqa: E731
    with pytest.raises(InvalidOption, match=r"^process=.*process\(batch, lease\)"):
        queue.group().for_each_batch(wrong)


@pytest.mark.parametrize("settle", [ack, nack, reject])
def test_rows_that_are_no_dataframe_are_refused_with_a_hint(
    queue: Queue, settle: Callable[..., Any]
) -> None:
    with pytest.raises(InvalidOption, match=r"they are a Table\. Give a DataFrame with"):
        settle(TABLE, queue.group())


@pytest.mark.parametrize(("column", "other"), [("lease_id", "sequence"), ("sequence", "lease_id")])
def test_rows_without_a_column_that_a_settle_needs_are_refused(
    queue: Queue, column: str, other: str
) -> None:
    rows: Any = SimpleNamespace(columns=[other], withColumn=None)
    with pytest.raises(InvalidSchema, match=f"no column '{column}'.*Keep lease_id and sequence"):
        ack(rows, queue.group())


def test_a_result_that_is_no_dataframe_ends_the_query_and_settles_nothing(queue: Queue) -> None:
    queue.publish("a")
    with pytest.raises(InvalidHandlerResult, match="process returned Table: it must"):
        function_of(queue, lambda batch, lease: TABLE)(BATCH, 0)
    assert queue.group().stats().leased == 1


def test_the_log_tells_what_failed_and_what_has_become_of_it(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(["a", "b"])
    taken = queue.group().lease("w", max_messages=2)
    caplog.set_level("INFO")
    function_of(queue, fail, taken)(BATCH, 0)
    first, *_, second = caplog.messages
    assert first == (
        "group default: a batch failed with 2 unsettled messages (delivery 1 of 5); its lease "
        f"{taken.lease_id} is nacked"
    )
    assert second.startswith("group default: 2 messages nacked: 2 due again from ")
    assert caplog.records[0].exc_info is not None


def test_process_may_return_what_its_own_settles_return(queue: Queue) -> None:
    queue.publish(["a", "b"])
    taken = queue.group().lease("w", max_messages=2)
    function_of(queue, lambda batch, lease: taken.nack(delay="1m"), taken)(BATCH, 0)
    stats = queue.group().stats()
    assert (stats.delayed, stats.acked, stats.leased) == (2, 0, 0)


@pytest.mark.parametrize("several", [False, True], ids=["one queue", "several queues"])
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "no row came"])
@pytest.mark.parametrize(("ack", "left"), [("manual", 2), ("on_success", 0)])
def test_what_manual_leaves_is_not_acked_by_the_commit(
    queue: Queue, several: bool, rows: bool, ack: str, left: int
) -> None:
    queue.publish(["a", "b"])
    base = str(uuid.uuid4())
    stream = stream_id_in_queue(base, queue.path) if several else base
    source = source_of(queue)
    plan = source.lease(stream, 1)
    found = leases_of(*([plan.lease_id] * rows), batches=((base, 1, several),))
    function_of(queue, lambda batch, lease: None, found, ack=ack)(BATCH, 0)
    source.ack_committed(stream, 1)
    stats = queue.group().stats()
    assert (stats.leased, stats.acked) == (left, 2 - left)


@pytest.mark.parametrize("on_error", ["nack", "reject", "raise"])
@pytest.mark.parametrize("how", ["settle", "error of a store", "text of a task", "files"])
def test_a_batch_that_meets_an_outage_is_released_uncounted(
    queue: Queue, byte_store: ByteStore, how: str, on_error: str
) -> None:
    """Nothing is wrong with the messages, for any policy of the handler."""
    queue.publish(["a", "b"])

    def away(_: Call) -> None:
        raise TimeoutError("out of reach")

    def process(batch: Any, lease: Any) -> None:
        if how == "settle":
            with no_space(queue):
                each._owners.settle([SettlePart(RELEASE, lease.lease_ids[0])])
        if how == "text of a task":
            place = f"{queue.path}/messages"
            raise RuntimeError(f"Job: spark_mq.errors.StorageError: reading messages of {place}")
        byte_store.on("open", "read", act=away, of=messages_of(queue).files)
        if how == "error of a store":
            raise AWAY
        raise ValueError("Spark could not read a file")

    plans: list[Any] = []
    each = function_of(queue, process, lambda: plans[-1], on_error=on_error)
    source = source_of(queue)
    stream = str(uuid.uuid4())
    for n in range(1, 20):
        byte_store.clear()
        plan = source.lease(stream, n)
        assert [r.delivery_count for _, r in plan.slices] == [1]
        plans.append(plan)
        with pytest.raises(StorageError):
            each(BATCH, n)
        assert left(queue) == having(
            state="available", delivery_count=0, failure_count=0, lease_id=None
        )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("of the handler's own service"),
        AWAY,
        RuntimeError("Job: spark_mq.errors.StorageError: publishing to /other failed"),
    ],
)
def test_a_batch_that_fails_by_itself_is_no_outage(queue: Queue, error: Exception) -> None:
    queue.publish("a")
    function_of(queue, raising(error))(BATCH, 0)
    assert left(queue) == having(state="available", delivery_count=1, failure_count=1)


def test_an_outage_of_an_earlier_run_does_not_explain_a_failure_of_this_one(
    queue: Queue,
) -> None:
    queue.publish("a")
    each = function_of(queue, raising(AWAY), queue.group().lease("w"))
    with no_space(queue), pytest.raises(StorageError, match="no space"):
        each(BATCH, 0)
    each(BATCH, 0)
    assert left(queue) == having(state="available", failure_count=1)


def test_an_outage_that_the_function_has_caught_does_not_explain_another_error(
    queue: Queue,
) -> None:
    queue.publish("a")

    def process(batch: Any, lease: Any) -> None:
        with no_space(queue), contextlib.suppress(StorageError):
            each._owners.settle([SettlePart(RELEASE, lease.lease_ids[0])])
        fail(batch, lease)

    each = function_of(queue, process)
    each(BATCH, 0)
    assert left(queue) == having(state="available", failure_count=1)


def test_a_store_that_spark_could_not_read_is_tried_again_by_the_next_run(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(["a", "b", "c"])
    tries: list[str] = []
    by_spark = SimpleNamespace(columns=BATCH.columns)

    def read_scan(*_: Any) -> Any:
        tries.append("")
        if len(tries) == 1:
            raise StorageError("out of reach", path=queue.path, landed=False)
        return by_spark

    monkeypatch.setattr(lease_frame, "read_scan", read_scan)
    seen: list[Any] = []
    batches: list[Any] = []
    each = function_of(queue, lambda batch, lease: seen.append(batch), lambda: batches[-1])
    scan: Any = SimpleNamespace(stream="s", n=1, row_count=1)
    for first_of_run in (True, False, True):
        taken = queue.group().lease("w", max_messages=1)
        batches.append(leases_of(taken.lease_id, fresh=first_of_run, scan=scan))
        each(BATCH, 0)
    assert [batch is by_spark for batch in seen] == [False, False, True]


def test_close_logs_the_verdicts_of_the_batch_that_it_waits_for(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "spark_mq")
    queue.publish(["first", "second"])
    running, closing = threading.Event(), threading.Event()

    def process(batch: Any, lease: Any) -> None:
        if closing_soon:
            running.set()
            assert closing.wait(10)
        raise ValueError("boom")

    def find() -> Any:
        taken = queue.group().lease("w", max_messages=1)
        return leases_of(taken.lease_id, fresh=False)

    each = function_of(queue, process, find, on_error="reject")
    wait_for = each._idle.wait_for

    def closes(*args: Any) -> bool:
        closing.set()
        return bool(wait_for(*args))

    monkeypatch.setattr(each._idle, "wait_for", closes)

    closing_soon = False
    each(BATCH, 0)  # the first failure is logged at once, a second one within ten seconds is not
    closing_soon = True
    thread = threading.Thread(target=each, args=(BATCH, 1))
    thread.start()
    assert running.wait(10)
    assert each.close(10)
    thread.join()
    logged = [r.getMessage() for r in caplog.records if r.name == "spark_mq.verdicts"]
    assert [line.count("rejected 1 ") for line in logged] == [1, 1]
    assert sum(": 1 rejected after" in line for line in caplog.messages) == 2


def batch_of(query: str, run: str) -> Any:
    """Return a batch of a query, which Spark names by local properties."""
    ids = {"sql.streaming.queryId": query, "spark.jobGroup.id": run}
    context = SimpleNamespace(getLocalProperty=ids.get)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context), **vars(BATCH))


def test_two_queries_at_once_are_refused(queue: Queue) -> None:
    each = function_of(queue, lambda batch, lease: None, leases_of())
    each(batch_of("a", "a-1"), 0)
    each(batch_of("b", "b-1"), 0)  # the first one may have ended
    each(batch_of("b", "b-1"), 1)
    with pytest.raises(InvalidOption, match="once for each query"):
        each(batch_of("a", "a-1"), 1)
    each(batch_of("a", "a-2"), 1)  # started again


def test_a_second_query_is_refused_while_the_first_has_a_batch(queue: Queue) -> None:
    queue.publish("a")
    taken = queue.group().lease("w")
    refused = list[str]()

    def process(batch: Any, lease: Any) -> None:
        with pytest.raises(InvalidOption) as caught:
            each(batch_of("b", "b-1"), 0)
        refused.append(str(caught.value))
        assert not each.close(0), "the first batch still runs"

    each = function_of(queue, process, taken)
    each(batch_of("a", "a-1"), 0)
    assert len(refused) == 1


# -- what becomes of a batch


class ApiError(Exception):
    def __str__(self) -> str:
        raise AttributeError("there is no response")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (SystemExit(0), "RuntimeError: process raised SystemExit: 0"),
        (ApiError(), "ApiError: (ApiError without a text: its str() raised AttributeError)"),
    ],
    ids=["exit", "no text"],
)
def test_what_would_end_the_driver_settles_the_batch_as_any_error(
    queue: Queue, wrong: BaseException, text: str
) -> None:
    queue.publish("a")
    function_of(queue, raising(wrong))(BATCH, 0)
    assert left(queue) == having(state="available", error=text)


@pytest.mark.parametrize(
    ("wrong", "on_error"), [(SystemExit(0), "raise"), (KeyboardInterrupt(), "nack")]
)
def test_an_exit_or_interrupt_of_the_function_ends_the_query_with_an_error(
    queue: Queue, wrong: BaseException, on_error: str
) -> None:
    queue.publish("a")
    with pytest.raises(RuntimeError, match=f"process raised {type(wrong).__name__}"):
        function_of(queue, raising(wrong), on_error=on_error)(BATCH, 0)


def test_with_manual_a_batch_that_failed_is_settled_by_the_policy(queue: Queue) -> None:
    queue.publish("a")
    function_of(queue, fail, on_error="reject", ack="manual")(BATCH, 0)
    assert queue.group().stats().dead == 1


def test_acked_first_a_batch_is_not_seen_again_though_it_fails(queue: Queue) -> None:
    queue.publish("a")
    during: list[int] = []

    def process(batch: Any, lease: Any) -> None:
        during.append(queue.group().stats().acked)
        fail(batch, lease)

    function_of(queue, process, ack="on_receive")(BATCH, 0)
    assert (during, queue.group().stats().acked) == ([1], 1)


def test_acked_first_a_batch_that_others_may_have_by_now_is_not_handed_over(queue: Queue) -> None:
    queue.publish("a")
    taken, handed = queue.group().lease("w"), list[Any]()
    queue.group().seek("earliest")  # the lease is gone
    with pytest.raises(LeaseLost, match="expired before its messages were handed over"):
        function_of(queue, lambda batch, lease: handed.append(1), taken, ack="on_receive")(BATCH, 0)
    assert handed == []


def test_no_transaction_covers_the_leases_of_a_union(queue: Queue) -> None:
    queue.publish(["a", "b"])
    source, refused = source_of(queue), list[str]()
    plans = [source.lease(str(uuid.uuid4()), 1, (1, None)) for _ in range(2)]

    def process(batch: Any, lease: Any) -> None:
        with pytest.raises(InvalidOption) as caught:
            _ = lease.delta_options
        refused.append(str(caught.value))

    found = leases_of(*(plan.lease_id for plan in plans))
    function_of(queue, process, found)(BATCH, 0)
    text = "2 leases. Write the rows of each queue by itself"
    assert [why.count(text) for why in refused] == [1]
    assert queue.group().stats().acked == 2


def test_invalid_values_need_the_column_of_their_error(queue: Queue) -> None:
    queue.publish("a")
    handed: list[Any] = []
    each = function_of(
        queue, lambda batch, lease: handed.append(batch), on_error="raise", invalid="reject"
    )
    with pytest.raises(InvalidSchema, match="Read with the option valueSchema"):
        each(BATCH, 0)
    assert (handed, left(queue).state) == ([], "leased")


def test_ack_first_cannot_reject_what_it_has_acked(queue: Queue) -> None:
    wrong = "invalid='reject' cannot be used with ack='on_receive'"
    with pytest.raises(InvalidOption, match=wrong):
        queue.group().for_each_batch(fail, ack="on_receive", invalid="reject")


# -- batches of others


@pytest.mark.parametrize("wrong", ["another queue's", "another group"])
def test_a_group_that_did_not_lease_the_batch_is_refused_before_it_is_processed(
    queue: Queue, wrong: str
) -> None:
    """Its nack would settle nothing, and the source's ack would then ack what failed."""
    queue.publish("a")
    plan, handed = source_of(queue).lease(str(uuid.uuid4()), 1), list[Any]()
    group = memory_queue().group() if wrong == "another queue's" else queue.group("other")
    each = function_of(queue, lambda batch, lease: handed.append(batch), plan, group.ensure())
    with pytest.raises(InvalidOption, match=r"use the path and consumerGroup.*more_groups="):
        each(BATCH, 0)
    assert (handed, left(queue).state) == ([], "leased")


@pytest.mark.parametrize("done", [False, True], ids=["at work", "done"])
def test_a_batch_that_a_successor_took_over_ends_the_query_and_settles_nothing(
    queue: Queue, done: bool
) -> None:
    queue.publish("a")
    stream, frozen, successor = str(uuid.uuid4()), source_of(queue), source_of(queue)
    options: list[dict[str, str]] = []

    def process(batch: Any, lease: Any) -> None:
        options.append(lease.delta_options)
        taken = successor.replay(stream, 2)
        if done:
            queue.group().ack(taken.lease_id)

    each = function_of(queue, process, frozen.lease(stream, 2))
    with pytest.raises(StreamFenced, match="was taken over by another driver"):
        each(BATCH, 1)
    stats = queue.group().stats()
    assert (stats.leased, stats.acked) == (not done, done)
    assert options == [{"txnAppId": stream, "txnVersion": "2"}]


def test_a_batch_whose_messages_others_have_by_now_ends_no_query() -> None:
    clock = ManualClock()
    queue = memory_queue(clock, clock_skew=0)
    queue.publish("a")
    plan, others = source_of(queue).lease(str(uuid.uuid4()), 1), list[Any]()

    def process(batch: Any, lease: Any) -> None:
        clock.advance("2h")
        others.append(queue.group().lease("other"))

    function_of(queue, process, plan)(BATCH, 1)
    assert queue.group().stats().leased == 1
    assert [message.delivery_count for message in others[0].messages] == [2]
    assert others[0].ack().settled == 1
