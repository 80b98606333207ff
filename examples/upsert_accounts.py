"""Apply changes of accounts to a Delta table in the order of each account, with MERGE."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from spark_mq import Message, Queue
from spark_mq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark import BatchLease

CHANGE = "id STRING NOT NULL, owner STRING, city STRING, closed BOOLEAN"
COLUMNS = ("owner", "city", "closed")


def publish(queue: Queue) -> None:
    """Publish changes of 100 accounts. Each change has some columns only."""
    for change in ({"owner": "first"}, {"city": "Bern"}, {"owner": "second"}, {"closed": True}):
        ids = [f"account-{n}" for n in range(100)]
        queue.publish([Message(json.dumps({"id": one, **change}), key=one) for one in ids])


def latest(changes: DataFrame) -> DataFrame:
    """Return one row for each account: the last value of each column that a change has."""
    last = [
        f.max_by(name, f.when(f.col(name).isNotNull(), f.col("sequence"))).alias(name)
        for name in COLUMNS
    ]
    return changes.groupBy("id").agg(*last, f.max("sequence").alias("sequence"))


def main(folder: str) -> None:
    spark = session("upsert_accounts")
    queue = Queue.create(f"{folder}/changes", lanes=64, exist_ok=True)
    group = queue.group("accounts")
    group.configure(order="key")
    publish(queue)
    table = f"delta.`{folder}/accounts`"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({CHANGE}, sequence BIGINT) USING delta")

    def process(batch: DataFrame, lease: BatchLease) -> None:
        changes = batch.where("data IS NOT NULL").select("data.*", "sequence")
        latest(changes).createOrReplaceTempView("changes")
        merged = ", ".join(f"{name} = coalesce(s.{name}, t.{name})" for name in COLUMNS)
        # The guard skips what a replay of the batch brings again.
        batch.sparkSession.sql(
            f"MERGE INTO {table} AS t USING changes AS s ON t.id = s.id "
            f"WHEN MATCHED AND s.sequence > t.sequence "
            f"THEN UPDATE SET {merged}, sequence = s.sequence "
            f"WHEN NOT MATCHED THEN INSERT *"
        )

    each = group.for_each_batch(process, on_error="raise", invalid="reject")
    stream = group.read_stream(spark, valueSchema=CHANGE, minPartitions=8)
    writer = stream.writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    found = spark.sql(f"SELECT owner, city, closed, count(*) AS n FROM {table} GROUP BY ALL")
    for row in found.collect():
        print(f"{row.n} accounts of {row.owner} in {row.city}, closed: {row.closed}")
    print(f"acked {group.stats().acked}")


if __name__ == "__main__":
    main(sys.argv[1])
