"""Publish files into a queue: JSON lines, CSV or Parquet.

Each line or row is a message. All are published together, or none.

The value of a message:
  json      the line itself, which must be JSON. Blank lines are left out
  csv       the row as a JSON object of text, named by the header line. With
            --option inferSchema=true it has numbers too
  parquet   the row as a JSON object
Null fields are left out of the object. COLUMN is a column of the file, or a field of a JSON line:
user, or user.id in an object.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from _common import Parser, pair, run, session

from spark_mq import Queue
from spark_mq.errors import InvalidOption, QueueNotFound

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EXAMPLES = """examples:
  publish.py --queue /tmp/orders --create orders.jsonl
  publish.py --queue /tmp/orders --key-column customer.id --header kind=type \\
    --header source:=import day1.jsonl day2.jsonl
  publish.py --queue /tmp/orders --format csv --option sep=';' --option nullValue=NA \\
    --message-id-column order_no orders.csv
  publish.py --queue s3://shop/orders --storage-option AWS_REGION=eu-central-1 \\
    --format parquet s3a://shop/export/

exit code: 0 published, 2 wrong arguments, 1 anything else.
A killed publish has published all messages or none.
"""

OTHER_KINDS = {"csv": (".csv", ".tsv", ".csv.gz"), "parquet": (".parquet",)}


def options() -> Parser:
    parser = Parser(__doc__ or "", epilog=EXAMPLES)
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files, directories or globs, as Spark reads them",
    )
    parser.add_argument(
        "--format",
        choices=("json", "csv", "parquet"),
        default="json",
        help="the format of the files; json has one object a line. Default: json",
    )
    parser.add_argument(
        "--create",
        action="store_true",
        help="create the queue with the default settings if it does not exist",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        metavar="N",
        help="with --create: the number of lanes, for groups with order=key. Default: none",
    )
    parser.add_argument(
        "--value-column",
        metavar="COLUMN",
        help="the value: a column of text or bytes. Default: the row as JSON",
    )
    parser.add_argument(
        "--key-column", metavar="COLUMN", help="the key. In JSON, user.id names a field inside user"
    )
    parser.add_argument(
        "--priority-column", metavar="COLUMN", help="the priority, 0 to 9. A null is 0"
    )
    parser.add_argument(
        "--message-id-column", metavar="COLUMN", help="the message id. Default: a random one"
    )
    parser.add_argument(
        "--header", action="append", default=[], type=pair, metavar="NAME=COLUMN", dest="headers",
        help="a header from a column, left out if that is null; NAME:=TEXT is the same text in "
             "all messages; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--option", action="append", default=[], type=pair, metavar="NAME=VALUE", dest="options",
        help="option of Spark's reader of the format; repeatable. csv already has header=true and "
             "mode=FAILFAST",
    )  # fmt: skip
    return parser


def arguments() -> argparse.Namespace:
    parser = options()
    args = parser.parse_args()
    if args.lanes is not None and not args.create:
        parser.error("--lanes needs --create: the lanes of a queue are fixed when it is created")
    for given in args.inputs:
        for kind, suffixes in OTHER_KINDS.items():
            if args.format == "json" and given.lower().endswith(suffixes):
                parser.error(
                    f"INPUT {given} is a {kind} file by its name: give --format {kind}, or rename "
                    "it if it has JSON lines"
                )
    return args


def check_inputs(spark: SparkSession, inputs: list[str]) -> None:
    """Raise InvalidOption for a missing input. Spark's own error has ninety lines."""
    from spark_mq.spark.private_spark import matches_no_file

    for given in inputs:
        if matches_no_file(spark, given):
            raise InvalidOption(
                f"INPUT {given}: there is no such file or directory", option="INPUT", value=given
            )


def messages(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """Return the files as messages."""
    from pyspark.sql import functions as F

    if args.format == "json":
        rows = (
            spark.read.options(**dict(args.options))
            .text(args.inputs)
            .select("value")
            .where("trim(value) <> ''")
        )
        line = F.col("value")
        wrong = F.raise_error(F.concat(F.lit("this line is not JSON: "), F.left(line, F.lit(200))))
        value = F.when(F.try_parse_json(line).isNull(), wrong).otherwise(line)
    else:
        defaults = {"header": "true", "mode": "FAILFAST"} if args.format == "csv" else {}
        rows = (
            spark.read.format(args.format)
            .options(**{**defaults, **dict(args.options)})
            .load(args.inputs)
        )
        value = F.to_json(F.struct("*"))

    def column(name: str) -> Column:
        return F.get_json_object("value", f"$.{name}") if args.format == "json" else F.col(name)

    def text(name: str) -> Column:
        return column(name).cast("string")

    if args.value_column and args.format == "json":
        lacks = F.raise_error(
            F.concat(
                F.lit(f"--value-column {args.value_column}: this line lacks it: "),
                F.left("value", F.lit(200)),
            )
        )
        value = F.coalesce(F.get_json_object(value, f"$.{args.value_column}"), lacks)
    elif args.value_column:
        value = column(args.value_column)
    out = [value.alias("value")]
    if args.key_column:
        out.append(text(args.key_column).alias("key"))
    if args.priority_column:
        out.append(text(args.priority_column).cast("int").alias("priority"))
    if args.message_id_column:
        out.append(text(args.message_id_column).alias("message_id"))
    if args.headers:
        pairs = [
            (n[:-1], F.lit(of)) if n.endswith(":") else (n, text(of)) for n, of in args.headers
        ]
        given = F.create_map(*(c for n, of in pairs for c in (F.lit(n), of)))
        out.append(F.map_filter(given, lambda _, v: v.isNotNull()).alias("headers"))
    return rows.select(*out)


def main() -> None:
    args = arguments()
    storage = dict(args.storage_options)
    try:
        if args.create:
            lanes = {} if args.lanes is None else {"lanes": args.lanes}
            queue = Queue.create(args.queue, exist_ok=True, storage_options=storage, **lanes)
        else:
            queue = Queue.open(args.queue, storage_options=storage)
    except QueueNotFound as error:
        raise QueueNotFound(
            f"there is no queue at {error.data['path']}: --create creates it", **error.data
        ) from None

    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from spark_mq.spark.options import WriteOptions
    from spark_mq.spark.sink import check_dataframe

    spark = session("spark_mq publish")
    check_inputs(spark, args.inputs)
    found, counted = messages(spark, args), Observation()
    check_dataframe(found.schema, overwrite=False, options=WriteOptions(queue.path, storage))
    options = {f"storageOptions.{name}": value for name, value in storage.items()}
    given = {"key": args.key_column, "priority": args.priority_column,
             "message_id": args.message_id_column}  # fmt: skip
    given = {name: column for name, column in given.items() if column}
    counts = [F.count(name).alias(name) for name in given]
    observed = found.observe(counted, F.count(F.lit(1)).alias("messages"), *counts)
    observed.write.format("spark_mq").mode("append").options(**options).save(queue.path)
    print(f"published {counted.get['messages']:,} messages to {queue.path}")
    warn_of_empty(given, counted.get)


def warn_of_empty(given: dict[str, str], counts: dict[str, int]) -> None:
    """Warn of a column that is null in all rows. Its name may be wrong."""
    for name, column in given.items():
        if counts["messages"] and not counts[name]:
            option = name.replace("_", "-")
            print(
                f"publish.py: warning: --{option}-column {column} is null in all rows, so no "
                f"message has this {option}. Check the name",
                file=sys.stderr,
            )


if __name__ == "__main__":
    run(main)
