"""Try a handler on messages that a group has settled, with ``replay``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from spark_mq.errors import InvalidOption
from spark_mq.interfaces.cli.command import GROUP, Invocation, argument, command, option
from spark_mq.interfaces.cli.output import FAILED, Pages, complain
from spark_mq.interfaces.cli.progress import track
from spark_mq.interfaces.cli.workers import Concurrency
from spark_mq.util.loading import load_handler
from spark_mq.util.show import show_count
from spark_mq.worker.replay_report import ReplayReport

__all__ = ["replay"]


@command("replay", GROUP)
def replay(
    ctx: Invocation,
    handler: Annotated[
        str,
        argument(
            "The function, called with a batch or message. Or path/to/file.py:function.",
            metavar="MODULE:FUNCTION",
        ),
    ],
    since: Annotated[
        str | None,
        option("Only messages settled from then on: -1d, 12h or an instant.", metavar="TIME"),
    ] = None,
    until: Annotated[
        str | None, option("Only messages settled before then.", metavar="TIME")
    ] = None,
    where: Annotated[
        str | None, option("SQL over the columns, such as \"outcome = 'acked'\".")
    ] = None,
    limit: Annotated[int | None, option("The most messages, the newest.", "-n", min=1)] = None,
    mode: Annotated[
        str, option("batch: call it with each batch. message: each message.")
    ] = "batch",
    max_messages: Annotated[
        int | None, option("The most messages in a batch. Default: 1.", min=1)
    ] = None,
    threads: Annotated[int, option("Threads that call it.", min=1)] = 1,
    concurrency: Concurrency = None,
    timeout: Annotated[
        str | None, option("How long one call may take. Its messages fail then. Default: no limit.")
    ] = None,
    on_error: Annotated[str, option("nack, reject or ack.")] = "nack",
    fail_if_worse: Annotated[
        bool, option("Exit with 1 if a message was acked then, and fails or is rejected now.")
    ] = False,
    min_messages: Annotated[int, option("Exit with 1 if fewer messages were replayed.", min=0)] = 0,
    rows: Annotated[
        Path | None,
        option(
            "Write a row for each message to this Parquet file.", metavar="FILE", dir_okay=False
        ),
    ] = None,
) -> Pages:
    """Run a function over messages that a group has settled, and compare outcomes.

    It settles nothing. The function's own effects do happen. It exits with 0, or with 1 if
    --fail-if-worse finds a worse outcome, if fewer than --min-messages were replayed, or if all
    calls hang.
    """
    _check_folder(rows)
    function = load_handler(handler, f"the handler {handler} cannot be used")
    with track("replayed"):
        report = ctx.queue.replay(
            function,
            str(ctx.group_name),
            since=since,
            until=until,
            where=where,
            limit=limit,
            mode=mode,
            max_messages=max_messages,
            threads=threads,
            concurrency=concurrency,
            timeout=timeout,
            on_error=on_error,
        )
    if rows is not None:
        _write(report, rows)
    if report.summary.stopped_because:
        complain(f"the replay ended early: {report.summary.stopped_because}")
        ctx.exit_code = FAILED
    if report.summary.replayed < min_messages:
        complain(
            f"{show_count(report.summary.replayed, 'message')} replayed, fewer than --min-messages "
            f"{min_messages}: give an earlier --since, or a --where that selects more"
        )
        ctx.exit_code = FAILED
    if fail_if_worse and report.is_worse:
        ctx.exit_code = FAILED
    return Pages([_plain(report)], lambda _: str(report).splitlines())


def _plain(report: ReplayReport) -> dict[str, Any]:
    errors = [asdict(one) for one in report.errors]
    return {"group": report.group, **asdict(report.summary), "errors": errors}


def _check_folder(rows: Path | None) -> None:
    """Raise InvalidOption before the work if its result could not be written."""
    if rows is not None and not rows.absolute().parent.is_dir():
        raise InvalidOption(
            f"--rows {rows} is in no folder: create {rows.parent} first",
            option="--rows",
            value=str(rows),
        )


def _write(report: ReplayReport, rows: Path) -> None:
    import pyarrow.parquet as pq  # slow to load

    pq.write_table(report.table, rows)
