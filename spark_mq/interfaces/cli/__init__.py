"""Define the command ``spark-mq``, which needs the extra ``cli``.

stdout carries data only, as a table for people or as JSON lines. Errors, questions and progress go
to stderr. A few options are also environment variables ``SPARK_MQ_*``, unless the command destroys
something.
"""

from __future__ import annotations

import sys

from spark_mq.util.show import encode_anything
from spark_mq.util.signals import exit_on_sigterm

__all__ = ["main"]


_UNTIL_SIGTERM = ("work", "sweep", "web", "top")


def main() -> None:
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") in _UNTIL_SIGTERM:
        # Until they take signals themselves, which is after a second or two of imports.
        exit_on_sigterm()
    try:
        from spark_mq.interfaces.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"spark-mq: error: the command line needs {error.name}, which is not installed. "
            "Run: pip install 'spark-mq[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    encode_anything(sys.stdout, sys.stderr)
    sys.exit(run(sys.argv[1:]))
