"""Run the command line as ``python -m spark_mq``."""

from __future__ import annotations

from spark_mq.interfaces.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
