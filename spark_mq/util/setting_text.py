"""Read settings that people write."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["parse_setting"]


def parse_setting(text: str) -> Any:
    """Return a number, None for "none" or "null", or the text itself, such as "30s"."""
    if text.lower() in ("none", "null"):
        return None
    for kind in (int, float) if re.fullmatch("[-+.0-9eE]+", text) else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text
