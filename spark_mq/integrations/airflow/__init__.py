"""Start DAGs of Apache Airflow by messages, and use queues in its tasks.

It needs Airflow 3.3: ``pip install 'spark-mq[airflow]'``. Import from the modules ``triggers``,
``sensors``, ``operators`` and ``hooks``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

__all__ = ["get_provider_info"]

if find_spec("airflow") is None:  # Its import would come back here, to look for providers.
    raise ModuleNotFoundError(
        "The provider needs Airflow, which cannot be imported: install spark-mq[airflow]",
        name="airflow",
    )


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow registers of this package, by its ``apache_airflow_provider``."""
    return {
        "package-name": "spark-mq",
        "name": "spark_mq",
        "description": "Acknowledged message queues on Delta Lake tables.",
        "connection-types": [
            {
                "connection-type": "spark_mq",
                "hook-class-name": "spark_mq.integrations.airflow.hooks.SparkMQHook",
                "hook-name": "spark_mq",
            }
        ],
        "queues": ["spark_mq.integrations.airflow.triggers.SparkMQMessageQueueProvider"],
    }
