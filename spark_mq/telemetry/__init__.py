"""Report traces and metrics by OpenTelemetry's messaging conventions (extra ``otel``).

OpenTelemetry is imported only if the program has set up an SDK. Otherwise an operation looks up two
names in ``sys.modules`` and nothing else. This package knows no queue: operations pass it names and
numbers.
"""
