"""The web page in headless Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.relays import serving

from spark_mq import Message, Queue

Open = Callable[..., Any]
PAGES = ("/", "/queue/orders", "/group/orders?group=billing", "/messages/orders",
         "/letters/orders", "/letters/orders?pick=4294967296", "/sweeps/orders", "/changes/orders",
         "/change/orders?do=pause&group=billing")  # fmt: skip


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_is_wider_than_the_screen_and_none_has_an_error(
    open_page: Open, queue: Queue, address: str, width: int, colours: str
) -> None:
    for number in range(60):
        queue.group(f"a-group-with-a-rather-long-name-{number:02}").ensure()
    Queue.create(Path(queue.path).parent / "empty", durable=False)
    keyed = Queue.create(Path(queue.path).parent / "keyed", durable=False, lanes=64, order="key")
    keyed.publish([Message(f"{n}", key=f"key-{n % 90}", priority=n % 3) for n in range(900)])
    keyed.group("billing").lease("worker-7", max_messages=100)
    page = open_page(width, colours)
    sequence = queue.peek(1)[0].sequence
    more = (f"/message/orders?sequence={sequence}", "/queue/empty", "/group/keyed?group=billing")
    for view in (*PAGES, *more):
        page.goto(address + view, wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert "Loading…" not in page.inner_text("body"), view
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (colours == "light")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_fault(browser: Any, queue: Queue, address: str, colours: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # The policy of the pages would stop the script of axe.
    context = browser.new_context(bypass_csp=True, color_scheme=colours)
    page, sequence = context.new_page(), queue.peek(2)[1].sequence
    queue.group("slow").pause("repairs")
    more = ("/group/orders?group=slow", "/change/orders?do=configure&group=billing",
            f"/message/orders?sequence={sequence}",
            f"/change/orders?do=discard-message&group=billing&sequence={sequence}")  # fmt: skip
    faults = {}
    for view in (*PAGES, *more):
        page.goto(address + view, wait_until="networkidle")
        for fault in Axe().run(page).response["violations"]:
            faults[view, fault["id"]] = [one["html"] for one in fault["nodes"]][:3]
    context.close()
    assert not faults


def test_a_table_is_sorted_by_a_heading(open_page: Open, queue: Queue, address: str) -> None:
    for name in ("a", "b", "c"):
        queue.group(name).ensure()
    queue.group("c").lease("w", max_messages=7).ack()
    page = open_page()
    page.goto(f"{address}/queue/orders", wait_until="networkidle")

    def groups() -> list[str]:
        return page.locator("section tbody tr td:first-child").all_inner_texts()

    page.locator("section a:text-is('c')").wait_for()  # an overview may be a second old
    heading = page.locator("section th").filter(has_text="Group")
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert groups() == ["a", "b", "billing", "c"]
    assert heading.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert groups() == ["c", "billing", "b", "a"]
    page.locator("section th button").filter(has_text="Acked").click()
    assert groups()[0] == "c", "numbers begin with the greatest"
    assert heading.get_attribute("aria-sort") is None
    queue.group("b").lease("w", max_messages=20).ack()
    page.locator("section tbody tr:first-child", has_text="b").wait_for()  # it stays so
    assert groups()[:2] == ["b", "c"]


def test_a_range_of_the_charts_is_chosen(open_page: Open, queue: Queue, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/queue/orders", wait_until="networkidle")
    page.click("a:text-is('6h')")
    page.locator("a[aria-current=true]:text-is('6h')").wait_for()
    assert page.url == f"{address}/queue/orders?range=6h"
    assert page.locator("figure .ticks").first.locator("time").count() == 4
    last = page.locator("figure svg").first.locator("rect.hover").last
    assert "so far: published 61" in last.locator("title").text_content()


def test_a_message_is_retried_from_its_page(open_page: Open, queue: Queue, address: str) -> None:
    (delayed,) = (one.sequence for one in queue.group("billing").peek(state="delayed"))
    page = open_page()
    page.goto(f"{address}/message/orders?sequence={delayed}", wait_until="networkidle")
    page.click("a:text-is('Retry now')")
    assert "Deliver message 1:1 to group billing now?" in page.inner_text("main")
    page.click("button:text-is('Retry now')")
    page.wait_for_url("**/message/orders?done=1*")
    assert page.inner_text("[role=status]") == "Done."
    assert queue.group("billing").stats().delayed == 0


def test_all_comes_from_the_page_itself(open_page: Open, queue: Queue, address: str) -> None:
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view in PAGES:
        page.goto(address + view, wait_until="networkidle")
    assert any("htmx" in url for url in asked)
    assert all(url.startswith(address) for url in asked)


@pytest.fixture
def keyed(tmp_path: Path) -> Queue:
    """A queue with lanes, of which a lease holds one."""
    keyed = Queue.create(tmp_path / "queues" / "keyed", durable=False, lanes=8, order="key")
    keyed.publish([Message(f"{n}", key="only-key") for n in range(5)])
    keyed.group("billing").lease("worker-7")
    return keyed


def test_a_group_shows_its_lanes(open_page: Open, keyed: Queue, address: str) -> None:
    assert keyed
    page = open_page()
    page.goto(f"{address}/group/keyed?group=billing", wait_until="networkidle")
    assert "of worker-7 until" in page.inner_text("main")
    strip = page.locator("svg.lanes rect.lane-leased")
    assert strip.count() == 1
    assert strip.bounding_box()["height"] > 20


def test_the_policy_stops_a_script_in_the_page(browser: Any, queue: Queue, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/queue/orders")
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        " document.body.append(s); const i = document.createElement('img');"
        " i.setAttribute('onerror', 'window.bad = 2'); i.src = '/none'; document.body.append(i); }"
    )
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.bad === undefined")
    page.close()


@pytest.mark.slow
def test_the_page_shows_news_by_itself(open_page: Open, queue: Queue, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/queue/orders", wait_until="networkidle")
    queue.publish(["news"] * 1_000)
    page.locator("text=1,061").first.wait_for()
    page.locator("rect.state-ready").first.wait_for()


def test_a_change_is_confirmed_and_recorded(open_page: Open, queue: Queue, address: str) -> None:
    page = open_page()
    page.goto(f"{address}/queue/orders", wait_until="networkidle")
    page.click("a:text-is('billing')")
    page.click("a:text-is('Pause')")
    assert queue.group("billing").blocked_because == ""
    page.fill("input[name=reason]", "repairs")
    page.click("button:text-is('Pause')")
    page.wait_for_url("**/changes/orders?done=1")
    row = page.inner_text("tbody tr")
    assert "pause" in row
    assert "alice" in row
    assert "repairs" in queue.group("billing").blocked_because
    page.goto(f"{address}/letters/orders", wait_until="networkidle")
    page.check("input[name=pick]")
    page.click("text=Dry run of the ticked letters")
    assert "1 letter would be redriven, 1 to group billing." in page.inner_text("main")
    page.goto(f"{address}/letters/orders", wait_until="networkidle")
    page.locator("tbody a").first.click()
    page.click("text=Redrive them")
    page.click("button:text-is('Redrive them')")
    page.wait_for_url("**/changes/orders?done=1&redriven=1")
    assert "Redriven: 1 dead letter." in page.inner_text("main")
    assert queue.describe().dead_letters == 0


def test_another_site_cannot_make_a_change(browser: Any, queue: Queue, address: str) -> None:
    """A form of another site reaches the page without cookie and token, and is refused."""
    form = (
        f"<form method=post action='{address}/change/orders'><input name=do value=pause>"
        "<input name=group value=billing></form>"
    )

    html = {"Content-Type": "text/html"}
    with serving(lambda to, _: to.answer(200, form.encode(), html)) as site:
        page = browser.new_page()
        page.goto(f"{address}/queue/orders")
        page.goto(site.replace("127.0.0.1", "localhost"))
        with page.expect_response("**/change/orders") as answer:
            page.evaluate("document.forms[0].submit()")
        assert answer.value.status == 403
        page.close()
    assert queue.group("billing").blocked_because == ""
