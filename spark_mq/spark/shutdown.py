"""A good end when the driver is told to terminate (SIGTERM), whoever of its two processes the
signal reaches.

``python job.py``: Python gets it. ``spark-submit job.py``: the JVM gets it, and Python is its
child; so a hook of the JVM calls back
over py4j, before Spark's own hook stops the context. Dying at once is safe too: the batch in hand
is then run again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_mq.spark.foreach_batch import ForEachBatch

__all__ = ["GRACE", "on_sigterm", "stop_query"]

_log = logging.getLogger(__name__)

GRACE: Final = 30.0
"""Seconds from the signal to the end, at most."""

_BEFORE_SPARK: Final = 100  # Hadoop runs hooks with higher numbers first; Spark's have 40 to 50
_EXIT_CODE: Final = 128 + signal.SIGTERM


@contextlib.contextmanager
def on_sigterm(
    spark: Any, stop: Callable[[], object], timeout: float = GRACE
) -> Iterator[threading.Event]:
    """While the block runs, SIGTERM calls ``stop()``, once, in a thread of its own; `stop` should
    make the block end.

    Yields an event that is set by the signal. Under spark-submit the JVM waits for the end of the
    block; its exit code is then 143.
    A process that is still there after `timeout` seconds ends itself. Call it in the main thread.

    Examples
    --------
    >>> with on_sigterm(spark, lambda: stop_query(query, each)):
    ...     query.awaitTermination()  # doctest: +SKIP
    """
    requested, ended, answered = threading.Event(), threading.Event(), threading.Event()
    signals: SimpleQueue[bool] = SimpleQueue()

    def wait_for_signal() -> None:
        if signals.get():
            requested.set()
            terminate()

    def terminate() -> None:
        _log.warning("told to terminate: stopping, within %.0f s", timeout)
        watchdog = threading.Timer(timeout, _give_up, [timeout])
        watchdog.daemon = True
        watchdog.start()
        try:
            stop()
        except Exception:
            _log.exception("the stop failed")

    # Started before any signal: a signal handler may not start a thread, nor set an event. The
    # thread that it interrupts may hold a lock that these need. It may be inside a py4j call, too.
    waiting = threading.Thread(target=wait_for_signal, name="spark_mq-terminate", daemon=True)
    waiting.start()

    def begin(*_: object) -> None:
        signals.put(True)  # safe in a signal handler

    def from_jvm() -> None:
        begin()
        ended.wait(timeout)
        answered.set()

    remove_hook = _add_hook(spark, from_jvm, timeout)
    before = signal.signal(signal.SIGTERM, begin)
    try:
        yield requested
    finally:
        signals.put(False)
        # The block ends as soon as the query has: what is left of the stop, the giving back,
        # must not be cut off by Python's end.
        waiting.join(timeout)
        ended.set()
        if not remove_hook():
            # The JVM is on its way out and wants the hook's answer, or it waits for its own
            # timeout.
            answered.wait(1)
            time.sleep(0.2)
        signal.signal(signal.SIGTERM, before)


def stop_query(query: Any, each: ForEachBatch, timeout: float = GRACE) -> bool:
    """Lets the batch in hand finish and be committed, stops the query, and gives back what was
    leased after it, uncounted.

    False if the batch takes longer than `timeout` seconds. It is then left alone: Spark cannot
    interrupt Python, so end the process;
    the next run on the checkpoint repeats the batch. Over Spark Connect `each` is a copy, and the
    batch in hand is cut: it is stopped,
    the next run repeats the batch, and a warning says so.
    """
    if type(query).__module__.startswith("pyspark.sql.connect."):
        _log.warning(
            "over Spark Connect the batch in hand cannot be waited for: if there is one, it will "
            "run again"
        )
        query.stop()
        return True
    deadline = time.monotonic() + timeout
    if not each.close(timeout):
        return False
    # Spark notes in the checkpoint that the batch is done after the function has returned: stopped
    # before, it would repeat it.
    while (
        each.last_batch is not None
        and query.isActive
        and not _committed(query, each.last_batch)
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    query.stop()
    each.give_back()
    return True


def _committed(query: Any, batch_id: int) -> bool:
    """Whether Spark is done with a batch. While idle it reports the batch to come, which then has
    not run."""
    last = query.lastProgress
    return last is not None and (
        last.batchId > batch_id or (last.batchId == batch_id and "addBatch" in last.durationMs)
    )


def _give_up(timeout: float) -> None:
    _log.error("not done after %.0f s: the process ends now, and its batch will run again", timeout)
    os._exit(_EXIT_CODE)


class _Runnable:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    class Java:
        implements = ("java.lang.Runnable",)


def _add_hook(spark: Any, run: Callable[[], None], timeout: float) -> Callable[[], bool]:
    """Has the JVM run a function when it shuts down. Returns what takes that back: False if the JVM
    is shutting down already."""
    try:
        context = spark.sparkContext
        gateway, jvm = context._gateway, context._jvm
    except Exception:  # Spark Connect: the JVM is another's, and no signal of ours reaches it
        return lambda: True
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # Hooks lie in a hash set. A Python object would be asked for its hash over py4j; a Thread has
    # one (it is never started).
    hook = jvm.java.lang.Thread(_Runnable(run))
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    hooks.addShutdownHook(
        hook, _BEFORE_SPARK, int(timeout) + 5, jvm.java.util.concurrent.TimeUnit.SECONDS
    )

    def remove() -> bool:
        try:
            return bool(hooks.removeShutdownHook(hook))
        except (Py4JError, OSError):
            return False

    return remove
