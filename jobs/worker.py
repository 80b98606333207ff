"""Run a worker of a consumer group: lease batches of a queue in a stream, pass each to your
function, and settle it.

The function is process(batch, lease), where batch is a DataFrame. Its columns are sequence,
message_id, key, value, headers, published_at, delivery_count, lease_id, lease_expires_at, state,
failure_count, worker_id, available_at, reason and error. With several queues it also has queue, the
path. value is bytes, so cast it to string. When the function returns, the batch is acked. It may
return rows that are settled one by one, as failed or by their columns outcome, delay and error. An
exception settles the whole batch as failed (--on-error). lease.reject(df), lease.nack(df) and
lease.ack(df) settle rows at once. With lease.delta_options a Delta table takes the append of a
batch only once, also if the batch runs again.

Start several workers of a group, each with its own checkpoint. After SIGTERM the worker
finishes and settles the running batch, gives later ones back, and ends. After any other death start
it again on its checkpoint: it repeats the running batch.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from _common import Parser, duration, run, session
from pyspark.errors import PySparkRuntimeError

from spark_mq.errors import InvalidOption
from spark_mq.handler import ON_ERROR, WHEN
from spark_mq.spark.batch_outcome import INVALID_VALUES
from spark_mq.spark.foreach_batch import READERS, for_each_batch
from spark_mq.util.clock import SECOND
from spark_mq.util.loading import folder_of, load_handler
from spark_mq.util.user import worker_name
from spark_mq.util.validation import validate_duration

EXAMPLES = """examples:
  worker.py --queue /tmp/orders --handler billing:process \\
    --checkpoint /tmp/checkpoints/billing-1 --group billing
  worker.py --queue /tmp/orders --handler handlers/billing.py:process \\
    --checkpoint /tmp/c1 --trigger available-now
  worker.py --queue /tmp/orders --handler billing:process --checkpoint /tmp/c1 \\
    --trigger "5 seconds" --max-messages 10000

exit code: 0 at the end of available-now, or after SIGTERM to Python; 2 wrong arguments; 1 if the
query failed. After SIGTERM to spark-submit it is 143, which the JVM sets.
"""

APP = "spark_mq worker"

_log = logging.getLogger("spark_mq.worker")

Handler = Callable[[Any, Any], Any]


# How each value is written, and what the option does. `--group` and `--queue` are options of the
# source as well. Those of for_each_batch have the defaults of its signature.
BOOLEAN = "true|false"
SOURCE = {
    "workerId": ("NAME", "a label for people, in the ledger and its history. Default: host and "
                         "process"),
    "maxMessagesPerTrigger": ("N", "the most messages of a batch. Default: 100000"),
    "maxBytesPerTrigger": ("SIZE", "about the most bytes of a batch, such as 64m"),
    "visibilityTimeout": ("DURATION", "how long the messages of a dead worker stay hidden. "
                                      "Default: the group's setting"),
    "maxLeaseDuration": ("DURATION", "how long one batch may take. Default: 30m"),
    "failOnDataLoss": (BOOLEAN, "whether to end if the queue's hard limit dropped unsettled "
                                "messages. Default: true"),
    "createGroup": (BOOLEAN, "whether the first lease creates the group. With false a group that "
                             "is missing ends the job. Default: true"),
    "startingPosition": ("POSITION", "where a new group begins: earliest, latest, a sequence, an "
                                     "instant. Default: earliest"),
    "minPartitions": ("N", "the least number of Spark tasks of a batch. Default: 1"),
    "pollInterval": ("DURATION", "how long an idle stream waits before it looks again, which "
                                 "doubles each time. Default: 50ms"),
    "idlePollInterval": ("DURATION", "the longest that an idle stream waits until it looks again. "
                                     "Default: 100ms, 2s on a store"),
    "valueSchema": ("DDL", "the schema of JSON values, such as 'id INT, items ARRAY<STRING>'. "
                           "Adds the columns data and data_error"),
}  # fmt: skip
BATCH = {
    "on_error": ("|".join(ON_ERROR),
                 "what an exception does: nack (delivered again later), reject (to the dead "
                 "letters), ack, or raise (this worker ends)"),
    "ack": ("|".join(WHEN),
            "when a batch is acked: on_success, after the function has returned, on_receive, "
            "before it is called, or manual, only by lease.ack(...), nack and reject. With "
            "on_receive a dead worker loses its batch. With manual unsettled messages are "
            "delivered again, also those of a batch of which the function saw no row"),
    "reader": ("|".join(READERS),
               "how a batch is read: by Spark's own Parquet reader where that changes nothing, or "
               "always by the source's tasks"),
    "invalid": ("|".join(INVALID_VALUES),
                "what happens to values with a data_error: the function gets them (keep), or they "
                "become dead letters before it is called (reject)"),
    "sweep": ("DURATION", "sweep the queues so often while batches come, 1s to 1h, and once more "
                          "at the end of available-now. Of all workers one at a time does. "
                          "Default: another process sweeps"),
}  # fmt: skip
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(for_each_batch).parameters.items()
}


def _flag(option: str) -> str:
    """Return the name here of an option of the source: maxMessagesPerTrigger is --max-messages."""
    words = re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", option)
    return "--" + words.removesuffix("-per-trigger")


def _add(parser: Parser, flag: str, values: str, text: str, **more: Any) -> None:
    if "|" in values:
        more["choices"] = values.split("|")
    else:
        more["metavar"] = values
    if values == "DURATION":
        more["type"] = duration
    if more.get("default") is not None:
        text += f". Default: {more['default']}"
    parser.add_argument(flag, help=text, **more)


def options() -> Parser:
    parser = Parser(__doc__ or "", epilog=EXAMPLES, several=True)
    parser.add_argument("--handler", required=True, metavar="MODULE:FUNCTION",
                        help="the function, in a module of this folder or an installed one; or "
                             "path/to/file.py:function")  # fmt: skip
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="PATH",
        help="where Spark keeps the progress of the stream; one for each worker",
    )
    parser.add_argument(
        "--group",
        default="default",
        help="the consumer group; its workers share the messages. Default: default",
    )
    parser.add_argument("--trigger", default="default", type=trigger,
                        metavar="default|available-now|DURATION",
                        help="a batch as soon as messages are due; all that are due now, then "
                             "end; or one in each interval: '5 seconds'. Default: "
                             "default")  # fmt: skip
    for name, (values, text) in SOURCE.items():
        _add(parser, _flag(name), values, text, dest=name)
    for name, (values, text) in BATCH.items():
        _add(parser, "--" + name.replace("_", "-"), values, text, default=DEFAULTS[name])
    parser.add_argument("--shutdown-timeout", default="30s", type=duration, metavar="DURATION",
                        help="how long the running batch may take after SIGTERM. Default: "
                             "30s")  # fmt: skip
    return parser


def arguments() -> argparse.Namespace:
    return options().parse_args()


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the stream."""
    given = {name: getattr(args, name) for name in SOURCE}
    given |= {
        "path": args.queues[0] if len(args.queues) == 1 else json.dumps(args.queues),
        "consumerGroup": args.group,
        "workerId": worker_name(args.workerId or None),
        "ack": "manual" if args.ack == "manual" else None,
        **{f"storageOptions.{name}": value for name, value in args.storage_options},
    }
    return {name: value for name, value in given.items() if value is not None}


def trigger(text: str) -> dict[str, Any]:
    """Return --trigger as arguments of writeStream.trigger."""
    if text == "default":
        return {"processingTime": "0 seconds"}
    if text == "available-now":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{validate_duration('--trigger', text) // 1000} milliseconds"}
    except InvalidOption:
        wrong = f"{text!r} is neither default nor available-now nor a duration like '5 seconds'"
        raise argparse.ArgumentTypeError(wrong) from None


def load(text: str) -> Handler:
    """Return the function that MODULE:FUNCTION names. Raises InvalidOption."""
    handler = load_handler(text, f"--handler {text}", lambda module: load_module(module, text))
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        name = text.rpartition(":")[2]
        raise InvalidOption(
            f"--handler {text}: {name}{inspect.signature(handler)} cannot be called as "
            f"{name}(batch, lease)",
            option="--handler",
            value=text,
        ) from None
    return handler


def load_module(module: str, handler: str) -> ModuleType:
    """Return a module, which may make a UDF or a column as it is loaded."""
    try:
        return importlib.import_module(module)
    except PySparkRuntimeError as error:
        if error.getCondition() != "SESSION_OR_CONTEXT_NOT_EXISTS":
            raise
    session(APP, module_path=str(folder_of(handler)))
    return importlib.import_module(module)


def main() -> None:
    args = arguments()
    directory = str(folder_of(args.handler))
    handler = load(args.handler)
    grace = validate_duration("--shutdown-timeout", args.shutdown_timeout) / SECOND

    from spark_mq import Queue
    from spark_mq.spark import on_sigterm, stop_query
    from spark_mq.spark.options import ReadOptions

    options = source_options(args)
    read = ReadOptions.parse(options)
    queues = [Queue.open(path, storage_options=read.storage_options) for path in read.paths]
    group, *others = (
        queue.group(read.group, start=read.start, create=read.create_group) for queue in queues
    )

    spark = session(APP, module_path=directory)
    own = {name: getattr(args, name) for name in BATCH}
    each = for_each_batch(group, handler, more_groups=others, **own)
    stream = spark.readStream.format("spark_mq").options(**options).load()
    query = (
        stream.writeStream.foreachBatch(each)
        .option("checkpointLocation", args.checkpoint)
        .trigger(**args.trigger)
        .start()
    )
    _log.info(
        "worker %s of group %s reads %s",
        options["workerId"],
        args.group,
        ", ".join(g._context.path for g in (group, *others)),
    )
    # 5 seconds more than the batch has, to stop the query and to give later leases back.
    with on_sigterm(spark, lambda: stop_query(query, each, grace), grace + 5) as stopped:
        query.awaitTermination()
        if not stopped.is_set():
            each.run_last_sweep()
        # Inside the block: after it the JVM ends, and with it the pipe of this output.
        _log.info(
            "worker %s has ended%s",
            options["workerId"],
            " after SIGTERM" if stopped.is_set() else ": all due messages are processed",
        )


if __name__ == "__main__":
    run(main)
