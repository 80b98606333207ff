"""Copy a queue to a Delta table. The source acks a batch after Spark has committed it."""

from __future__ import annotations

import sys

from spark_mq import Queue
from spark_mq.spark import session


def main(folder: str) -> None:
    spark = session("stream_to_delta")
    queue = Queue.create(f"{folder}/orders", exist_ok=True)
    queue.publish([f"order {n}" for n in range(10)])
    group = queue.group("archive")
    stream = group.read_stream(spark).selectExpr("sequence", "CAST(value AS STRING) AS text")
    # A second stream needs its own checkpoint and, on a local disk or S3, its own table.
    writer = stream.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/archive").awaitTermination()
    print(f"archived {spark.read.format('delta').load(f'{folder}/archive').count()} rows")
    print(f"acked {group.stats().acked}")


if __name__ == "__main__":
    main(sys.argv[1])
