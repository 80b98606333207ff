"""Texts that were read once and approved. ``APPROVE=1`` writes them again, to be read in a diff."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["ALL_SPANS", "SHORT_SPANS", "assert_approved", "without_what_varies"]

ALL_SPANS = re.compile(r"\b\d+(\.\d+)?(us|ms|s|m|h)\b( \d+(us|ms|s|m|h)\b)*")
SHORT_SPANS = re.compile(r"\b\d+(\.\d+)?(us|ms|s)\b")
"""Durations that may be ages of what a test has made. Longer ones are of settings."""

_TIMES = re.compile(r"\b20[0-8]\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?")
"""Not those of the year 2090, which a test has given."""
_VARIES = (
    (re.compile(r"\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b\d+(\.\d+)? ?([KMG]iB|bytes)\b"), "SIZE"),
    (re.compile(r"\b\w+@[\w.-]+"), "USER"),
    (re.compile(r"[ \t]{2,}"), "  "),
)


def without_what_varies(text: str, folder: Path, *, spans: re.Pattern[str] = ALL_SPANS) -> str:
    """Replace times, ids, durations, sizes and paths, of which each run has others."""
    text = text.replace(str(folder), "FOLDER")
    for pattern, name in ((_TIMES, "TIME"), (spans, "SPAN"), *_VARIES):
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.splitlines())


def assert_approved(path: Path, texts: Iterable[tuple[str, str]]) -> None:
    """Compare texts by their titles with those of a file."""
    shown = "".join(f"$ {title}\n{text}\n\n" for title, text in texts)
    if os.environ.get("APPROVE"):
        path.write_text(shown, encoding="utf-8")
    approved = path.read_text(encoding="utf-8")
    assert shown.split("\n\n$ ") == approved.split("\n\n$ "), f"APPROVE=1 writes {path.name}"
