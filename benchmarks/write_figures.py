"""Write the figures of results.json into the documents, between markers.

    .venv/bin/python benchmarks/write_figures.py

A document has a figure as <!-- figure: NAME -->1.65x<!-- /figure -->. ``documented.py`` has the
names. ``make bench`` runs this at its end, and tests/docs fails if a document differs.
"""

from __future__ import annotations

import re
from pathlib import Path

from documented import FIGURES, Results

__all__ = ["FIGURES", "Results", "documents", "markers", "rewritten"]

ROOT = Path(__file__).resolve().parents[1]
_MARKED = re.compile(r"(<!-- figure: (?P<name>[\w-]+) -->).*?(<!-- /figure -->)", re.S)


def documents() -> list[Path]:
    """Return the documents that may have figures."""
    own = [ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def markers(text: str) -> list[str]:
    """Return the names of the figures that a document has."""
    return [found["name"] for found in _MARKED.finditer(text)]


def rewritten(text: str, results: Results) -> str:
    """Return a document with the figures of these results."""

    def figure(found: re.Match[str]) -> str:
        return f"{found[1]}{FIGURES[found['name']](results)}{found[3]}"

    return _MARKED.sub(figure, text)


def main() -> None:
    results = Results.read(ROOT / "benchmarks" / "results" / "results.json")
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = rewritten(before, results)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"changed {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
