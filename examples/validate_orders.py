"""Check messages in foreachBatch: bad ones become dead letters, good ones rows of a Delta table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spark_mq import Queue
from spark_mq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark import BatchLease

ORDER = "id STRING NOT NULL, amount DOUBLE"


def main(folder: str) -> None:
    spark = session("validate_orders")
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    queue.publish(['{"id": "1", "amount": 5}', '{"id": "2", "amount": -1}', "no JSON"])

    def process(batch: DataFrame, lease: BatchLease) -> None:
        # Rejected before the sink is written: a replay then sees the same rows.
        lease.reject(batch.where("data.amount < 0"), error="negative amount")
        good = batch.where("data.amount >= 0").select("data.*")
        good.write.format("delta").mode("append").options(**lease.delta_options).save(
            f"{folder}/valid"
        )

    group = queue.group("validate")
    each = group.for_each_batch(process, on_error="raise", invalid="reject")
    writer = group.read_stream(spark, valueSchema=ORDER).writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    queue.sweep()
    print(f"valid: {spark.read.format('delta').load(f'{folder}/valid').count()}")
    print(queue.redrive(dry_run=True).table.select(["value", "error"]).to_pylist())


if __name__ == "__main__":
    main(sys.argv[1])
