"""The web page in headless Chromium."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

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


def test_without_a_queue_there_is_a_hint(open_page: Open, address: str) -> None:
    page = open_page()
    page.goto(address)
    assert "spark-mq queue create" in page.inner_text("main")


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


def test_a_lane_of_a_group_leads_to_its_keys(open_page: Open, keyed: Queue, address: str) -> None:
    assert keyed
    page = open_page()
    page.goto(f"{address}/group/keyed?group=billing", wait_until="networkidle")
    assert "of worker-7 until" in page.inner_text("main")
    strip = page.locator("svg.lanes rect.lane-leased")
    assert strip.count() == 1
    assert strip.bounding_box()["height"] > 20
    page.click("a[href*='lane=']")
    page.locator("text=only-key").wait_for()


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
    assert "1 letter would be redriven." in page.inner_text("main")
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

    class Attacker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(form.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Attacker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"{address}/queue/orders")
        page.goto(f"http://localhost:{server.server_port}/")
        with page.expect_response("**/change/orders") as answer:
            page.evaluate("document.forms[0].submit()")
        assert answer.value.status == 403
        page.close()
        server.shutdown()
    assert queue.group("billing").blocked_because == ""
