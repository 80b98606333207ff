"""End a query cleanly after SIGTERM.

Either of the driver's two processes may get the signal: Python with ``python job.py``, or the JVM
with ``spark-submit job.py``, which starts Python as its child. So a hook of the JVM calls back over
py4j, before Spark's own hook stops the context. It is safe to die at once, too, because the running
batch then runs again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_mq.spark.private_spark import add_shutdown_hook
from spark_mq.util.signals import calling_on_signal

if TYPE_CHECKING:
    from spark_mq.spark.foreach_batch import ForEachBatch

_log = logging.getLogger(__name__)

GRACE: Final = 30.0  # seconds from the signal to the end, at most

_EXIT_CODE: Final = 128 + signal.SIGTERM


@contextlib.contextmanager
def on_sigterm(
    spark: Any, stop: Callable[[], object], timeout: float = GRACE
) -> Iterator[threading.Event]:
    """Call a function once if SIGTERM arrives while the block runs.

    Use it in the main thread. It yields an event that the signal sets. Under spark-submit the JVM
    waits for the end of the block, and its exit code is 143.

    Parameters
    ----------
    stop
        Called in another thread. It should make the block end.
    timeout
        Seconds from the signal until the process ends itself.

    Examples
    --------
    >>> with on_sigterm(spark, lambda: stop_query(query, each)):
    ...     query.awaitTermination()  # doctest: +SKIP
    """
    requested, ended, answered = threading.Event(), threading.Event(), threading.Event()
    watchdog = threading.Timer(timeout, _give_up, [timeout])
    watchdog.daemon = True

    def terminate(_: int) -> None:
        if requested.is_set():
            return
        requested.set()
        _log.warning("SIGTERM: stopping within %.0f s", timeout)
        watchdog.start()
        try:
            stop()
        except Exception:
            _log.exception("the stop failed")

    def from_jvm() -> None:
        begin(signal.SIGTERM)
        ended.wait(timeout)
        answered.set()

    remove_hook = None
    try:
        # The block ends with the query. Python's end must not cut off the rest of the stop, which
        # gives leases back, so this waits for it.
        with calling_on_signal(terminate, signal.SIGTERM, join_seconds=timeout) as begin:
            remove_hook = add_shutdown_hook(spark, from_jvm, timeout)
            yield requested
    finally:
        watchdog.cancel()  # the process may continue after the block
        ended.set()
        if remove_hook is not None and not remove_hook():
            # The JVM is shutting down. Without the hook's answer it waits for its own timeout.
            answered.wait(1)
            time.sleep(0.2)


def stop_query(query: Any, each: ForEachBatch, timeout: float = GRACE) -> bool:
    """Stop a query after its running batch, and give the leases of later batches back, uncounted.

    Over Spark Connect `each` is a copy, so the query is stopped during its batch, and the next run
    repeats it.

    Parameters
    ----------
    each
        The function that the query calls, from :func:`for_each_batch`.
    timeout
        Seconds to wait for the running batch and for its commit to the checkpoint.

    Returns
    -------
    bool
        False if the batch still runs. End the process then, because Spark cannot interrupt Python.
        The next run on the checkpoint repeats the batch.
    """
    if type(query).__module__.startswith("pyspark.sql.connect."):
        _log.warning(
            "Spark Connect cannot wait for a running batch. The batch runs again at the next start"
        )
        query.stop()
        return True
    deadline = time.monotonic() + timeout
    if not each.close(timeout):
        return False
    # Spark commits the batch to the checkpoint after the function has returned. A stop before that
    # would repeat the batch.
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
    """Return whether Spark has committed a batch. While idle it reports the next batch, unrun."""
    last = query.lastProgress
    return last is not None and (
        last.batchId > batch_id or (last.batchId == batch_id and "addBatch" in last.durationMs)
    )


def _give_up(timeout: float) -> None:
    _log.error(
        "the query did not stop in %.0f s. The process ends now. Its batch runs again", timeout
    )
    os._exit(_EXIT_CODE)
