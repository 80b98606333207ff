"""DAGs that name their queue by a connection, for test_airflow_connections.py."""

from __future__ import annotations

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

from spark_mq import Message
from spark_mq.integrations.airflow.operators import AckOperator, PublishOperator
from spark_mq.integrations.airflow.sensors import MessageSensor


def watched(name: str, group: str) -> Asset:
    trigger = MessageQueueTrigger(
        scheme="spark_mq", spark_mq_conn_id=name, group=group, poll_interval=0.5
    )
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


def sensor(group: str, **options: float) -> MessageSensor:
    return MessageSensor(
        task_id="wait", spark_mq_conn_id="orders", group=group, poll_interval=0.5, **options
    )


with DAG("publish", schedule=[watched("orders", "watcher")]):
    PublishOperator(
        task_id="publish",
        spark_mq_conn_id="published",
        messages=["by {{ dag.dag_id }}", Message("b", key="k")],
    )

with DAG("lost", schedule=[watched("lost", "watcher"), watched("missing", "watcher")]):
    PublishOperator(task_id="publish", spark_mq_conn_id="lost", messages="a")

with DAG("wait", schedule="@once"):
    wait = sensor("waiting", visibility_timeout=600)
    ack = AckOperator(
        task_id="ack", spark_mq_conn_id="orders", group="waiting",
        lease_id="{{ ti.xcom_pull('wait')['lease_id'] }}",
    )  # fmt: skip
    wait >> ack

with DAG("impatient", schedule="@once"):
    sensor("impatient", timeout=3)
