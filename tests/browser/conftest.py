"""A served page and a real browser. They run with --browser only: they need Chromium."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import started

from spark_mq import Message, Queue


@contextmanager
def served(path: Path, *words: str) -> Iterator[str]:
    """The address of the page of the queues under a path."""
    process = started("web", path, "--port", "0", "--user", "alice", *words)
    try:
        yield process.stderr.readline().split()[-1].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue with a leased, a delayed, a dead and many ready messages."""
    queue = Queue.create(tmp_path / "queues" / "orders", durable=False)
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    queue.publish([Message(evil, key=evil, message_id=evil), *map(str, range(60))])
    lease = queue.group("billing").lease("worker-7", max_messages=3, visibility_timeout="1h")
    first, second, _ = (message.sequence for message in lease.messages)
    lease.reject([first], error=evil)
    lease.nack([second], error=evil, delay="1h")
    queue.sweep()
    return queue


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a page that offers changes."""
    (tmp_path / "queues").mkdir(exist_ok=True)
    with served(tmp_path / "queues", "--allow-changes") as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    with sync_playwright() as driver:
        # Root has no sandbox. What the pages load is this project's own.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page of some width and colours. At the end no page may have had an error."""
    contexts: list[Any] = []
    faults: list[str] = []

    def failed(request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a click left the page while it loaded
            faults.append(f"failed: {request.url}: {request.failure}")

    def opened(width: int = 1280, colours: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=colours
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.on("requestfailed", failed)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults
