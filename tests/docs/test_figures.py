"""A measured figure of a document is one of results.json, and stands in one place."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from types import ModuleType

import pytest
from support.blocks import ROOT

_MARKED = re.compile(r"<!-- figure: [\w-]+ -->.*?<!-- /figure -->", re.S)
_SETTING = re.compile(r"`[^`]+`\s+\([^)]*\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
_NUMBER = r"(?<![\w.,])\d[\d.,]*"
MEASURED = re.compile(
    rf"{_NUMBER}\s?(?:x|ms|µs)(?!\w)|{_NUMBER}(?: \w+)?(?:/s(?!\w)|\s+a\s+second\b)"
    r"|\w+\s+times\s+(?:as\s+)?(?:fast|slow|long)\w*\b"
)
"""What a bench measures: ratios, rates and times below a second."""
NOT_MEASURED = {
    "30 ms": "what the proxy of the S3 bench adds to a request",
    "20,000 messages a second": "assumed of a worker on paper",
    "5,500 GETs a second": "as Amazon documents it",
    "ten times as long": "advice",
    "eight times as fast": "what groups are not",
    "many times slower": "a writer that a rule is about",
}


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """Import the script that writes figures. It finds its neighbours by the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("write_figures")


def measured(text: str) -> list[str]:
    """Return what looks like a measured figure outside of markers, code and settings."""
    for left_out in (_MARKED, _SETTING, _CODE):
        text = left_out.sub(" ", text)
    found = (re.sub(r"\s+", " ", one) for one in MEASURED.findall(text))
    return [one for one in found if one not in NOT_MEASURED]


def test_each_figure_of_a_document_is_that_of_the_results(figures: ModuleType) -> None:
    results = figures.Results.read(ROOT / "benchmarks" / "results" / "results.json")
    for page in figures.documents():
        text = page.read_text(encoding="utf-8")
        assert figures.rewritten(text, results) == text, (
            f"{page}: run benchmarks/write_figures.py, which writes them"
        )


def test_each_figure_stands_in_one_place(figures: ModuleType) -> None:
    texts = (page.read_text(encoding="utf-8") for page in figures.documents())
    places = Counter(name for text in texts for name in figures.markers(text))
    assert places == dict.fromkeys(figures.FIGURES, 1)


def test_no_measured_figure_stands_outside_of_markers(figures: ModuleType) -> None:
    found = {
        str(page.relative_to(ROOT)): measured(page.read_text(encoding="utf-8"))
        for page in figures.documents()
    }
    assert {page: texts for page, texts in found.items() if texts} == {}


def test_no_line_of_a_text_begins_with_a_marker(figures: ModuleType) -> None:
    """Markdown would end the paragraph there. A table begins in the line after its marker."""
    for page in figures.documents():
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^<!-- figure: [\w-]+ -->(?=.)", text, re.M) == [], page


@pytest.mark.parametrize(
    "text",
    ["12.7 ms", "a lease takes 2.5 ms.", "1.65x", "0.35 x", "13 operations a second", "5,000/s",
     "3 times slower", "ten times as fast", "50 µs", "11\na second"],
)  # fmt: skip
def test_a_measured_figure_is_recognized(text: str) -> None:
    assert measured(text)
    assert not measured(f"<!-- figure: x -->{text}<!-- /figure -->")
    assert not measured("a limit of 64 MB, `wait` (100 ms), `retry_delay=1s`, 30 s")
