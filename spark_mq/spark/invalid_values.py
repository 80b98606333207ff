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
"""The choices of for_each_batch for values that do not parse."""


class RejectInvalid:
    """Call ``process(batch, lease)`` with the messages whose values have parsed.

    The others are rejected first, each with its ``data_error``. The verdict depends on the value
    alone, so a replay gives the same.

    Parameters
    ----------
    process
        The function to call. It is pickled with this object over Spark Connect.
    policy
        The policy of the batch's handler.

    Raises
    ------
    InvalidOption
        The policy acks a batch before its values are known.
    """

    def __init__(
        self, process: Callable[[DataFrame, BatchLease], Any], policy: HandlerPolicy
    ) -> None:
        if policy.ack == "first":
            raise InvalidOption(
                "invalid='reject' cannot be used with ack='first', which acks invalid values "
                "first. Use ack='after' or ack='manual'",
                option="invalid",
                value="reject",
            )
        self._process = process

    def __call__(self, batch: DataFrame, lease: BatchLease) -> Any:
        """Reject the invalid rows of the batch, and process the others.

        Raises
        ------
        InvalidSchema
            The batch has no column ``data_error``.
        """
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
            return self._process(batch.where("data_error IS NULL"), lease)
        finally:
            batch.unpersist()
