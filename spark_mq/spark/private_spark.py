"""Ask Spark's private classes for what no public one tells. Nothing else here touches them.

A version of Spark may change them. Then the answers are those of a session that hides its classes,
as Spark Connect does: slower, but right. The first time, a warning says so.

A py4j call takes about 0.2 ms, so each batch makes few of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from pyspark import __version__

_log = logging.getLogger(__name__)

_SCAN: Final = "MicroBatchScanExec"
_SOURCE: Final = "StreamingDataSourceV2ScanRelation"
_SINK: Final = "WriteToMicroBatchDataSourceV1"
_NAMING: Final = "SubqueryAlias"
_PRUNING: Final = "Project"
_EVENTS_MS: Final = 5_000  # for events at the end of the process
_BEFORE_SPARK: Final = 100  # Hadoop runs hooks with higher numbers first. Spark's have 40 to 50.
# A JVM that ends, is busy or refuses something says nothing about its classes. By name, because a
# client of Spark Connect has no py4j.
_USUAL: Final = ("Py4JJavaError", "Py4JNetworkError")

P = ParamSpec("P")
T = TypeVar("T")
_warned: set[str] = set()  # versions of Spark


def _unless_changed(otherwise: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function return `otherwise` if it meets other classes than it knows."""

    def decorate(ask: Callable[P, T]) -> Callable[P, T]:
        @wraps(ask)
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return ask(*args, **kwargs)
            except Exception as error:
                if isinstance(error, OSError) or type(error).__name__ in _USUAL:
                    _log.debug("%s has no answer: %s", ask.__qualname__, error)
                else:
                    _warn(ask.__qualname__, error)
            return otherwise

        return answer

    return decorate


def _warn(what: str, error: Exception) -> None:
    first = __version__ not in _warned
    _warned.add(__version__)
    _log.log(
        logging.WARNING if first else logging.DEBUG,
        "Spark %s has other private classes than this version of spark_mq knows (%s: %s: %s). "
        "Results stay right, but large batches of foreachBatch are read through Python, which is "
        "slower, and after SIGTERM spark-submit may repeat a batch. Upgrade spark-mq, or report "
        "this line",
        __version__,
        what,
        type(error).__name__,
        error,
    )


def _java_session(spark: Any) -> Any:
    """Return the session in the JVM, or None over Spark Connect, whose JVM is elsewhere."""
    return getattr(spark, "_jsparkSession", None)


class RunningQuery:
    """The query whose batch runs in this thread."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self.run_id: str = query.runId().toString()

    @_unless_changed(list[str]())
    def new_offsets(self) -> list[str]:
        """Return the JSON offset of each source that has new data in the batch."""
        # The plan is slow to show the sources' formats, but their offsets are at hand.
        query = self._query
        sources, starts, ends = query.sources(), query.committedOffsets(), query.availableOffsets()
        offsets = []
        for source in _items(sources):
            start, end = starts.get(source), ends.get(source)
            # A source without new messages keeps its offset.
            if end.isDefined() and not (start.isDefined() and start.equals(end)):
                offsets.append(str(end.get().json()))
        return offsets

    @_unless_changed(False)
    def only_reads_one_source(self) -> bool:
        """Return whether the query picks columns of one source, and does nothing else."""
        # A stream with minPartitions does not count, because only the source's tasks obey it.
        node = self._query.logicalPlan()
        while (kind := _kind(node)) != _SOURCE:
            if kind == _PRUNING and not node.outputSet().subsetOf(node.child().outputSet()):
                return False
            if kind not in (_PRUNING, _NAMING, _SINK):
                return False
            node = node.children().apply(0)
        return int(node.relation().options().getOrDefault("minPartitions", "1")) == 1

    @_unless_changed(False)
    def puts_out(self, batch: Any) -> bool:
        """Return whether a DataFrame is the query's batch itself, not one made from it."""
        plan = batch._jdf.queryExecution().logical()
        if _kind(plan) != "LogicalRDD":
            return False
        return bool(plan.rdd().id() == self._query.lastExecution().toRdd().id())

    @_unless_changed(list[tuple[str, list[Any]]]())
    def scans(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, list[Any]]]:
        """Return the JSON offset and the partitions of each wanted scan in the batch's plan.

        `is_wanted` gets the offset. It must refuse those of sources that are not in Python.
        """
        from pyspark.serializers import CPickleSerializer

        load: Callable[[bytes], Any] = CPickleSerializer().loads
        leaves = self._query.lastExecution().executedPlan().collectLeaves()
        return [
            (
                offset,
                [load(bytes(part.pickedPartition())) for part in _items(leaf.inputPartitions())],
            )
            for leaf in _items(leaves)
            if _kind(leaf) == _SCAN and is_wanted(offset := str(leaf.end().json()))
        ]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a sequence of Scala."""
    return map(sequence.apply, range(sequence.size()))


@_unless_changed(cast("RunningQuery | None", None))
def running_query(spark: Any, known: RunningQuery | None) -> RunningQuery | None:
    """Return the query whose batch runs in this thread, `known` if it is that one.

    Return None outside a query, or if Spark hides it.
    """
    java = _java_session(spark)
    if java is None:
        return None
    context = spark.sparkContext
    # Spark groups the jobs of a query by the id of its run. Unknown ids are looked up.
    if known and context.getLocalProperty("spark.jobGroup.id") == known.run_id:
        return known
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return None
    # The batch's session is a clone and knows no queries. The shared state knows them.
    running = java.sharedState().activeStreamingQueries()
    query = running.get(spark._jvm.java.util.UUID.fromString(query_id))
    return None if query is None else RunningQuery(query)


@_unless_changed(False)
def has_source(spark: Any, name: str) -> bool:
    """Return whether a session has a data source. Return False over Spark Connect."""
    java = _java_session(spark)
    return java is not None and bool(java.sessionState().dataSourceManager().dataSourceExists(name))


@_unless_changed(False)
def has_java() -> bool:
    """Return whether this process has started a JVM for Spark."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


@_unless_changed(None)
def wait_for_events() -> None:
    """Let Spark deliver its last events, also to a listener that was removed meanwhile."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc.sc().listenerBus().waitUntilEmpty(_EVENTS_MS)


@_unless_changed(False)
def matches_no_file(spark: Any, pattern: str) -> bool:
    """Return whether Hadoop's file systems have nothing under a path or glob."""
    if _java_session(spark) is None:
        return False
    path = spark._jvm.org.apache.hadoop.fs.Path(pattern)
    return not path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)


class _Runnable:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    class Java:
        implements = ("java.lang.Runnable",)


@_unless_changed(lambda: True)
def add_shutdown_hook(spark: Any, run: Callable[[], None], timeout: float) -> Callable[[], bool]:
    """Let the JVM run a function before Spark stops. Return a function that removes the hook.

    That function returns False if the JVM is shutting down. Over Spark Connect there is no hook.
    """
    if _java_session(spark) is None:
        return lambda: True
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # A hash set holds the hooks, and would ask a Python object for its hash over py4j. So the hook
    # is a Thread of the JVM, which is never started.
    hook = jvm.java.lang.Thread(_Runnable(run))
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    hooks.addShutdownHook(hook, _BEFORE_SPARK, int(timeout) + 5, seconds)

    def remove() -> bool:
        try:
            return bool(hooks.removeShutdownHook(hook))
        except (Py4JError, OSError):
            return False

    return remove
