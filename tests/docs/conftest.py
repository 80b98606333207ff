"""Share the Spark session of tests/spark."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPARK = Path(__file__).resolve().parents[1] / "spark"
sys.path.append(str(_SPARK))  # its harness

_spec = importlib.util.spec_from_file_location("spark_conftest", _SPARK / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

spark = _module.spark  # the same fixture: getOrCreate gives both folders one session
