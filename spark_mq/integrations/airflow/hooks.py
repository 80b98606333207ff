"""Open the queue that an Airflow connection names, and describe its messages in JSON."""

from __future__ import annotations

import base64
from os import PathLike, fspath
from typing import Any

from airflow.sdk import BaseHook

from spark_mq.errors import InvalidOption
from spark_mq.message import ReceivedMessage
from spark_mq.queue import Queue
from spark_mq.util.validation import invalid


class SparkMQHook(BaseHook):
    """Open a queue by its path, by a connection, or by both.

    Parameters
    ----------
    path
        The path or URI of the queue. Default: ``path`` in the connection's extra.
    spark_mq_conn_id
        A connection of type ``spark_mq``, whose extra is JSON with ``path`` and
        ``storage_options``, which hold the credentials of an object store.
    """

    conn_name_attr = "spark_mq_conn_id"
    conn_type = "spark_mq"
    hook_name = "spark_mq"

    def __init__(
        self, path: str | PathLike[str] | None = None, spark_mq_conn_id: str | None = None
    ) -> None:
        super().__init__()
        self.path = check_place(path, spark_mq_conn_id)
        self.spark_mq_conn_id = spark_mq_conn_id

    def get_conn(self) -> Queue:
        """Open the queue. Raises as :meth:`spark_mq.Queue.open`, and InvalidOption."""
        if self.spark_mq_conn_id is None:
            assert self.path is not None
            return Queue.open(self.path)
        extra = self.get_connection(self.spark_mq_conn_id).extra_dejson
        place = self.path or extra.get("path")
        if not place:
            raise InvalidOption(
                f"connection {self.spark_mq_conn_id!r} names no queue: give path=, or put "
                'the key "path" into its extra',
                option="path",
                value=self.path,
            )
        options = extra.get("storage_options", {})
        if not isinstance(options, dict) or not all(isinstance(v, str) for v in options.values()):
            raise InvalidOption(
                f"storage_options of connection {self.spark_mq_conn_id!r} aren't a JSON object of "
                "text by name: correct its extra",
                option="storage_options",
                value=type(options).__name__,  # they may hold credentials
            )
        return Queue.open(place, storage_options=options)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return which fields the form of a connection shows."""
        return {
            "hidden_fields": ["host", "schema", "login", "password", "port"],
            "relabeling": {},
            "placeholders": {
                "extra": '{"path": "s3://bucket/q", "storage_options": {"region": "eu-west-1"}}'
            },
        }


def check_place(path: str | PathLike[str] | None, conn_id: str | None) -> str | None:
    """Return the path as text. Refuse an object that names no queue before Airflow runs it."""
    if not path and not conn_id:
        raise invalid("path", path, "names no queue: give a path or URI, or spark_mq_conn_id=")
    return None if path is None else fspath(path)


def to_payload(message: ReceivedMessage) -> dict[str, Any]:
    try:
        text = message.value.decode()
    except UnicodeDecodeError:
        text = "\0"
    # PostgreSQL has no JSON with this character.
    no_text = {"value_base64": base64.b64encode(message.value).decode()}
    value = no_text if "\0" in text else {"value": text}
    return {
        "sequence": message.sequence,
        "message_id": message.message_id,
        "key": message.key,
        **value,
        "headers": dict(message.headers),
        "published_at": message.published_at.isoformat(),
        "delivery_count": message.delivery_count,
    }
