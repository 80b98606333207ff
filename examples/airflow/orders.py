"""DAGs that work on the messages of a queue: two that messages start, one that waits for them.

Put the file into Airflow's folder of DAGs, and set the variable ``ORDERS_QUEUE`` to the path of the
queue. Each group gets all messages.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from spark_mq import Queue
from spark_mq.integrations.airflow.operators import AckOperator, SweepOperator
from spark_mq.integrations.airflow.sensors import MessageSensor

QUEUE = os.environ.get("ORDERS_QUEUE", "/tmp/orders")

trigger = MessageQueueTrigger(scheme="spark_mq", path=QUEUE, group="watcher")
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

# Messages that arrive together may start one run: go through all of its events.
with DAG("bill_orders", schedule=[orders]):

    @task
    def bill(triggering_asset_events=None):
        for event in triggering_asset_events[orders]:
            message = event.extra["payload"]
            print("billed", message["sequence"], message["value"])

    bill()

# An event only says that there are messages: the task leases them from a group of its own.
with DAG("pack_orders", schedule=[orders], max_active_runs=1):

    @task(retries=2)
    def pack():
        def handle(message):
            print("packed", message.sequence, message.text)

        Queue.open(QUEUE).group("packing").work(handle, mode="message", until="settled")

    pack()

with DAG("ship_orders", schedule="@continuous", max_active_runs=1):
    wait = MessageSensor(task_id="wait", path=QUEUE, group="shipping", visibility_timeout="10m")

    @task
    def ship(leased):
        for message in leased["messages"]:
            print("shipped", message["sequence"], message["value"])

    ack = AckOperator(
        task_id="ack", path=QUEUE, group="shipping",
        lease_id="{{ ti.xcom_pull('wait')['lease_id'] }}",
    )  # fmt: skip
    ship(wait.output) >> ack

with DAG("sweep_orders", schedule=timedelta(minutes=1), max_active_runs=1, catchup=False):
    SweepOperator(task_id="sweep", path=QUEUE)
