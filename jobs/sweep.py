"""Sweep a queue: expire leases, route dead letters to the dead-letter queue, trim, and keep the
tables small.

Delivery is correct without it, but dead letters then wait and the tables grow. It is safe to kill,
to repeat, and to run twice at once.
"""

from __future__ import annotations

import logging

from _common import Parser, duration, run, session

from spark_mq import Queue
from spark_mq.util.clock import SECOND
from spark_mq.util.validation import validate_duration

EXAMPLES = """examples:
  sweep.py --queue /tmp/orders
  sweep.py --queue /tmp/orders --every 60

Prints a line for each sweep. After SIGTERM it finishes the running sweep, within 30 seconds.
exit code: 0, or 143 after SIGTERM to spark-submit, whose JVM sets it;
2 wrong arguments; 1 anything else.
"""

_log = logging.getLogger("spark_mq.sweep")


def options() -> Parser:
    parser = Parser(__doc__ or "", epilog=EXAMPLES)
    parser.add_argument(
        "--every",
        type=duration,
        metavar="SECONDS",
        help="sweep repeatedly, with this pause (also as 5m). Default: once",
    )
    return parser


def main() -> None:
    args = options().parse_args()
    pause = validate_duration("--every", args.every) / SECOND if args.every else None
    queue = Queue.open(args.queue, storage_options=dict(args.storage_options))

    from spark_mq.spark import on_sigterm

    spark = session("spark_mq sweep")
    with on_sigterm(spark, lambda: None) as stopped:
        while not stopped.is_set():
            try:
                print(f"swept {queue.path}: {queue.sweep()}", flush=True)
            except Exception:
                if pause is None:
                    raise
                _log.exception("this sweep failed; the next one goes on from there")
            if pause is None or stopped.wait(pause):
                break


if __name__ == "__main__":
    run(main)
