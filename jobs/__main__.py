"""Print the folder of the jobs, for spark-submit: ``python -m spark_mq_jobs``."""

from __future__ import annotations

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).resolve().parent)
