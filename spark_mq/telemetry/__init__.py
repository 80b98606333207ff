"""Traces and metrics by OpenTelemetry's messaging conventions (extra ``otel``).

Nothing here imports OpenTelemetry by itself. If the program has set up an SDK, spark_mq reports to
it. Otherwise an operation only looks up one name, and nothing else happens.

This package knows no queue. Operations hand it names and numbers.
"""
