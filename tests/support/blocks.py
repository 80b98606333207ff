"""Read the fenced code blocks of Markdown pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["OF_PAGES", "ROOT", "Block", "blocks_of", "pages"]

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n"  # the first line
    r"(?P<text>.*?)^(?P=fence)[ \t]*$",
    re.M | re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``info`` is what follows the language in its first line."""

    page: Path
    line: int
    language: str
    info: str
    text: str

    @property
    def skip_reason(self) -> str | None:
        """Return the reason in "skip: reason", or None if the block must run."""
        return self.info.partition("skip:")[2].strip() if self.info.startswith("skip:") else None


def pages() -> list[Path]:
    """List the Markdown pages for users and contributors."""
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
    return top + sorted((ROOT / "docs").rglob("*.md"))


OF_PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


def blocks_of(page: Path) -> list[Block]:
    """Read the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [_block(page, text, match) for match in _FENCE.finditer(text)]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    language, _, info = match["info"].strip().partition(" ")
    line = text.count("\n", 0, match.start()) + 2
    return Block(page, line, language, info.strip(), match["text"])
