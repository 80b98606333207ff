"""Values, rows and objects as a notebook shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_mq.util.records import ArrowRows, Records, object_html, rows_html, show


def test_text_is_shown_as_text_and_bytes_as_digits() -> None:
    assert show("grüße".encode()) == "grüße"
    assert show(b'{"id": 1}') == '{"id": 1}'
    assert show(b"\xff\x00") == "0xff00 (2 bytes)"
    assert show(b"\x00\x01a") == "0x000161 (3 bytes)"  # UTF-8, but no text
    assert show(bytes(range(128, 168)) * 50) == f"0x{bytes(range(128, 160)).hex()}… (2,000 bytes)"
    assert show("x" * 300) == "x" * 200 + "…"


def test_durations_and_intervals_are_short() -> None:
    assert show(timedelta(minutes=5, seconds=17, microseconds=49_741)) == "5m 17s"
    assert show(timedelta(seconds=1, microseconds=500_400)) == "1.5s"
    assert show(((1, 5), (8, 8))) == "1 to 5, 8 to 8"


def test_numbers_have_separators_and_stand_on_the_right() -> None:
    html = rows_html([{"messages": 12_345, "sequence": 4_294_967_297, "key": "7", "share": 0.25},
                      {"messages": None, "sequence": 1, "key": "8", "share": 1.0}])  # fmt: skip
    right, left = '<t{} style="text-align:right{}">', '<t{} style="text-align:left">'
    for name in ("messages", "sequence", "share"):
        assert right.format("h", "") + name in html
    assert left.format("h") + "key" in html
    nowrap = right.format("d", ";white-space:nowrap")
    # A sequence can be copied into a call.
    for text in ("12,345", "-", "4294967297", "25.0%"):
        assert f"{nowrap}{text}</td>" in html
    assert left.format("d") + "7</td>" in html
    facts = object_html({"published": 1_234_567, "closed": True, "lanes": (1, 2, 3)})
    assert f"{nowrap}1,234,567</td>" in facts
    assert left.format("d") + "yes</td>" in facts
    assert left.format("d") + "1, 2, 3</td>" in facts


def test_a_time_stays_in_one_line() -> None:
    html = rows_html([{"at": datetime(2026, 1, 2, tzinfo=UTC), "error": "long"}])
    assert 'style="text-align:left;white-space:nowrap">2026-01-02 00:00:00Z' in html
    assert html.count("nowrap") == 1


def test_values_and_titles_are_escaped() -> None:
    for html in (
        object_html({"<i>": "<script>"}, "<title>"),
        rows_html([{"<i>": "<script>"}], title="<title>"),
    ):
        assert "<script>" not in html
        assert "<i>" not in html
        assert "<title>" not in html
        assert "&lt;script&gt;" in html


def test_a_long_list_is_cut() -> None:
    assert "and 10 more" in Records([{"n": n} for n in range(60)])._repr_html_()
    assert "and 1,000 more rows" in ArrowRows(pa.table({"n": range(1_050)}))._repr_html_()
