"""The memory of this process, as Linux reports it (``getrusage`` carries a parent's over into its
children).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_mb", "peak_mb"]


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) / 1024


def memory_mb() -> float:
    """What is resident now."""
    return _status("VmRSS")


def peak_mb() -> float:
    """The most that ever was."""
    return _status("VmHWM")
