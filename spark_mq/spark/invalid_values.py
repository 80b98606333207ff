"""Reject the messages of a batch whose values do not fit ``valueSchema``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_mq.errors import InvalidOption, InvalidSchema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark_mq.handler import HandlerPolicy
    from spark_mq.spark.batch_lease import BatchLease

__all__ = ["INVALID_VALUES", "RejectInvalid"]

INVALID_VALUES: Final = ("keep", "reject")


class RejectInvalid:
    """Calls ``process(batch, lease)`` after it has rejected the rows with a ``data_error``.

    That verdict depends on the value alone, so a replay gives the same.
    """

    def __init__(
        self, process: Callable[[DataFrame, BatchLease], Any], policy: HandlerPolicy
    ) -> None:
        if policy.ack == "on_receive":
            raise InvalidOption(
                "invalid='reject' cannot be used with ack='on_receive', which acks invalid values "
                "first. Use ack='on_success' or ack='manual'",
                option="invalid",
                value="reject",
            )
        self._process = process

    def __call__(self, batch: DataFrame, lease: BatchLease) -> Any:
        missing = {"data_error", "lease_id", "sequence"} - set(batch.columns)
        if missing:
            name = min(missing)
            raise InvalidSchema(
                f"invalid='reject' needs the column {name!r}. Read with the option valueSchema, "
                f"and keep data_error, lease_id and sequence in your transformations",
                column=name,
            )
        batch = batch.persist()  # Two jobs read it, and Python parses it.
        try:
            invalid = batch.where("data_error IS NOT NULL")
            lease.reject(invalid.selectExpr("lease_id", "sequence", "data_error AS error"))
            lease._batch = batch.where("data_error IS NULL")  # for its read()
            return self._process(lease._batch, lease)
        finally:
            batch.unpersist()
