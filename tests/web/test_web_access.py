"""Who may look, who may change something, and what an answer allows a browser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import queue as queues
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient
from support.forms import after_a_visit, crawl
from support.handles import until
from support.limits import Limits
from support.rule_variants import first, rule_variant

from spark_mq import ConsumerGroup, InvalidOption, Message, Queue
from spark_mq.interfaces.monitor import QueueMonitor
from spark_mq.interfaces.web import Access, security, serve, server

Visit = Callable[..., TestClient]
PASSWORD = "correct horse battery"
SECRETS = {"password": PASSWORD, "token": "a-token-of-prometheus"}
COOKIE = security.COOKIE
ADDRESSES = ["/", "/queue/orders", "/metrics", "/static/style.css", "/change/orders?do=sweep"]


def basic(user: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


TOKEN = {"Authorization": f"Bearer {SECRETS['token']}"}
RIGHT = basic("bob", PASSWORD)
WRONG = [basic("bob", "wrong"), {"Authorization": "Bearer wrong"}, {"Authorization": "Basic %"}]


@pytest.fixture
def client(visit: Visit, queue: Queue) -> TestClient:
    """One that may change the queue, whose dead message is a dead letter now."""
    queue.sweep()
    return visit(allow_changes=True)


def form_of(client: TestClient, **query: Any) -> dict[str, str]:
    """The fields of the form that asks for confirmation."""
    given = after_a_visit(client, **query) if "find" in query else query
    answer = client.get("/change/orders", params=given)
    assert answer.status_code == 200, answer.text
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text))


def change(client: TestClient, form: dict[str, str]) -> tuple[str, str]:
    """Post the form of a change. Return the page that it leads to, and its text."""
    done = client.post("/change/orders", data=form)
    assert done.status_code == 303, done.text
    address = done.headers["location"]
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return address, answer.text


def who(queue: Queue) -> set[tuple[str, str | None]]:
    return {(change.operation, change.user) for change in queue.changes()}


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_answer_carries_a_strict_policy(visit: Visit, queue: Queue, address: str) -> None:
    headers = visit(allow_changes=True).get(address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert ("no-store" in headers["cache-control"]) == ("static" not in address)


def test_nothing_is_loaded_from_elsewhere(visit: Visit, queue: Queue) -> None:
    text = visit().get("/queue/orders").text
    assert not re.search(r'(src|href|action|hx-get)="(https?:)?//', text)
    for name in ("style.css", "tables.js", "htmx.min.js", "htmx.LICENSE.txt"):
        assert visit().get(f"/static/{name}").status_code == 200
    assert visit().get("/static/../app.py").status_code == 404


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_or_a_token_is_needed(visit: Visit, queue: Queue, address: str) -> None:
    client = visit(**SECRETS, allow_changes=True)
    wrong = ({}, *WRONG, basic("bob", ""), basic("bob", SECRETS["token"]),
             {"Authorization": "Bearer"}, {"Authorization": f"Bearer {PASSWORD}"},
             {"Authorization": "Basic é".encode("latin-1")},
             {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()})  # fmt: skip
    for headers in wrong:
        answer = client.get(address, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert "set-cookie" not in answer.headers
        assert "orders" not in answer.text
    for headers in (RIGHT, TOKEN):
        assert client.get(address, headers=headers).status_code == 200


class Visitors:
    """Clients of one page at addresses of their own, on a clock that the test moves."""

    def __init__(self, visit: Visit, **access: Any) -> None:
        self._app = visit(**{**SECRETS, **access}).app

    def at(self, address: str) -> TestClient:
        return TestClient(self._app, base_url="http://localhost", client=(address, 50_000))

    def answers(
        self, number: int, *headers: dict[str, str], at: str = "192.0.2.1", **more: str
    ) -> list[int]:
        """The status of requests without a cookie."""
        return [
            self.at(at).get("/", headers={**headers[n % len(headers)], **more}).status_code
            for n in range(number)
        ]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(security, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def visitors(queue: Queue, visit: Visit, now: list[float]) -> Callable[..., Visitors]:
    return partial(Visitors, visit)


def test_after_twenty_wrong_passwords_each_further_try_waits_a_second(
    visitors: Callable[..., Visitors], now: list[float]
) -> None:
    page = visitors()
    answers = page.answers
    assert answers(5, RIGHT) == [200] * 5, "only wrong ones count"
    assert answers(30, {}) == [401] * 30, "a browser asks without one first"
    assert answers(25, *WRONG) == [401] * 20 + [429] * 5
    refused = page.at("192.0.2.1").get("/", headers=RIGHT)
    assert refused.status_code == 429, "a guess that is right must not show"
    assert (refused.headers["retry-after"], "orders" in refused.text) == ("1", False)
    assert page.at("192.0.2.1").get("/healthz").status_code == 200
    now[0] += 1
    assert answers(3, RIGHT) == [200] * 3
    assert answers(3, *WRONG) == [401, 429, 429]
    now[0] += 3
    assert answers(9, *WRONG) == [401] * 3 + [429] * 6
    now[0] += 60
    assert answers(25, *WRONG) == [401] * 20 + [429] * 5


def test_guesses_lock_out_only_their_own_address(visitors: Callable[..., Visitors]) -> None:
    page = visitors()
    seen = page.at("192.0.2.1")
    assert seen.get("/", headers=RIGHT).status_code == 200
    assert page.answers(40, *WRONG)[-1] == 429
    assert page.answers(2, RIGHT, at="192.0.2.2") == [200] * 2
    assert page.answers(1, *WRONG, at="192.0.2.2") == [401]
    assert page.answers(9, TOKEN) == [200] * 9, "the scrape of the metrics"
    assert seen.get("/", headers=RIGHT).status_code == 200, "who was let in before"
    assert seen.get("/", headers=WRONG[0]).status_code == 429
    forged = {**RIGHT, "Cookie": f"{COOKIE}={'s' * 43}.{'0' * 64}"}
    assert page.answers(1, forged) == [429]


def test_an_open_address_names_nothing_and_gives_no_session(
    visitors: Callable[..., Visitors],
) -> None:
    client = visitors().at("192.0.2.1")
    health = client.get("/healthz")
    assert health.json() == {"healthy": True, "problems": 0}
    assert "set-cookie" not in health.headers
    cookie = client.get("/", headers=RIGHT).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie, "for this site only"


@pytest.mark.parametrize(
    ("peer", "forwarded", "same", "other"),
    [
        # No proxy is trusted here, so what a client sends about itself counts for nothing.
        ("192.0.2.1", "198.51.100.1", "198.51.100.2", None),
        # A trusted one adds the address that it sees behind those that the client invents.
        ("10.0.0.7", "198.51.100.1", "203.0.113.9, 198.51.100.1", "198.51.100.2"),
        ("10.0.0.7", "198.51.100.1", "198.51.100.1, 10.0.0.8", "198.51.100.1, 198.51.100.2"),
        ("10.0.0.7", "198.51.100.1", "198.51.100.1:4711", "[2001:db8::1]:4711"),
        ("10.0.0.7", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"),
        ("::ffff:10.0.0.7", "198.51.100.1", "::ffff:198.51.100.1", "198.51.100.2"),
        ("10.0.0.7", "unknown", "", "198.51.100.2"),
    ],
)
def test_a_forwarded_address_counts_if_the_proxy_is_trusted(
    visitors: Callable[..., Visitors], peer: str, forwarded: str, same: str, other: str | None
) -> None:
    page = visitors(proxies=security.parse_proxies(["10.0.0.0/8"]))

    def answers(number: int, header: str) -> list[int]:
        return page.answers(number, WRONG[0], at=peer, **{"X-Forwarded-For": header})

    assert answers(20, forwarded) == [401] * 20
    assert answers(1, same) == [429]
    if other is not None:
        assert answers(1, other) == [401]


def test_the_guesses_of_many_addresses_take_bounded_memory(
    visitors: Callable[..., Visitors], limits: Limits
) -> None:
    limits(web_clients=3)
    page = visitors()
    assert page.answers(20, *WRONG, at="192.0.2.1") == [401] * 20
    for number in range(2, 4):
        page.answers(1, *WRONG, at=f"192.0.2.{number}")
    assert page.answers(1, *WRONG, at="192.0.2.1") == [429]
    page.answers(1, *WRONG, at="192.0.2.4")
    assert page.answers(1, *WRONG, at="192.0.2.1") == [401], "the oldest is forgotten"


@pytest.mark.parametrize("wrong", ["proxy.example", "10.0.0.7/8", "", "10.0.0.0/40"])
def test_a_trusted_proxy_is_an_address_or_a_network(wrong: str) -> None:
    with pytest.raises(InvalidOption, match="--trusted-proxy"):
        security.parse_proxies([wrong])


Serve = Callable[[Any], int]
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD + b"\r\n"
FORM = b"POST /change/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n"
PATIENCE = 60.0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serves an application as the command does. Returns the port."""
    with contextlib.ExitStack() as ends:

        def start(app: Any) -> int:
            made, heard = list[uvicorn.Server](), queues.SimpleQueue[str]()
            monkeypatch.setattr(server, "create_app", lambda *_: app)
            monkeypatch.setattr(
                server, "_Server", lambda config: made.append(real(config)) or made[0]
            )
            options = {"address": "127.0.0.1", "port": 0, "listening": heard.put}
            thread = threading.Thread(
                target=serve, args=[QueueMonitor("/nowhere"), Access()], kwargs=options, daemon=True
            )
            thread.start()
            ends.callback(thread.join, PATIENCE)
            ends.callback(lambda: setattr(made[0], "should_exit", True))
            return int(heard.get(timeout=PATIENCE).split(":")[-1].strip("/"))

        real = server._Server
        yield start


def connect(port: int, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    client.sendall(sent)
    return client


def received(client: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    with client, contextlib.suppress(ConnectionResetError):
        while part := client.recv(65_536):
            found += part
    return found


def dripping(client: socket.socket) -> bool:
    """Send a byte now and then. Returns whether the server closes the connection in time."""
    end = time.monotonic() + PATIENCE
    client.settimeout(0.02)
    with client, contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                client.send(b"x")
                if not client.recv(65_536):
                    return True
        return False
    return True


def test_a_connection_without_a_whole_request_is_closed(
    visit: Visit, queue: Queue, limits: Limits, served: Serve
) -> None:
    limits(web_request_seconds=0.2, web_form_seconds=0.2)
    port = served(visit(allow_changes=True).app)
    for sent in (b"", b"GET", HEAD):
        assert received(connect(port, sent)) == b""
    for sent in (b"GET", HEAD + b"Cookie: ", FORM):
        assert dripping(connect(port, sent))


def test_half_a_form_is_answered_and_closed(
    client: TestClient, limits: Limits, served: Serve
) -> None:
    limits(web_form_seconds=0.2)
    answer = received(connect(served(client.app), FORM + b"do=sweep"))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"The form did not arrive" in answer


def answering(answer: Callable[[], Response]) -> Any:
    """An application that gives what a function returns in a thread."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await (await asyncio.to_thread(answer))(scope, receive, send)

    return app


@pytest.mark.parametrize("rest", [b"", b"GET", HEAD], ids=["nothing", "a word", "half a head"])
def test_after_an_answer_half_a_request_is_closed_too(
    limits: Limits, served: Serve, rest: bytes
) -> None:
    def answer_first() -> Response:
        limits(web_request_seconds=0.2)  # from this answer on
        return PlainTextResponse("served")

    answer = received(connect(served(answering(answer_first)), WHOLE + rest))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"served")


def test_an_answer_that_nobody_takes_is_given_up(limits: Limits, served: Serve) -> None:
    def answer() -> Response:
        limits(web_request_seconds=0.2)
        return PlainTextResponse(b"x" * 64 * 1024 * 1024)  # more than the buffers hold

    with connect(served(answering(answer)), WHOLE) as client, pytest.raises(ConnectionError):
        until(lambda: client.send(b"x") == 0)


def test_half_open_connections_make_room_for_others(
    visit: Visit, queue: Queue, limits: Limits, served: Serve
) -> None:
    limits(web_request_seconds=3_600.0, web_connections=3)
    port = served(visit().app)
    held = [connect(port, HEAD) for _ in range(3)]
    with connect(port, WHOLE) as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        assert received(held[0]) == b"", "the oldest"
        for waiting in held[1:]:
            with waiting:
                waiting.sendall(b"\r\n")
                assert waiting.recv(12) == b"HTTP/1.1 200"


def test_requests_that_run_are_not_closed_for_others(limits: Limits, served: Serve) -> None:
    limits(web_connections=3)
    entered, may_answer = threading.Semaphore(0), threading.Event()

    def answer() -> Response:
        entered.release()
        may_answer.wait(PATIENCE)
        return PlainTextResponse("served", headers={"Connection": "close"})

    port = served(answering(answer))
    running = [connect(port, WHOLE) for _ in range(3)]
    for _ in running:
        assert entered.acquire(timeout=PATIENCE)
    assert received(connect(port)) == b"", "one more than there may be"
    may_answer.set()
    assert [received(one)[-6:] for one in running] == [b"served"] * 3
    assert received(connect(port, WHOLE))[-6:] == b"served"


def test_without_a_password_only_names_of_this_machine_are_answered(
    visit: Visit, queue: Queue
) -> None:
    client = visit()
    for host in (
        "evil.example", "evil.example:9465", "localhost.evil.example", "", "[::2]:1",
        "[::1].evil.com", "[::1]evil.com:80", "localhost:80.evil.com", "localhost:80:80",
        "x@localhost", "localhost:", "localhost:٣", "127.0.0.1 evil.com", "[::1", "::1",
    ):  # fmt: skip
        assert client.get("/queue/orders", headers={"Host": host.encode()}).status_code == 400
        assert client.get("/healthz", headers={"Host": host.encode()}).status_code == 400
    for host in ("localhost", "LOCALHOST:9465", "127.0.0.1:9465", "[::1]:9465"):
        assert client.get("/queue/orders", headers={"Host": host}).status_code == 200
    answer = visit(password=PASSWORD).get("/", headers={**RIGHT, "Host": "queues.example"})
    assert answer.status_code == 200


def test_secrets_are_long_and_stay_out_of_texts() -> None:
    with pytest.raises(InvalidOption, match="12") as caught:
        Access(password="short")
    assert "'short'" not in str(caught.value)
    with pytest.raises(InvalidOption, match="token"):
        Access(token="x" * 11)
    assert PASSWORD not in repr(Access(password=PASSWORD))


def test_elsewhere_a_password_is_required(tmp_path: Any) -> None:
    overviews = QueueMonitor(str(tmp_path))
    for address in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(InvalidOption, match="SPARK_MQ_WEB_PASSWORD"):
            serve(overviews, Access(), address=address, port=0, listening=print)
    assert all(map(security.is_local, ("127.0.0.1", "::1", "localhost")))


def test_a_page_that_only_looks_offers_and_makes_no_change(visit: Visit, queue: Queue) -> None:
    queue.sweep()
    client = visit()
    queue.schedule("nightly", cron="0 2 * * *", message="x")
    pages = dict(crawl(client))
    assert len(pages) > 20
    assert not [address for address, text in pages.items() if "/change/" in text]
    for do in ("sweep", "seek&group=billing&to=latest", "configure&group=billing"):
        assert client.get(f"/change/orders?do={do}").status_code == 403
    posted = client.post("/change/orders", data={"do": "sweep", "csrf": "x"})
    assert posted.status_code == 403
    assert "--allow-changes" in posted.text


@pytest.fixture
def busy(queue: Queue) -> Queue:
    """The stocked queue with schedules, a paused group and a blocked one."""
    for name in ("nightly", "resting"):
        queue.schedule(name, cron="0 2 * * *", message="x")
    queue.pause_schedule("resting")
    queue.group("stopped").pause("x")
    stuck = queue.group("stuck")
    stuck.configure(max_delivery_attempts=1, on_max_deliveries="block")
    stuck.lease("w").nack(error="broken")
    return queue


def billing(queue: Queue) -> ConsumerGroup:
    return queue.group("billing")


def end_of(queue: Queue, row: int) -> tuple[str, str | None, str | None]:
    """State, outcome and error of a stocked message in group billing."""
    (place,) = (place for place in queue.locate(2**32 + row) if place.group == "billing")
    return place.state, place.outcome, place.error


CHANGES: dict[str, tuple[str, str, Callable[[Queue], Any], Any]] = {
    "pause&group=billing":
        ("changes", "pause", lambda q: "repairs" in billing(q).blocked_because, True),
    "resume&group=stopped": ("changes", "resume", lambda q: q.group("stopped").blocked_because, ""),
    "unblock-drop&group=stuck":
        ("changes", "unblock: drop", lambda q: q.group("stuck").stats().blocked, 0),
    "seek&group=billing&to=latest": ("changes", "seek", lambda q: billing(q).stats().unsettled, 0),
    "configure&group=billing&setting=max_delivery_attempts&value=none":
        ("changes", "configure", lambda q: billing(q).settings.max_delivery_attempts, None),
    "retry-message&group=billing&sequence=1:1":
        ("message", "retry now", lambda q: end_of(q, 1), ("ready", None, "no luck")),
    "discard-message&group=billing&sequence=1:4":
        ("message", "discard", lambda q: end_of(q, 4), ("settled", "dropped", "repairs")),
    "dead_letter-message&group=billing&sequence=1:1":
        ("message", "dead letter", lambda q: end_of(q, 1), ("dead", None, "repairs")),
    "pause-schedule&schedule=nightly":
        ("schedules", "configure queue", lambda q: q.schedules()[0].pause_reason, "repairs"),
    "resume-schedule&schedule=resting":
        ("schedules", "configure queue", lambda q: q.schedules()[1].paused_at, None),
    "remove-schedule&schedule=nightly":
        ("schedules", "configure queue", lambda q: len(q.schedules()), 1),
    "sweep": ("sweeps", "routed", lambda q: q.describe().dead_letters, 1),
}  # fmt: skip
"""What is done: the page that shows it, its operation, what it changes, and to which value."""


@pytest.mark.parametrize("do", CHANGES)
def test_a_change_asks_first_refuses_strangers_and_names_the_user(
    visit: Visit, busy: Queue, do: str
) -> None:
    page, operation, look, after = CHANGES[do]
    client, before = visit(allow_changes=True), look(busy)
    form = {**form_of(client, **dict(parse_qsl(f"do={do}"))), "reason": "repairs"}
    stranger = client.post("/change/orders", data={**form, "csrf": "x"})
    assert stranger.status_code == 403
    assert look(busy) == before != after
    assert (operation, "alice") not in who(busy)
    assert change(client, form)[0].startswith(f"/{page}/orders?done=1")
    assert look(busy) == after
    assert (operation, "alice") in who(busy)


def test_a_change_that_changes_nothing_says_so(client: TestClient) -> None:
    texts = []
    for _ in range(2):
        form = form_of(client, do="retry-message", group="billing", sequence="1:1")
        texts.append(change(client, form)[1])
    assert ["Done." in text for text in texts] == [True, False]
    assert ["Nothing changed" in text for text in texts] == [False, True]


def test_a_pause_may_have_an_end(client: TestClient, queue: Queue) -> None:
    form = form_of(client, do="pause", group="billing")
    for end in ("30m", "2999-01-31T12:00:00Z"):
        change(client, {**form, "until": end})
        assert "until" in queue.group("billing").blocked_because


def test_the_name_of_the_password_is_recorded(visit: Visit, queue: Queue) -> None:
    client = visit(allow_changes=True, password=PASSWORD)
    client.headers.update(RIGHT)
    change(client, form_of(client, do="pause", group="audit"))
    assert ("pause", "bob") in who(queue)


def test_a_form_without_its_token_is_refused(visit: Visit, queue: Queue) -> None:
    client, stranger = visit(allow_changes=True), visit(allow_changes=True)
    form = form_of(client, do="pause", group="billing")
    other = form_of(stranger, do="pause", group="billing")["csrf"]
    wrong = [{**form, "csrf": csrf} for csrf in ("", "é", other)]
    wrong.append({name: value for name, value in form.items() if name != "csrf"})

    def post(client: TestClient, data: dict[str, str], **headers: str) -> int:
        return client.post("/change/orders", data=data, headers=headers).status_code

    assert [post(client, data) for data in wrong] == [403] * 4
    assert post(visit(allow_changes=True), form) == 403
    for site in ("cross-site", "same-site"):
        assert post(client, form, **{"Sec-Fetch-Site": site}) == 403
    assert queue.group("billing").blocked_because == ""
    assert post(client, form, **{"Sec-Fetch-Site": "same-origin"}) == 303


def test_the_token_belongs_to_a_session_and_a_user() -> None:
    access = Access()
    assert access.csrf_token("s" * 20, "a") == access.csrf_token("s" * 20, "a")
    tokens = {access.csrf_token(s, u) for s in ("s", "t") for u in ("a", "b")}
    assert len(tokens | {Access().csrf_token("s", "a")}) == 5


def test_dead_letters_are_redriven_after_a_dry_run(client: TestClient, queue: Queue) -> None:
    form = form_of(client, do="redrive", find=1, reason="rejected", limit=5)
    assert queue.describe().dead_letters == 1
    _, shown = change(client, form)
    assert "Redriven: 1 dead letter." in shown
    assert "reason rejected" in shown
    assert "__redrive" not in shown
    assert (queue.describe().dead_letters, queue.describe().published) == (0, 6)
    assert ("redriven", "alice") in who(queue)
    assert "Redriven: 0 dead letters." in change(client, form)[1], "they were redriven meanwhile"
    assert client.post("/change/orders", data={**form, "find": ""}).status_code == 400


def test_a_redrive_to_all_groups_gives_each_the_letters_again(
    client: TestClient, queue: Queue
) -> None:
    before = {name: stats.ready for name, stats in queue.describe().groups.items()}
    change(client, form_of(client, do="redrive", find=1, all_groups=1))
    assert queue.redrive().messages == 0
    ready = {name: stats.ready for name, stats in queue.describe().groups.items()}
    assert ready == {name: n + 1 for name, n in before.items()}


@pytest.mark.parametrize("site", ["cross-site", "same-site", None, "forged", "another server's"])
def test_a_condition_of_another_site_is_shown_and_not_run(
    visit: Visit, client: TestClient, site: str | None
) -> None:
    other, headers = visit(allow_changes=True), {}
    after_a_visit(other)
    cookies = {"forged": f"{'s' * 43}.{'0' * 64}", "another server's": other.cookies[COOKIE]}
    if site in cookies:
        headers["Cookie"] = f"{COOKIE}={cookies[site]}"
    elif site is not None:
        headers["Sec-Fetch-Site"] = site
    run: list[object] = []

    def ask(address: str) -> str:
        client.cookies.clear()
        if "Sec-Fetch-Site" in headers:
            after_a_visit(client)
        answer = client.get(f"{address}&find=1&reason=rejected", headers=headers)
        assert answer.status_code == 403
        return answer.text

    with rule_variant("LetterFilter.select", first(run.append)):
        shown = ask("/letters/orders?limit=7")
        assert 'name="reason" value="rejected"' in shown, "to run by the button"
        ask("/change/orders?do=redrive")
        assert run == []
        own = after_a_visit(client, find=1)
        for own_site in ("same-origin", "none"):
            found = client.get("/letters/orders", params=own, headers={"Sec-Fetch-Site": own_site})
            assert "1 letter would be redriven" in found.text
    assert run


def test_no_address_has_a_secret(client: TestClient, queue: Queue) -> None:
    """The logs of a proxy have addresses. A form with a secret is posted."""
    queue.schedule("nightly", cron="0 2 * * *", message="x")
    form = form_of(client, do="pause", group="billing")
    secrets = {form["csrf"], client.cookies[COOKIE], *client.cookies[COOKIE].split(".")}
    pages, sent = dict(crawl(client)), 0
    for address, raw in pages.items():
        text = html.unescape(raw)
        for link in re.findall(r'(?:href|action|hx-get|src|formaction)="(/[^"]*)"', text):
            assert not any(secret in link for secret in secrets), link
        for method, inside in re.findall(r"<form([^>]*)>(.*?)</form>", text, re.DOTALL):
            sent += any(secret in inside for secret in secrets)
            assert "post" in method or not any(secret in inside for secret in secrets), address
    assert len(pages) > 30
    assert sent > 5, "the forms that change something have the token"


def test_the_links_of_the_page_run_their_conditions(client: TestClient, queue: Queue) -> None:
    (own,) = queue.dead_letters.peek()
    quoted = {**own.headers, "spark_mq.reason": "it's 'odd'"}
    queue.dead_letters.publish(Message("x", headers=quoted))

    def links(address: str, to: str) -> list[str]:
        found = re.findall(rf'href="({to}[^"]*)"', client.get(address).text)
        return [html.unescape(link) for link in found]

    trials = links("/letters/orders", r"/letters/orders\?find=")
    letters = queue.newest_dead_letters()["dead_letter_sequence"].to_pylist()
    assert len(trials) == len(letters) == 2
    for trial in trials:
        assert "1 letter would be redriven, 1 to group billing." in client.get(trial).text
    for address in ("/letters/orders", *trials, *(f"/letters/orders?letter={n}" for n in letters)):
        changes = links(address, "/change/orders")
        for redrive, discard in zip(changes[::2], changes[1::2], strict=True):
            assert "Publish these dead letters" in client.get(redrive).text
            assert "Discard these dead letters" in client.get(discard).text


def test_the_letters_of_a_failure_are_discarded_after_a_count_by_group(
    client: TestClient, queue: Queue
) -> None:
    def reject_all() -> None:
        queue.group("billing").lease("w", max_messages=9).reject(error="spam")
        queue.sweep()

    reject_all()
    spam = next(failure for failure in queue.failures() if failure.error == "spam")
    query = {"do": "discard", "find": 1, "shape": spam.shape}
    form = form_of(client, **query)
    queue.publish("late")
    reject_all()
    before = queue.describe().dead_letters or 0
    assert f"Discarded: {spam.messages} dead letter" in change(client, form)[1]
    assert queue.describe().dead_letters == before - spam.messages, "the late one was not counted"
    assert ("discard", "alice") in who(queue)
    change(client, form)


def test_a_page_of_letters_looks_for_them_once(visit: Visit, queue: Queue) -> None:
    queue.sweep()
    looks: list[object] = []
    with rule_variant("find_remaining", first(looks.append)):
        assert "Newest" in visit().get("/letters/orders").text
    assert len(looks) == 1


def test_ticked_letters_are_redriven(visit: Visit, client: TestClient, queue: Queue) -> None:
    queue.publish([f"{n}" for n in range(4)])
    queue.group("billing").lease("w", max_messages=9).reject(error="too")
    queue.sweep()
    letters = queue.newest_dead_letters()["dead_letter_sequence"].to_pylist()
    page = client.get("/letters/orders").text
    boxes = re.findall(r'<input type="checkbox" name="pick" value="(\d+)"', page)
    assert [int(box) for box in boxes] == letters
    assert len(boxes) > 3
    assert "checkbox" not in visit().get("/letters/orders").text
    assert 'checked=""' not in page
    (tick,) = re.findall(r'href="([^"]*)" class="button">Tick all<', page)
    assert client.get(html.unescape(tick)).text.count('checked=""') == len(letters)
    trial = client.get("/letters/orders", params={"pick": boxes[:2]}).text
    assert "2 letters would be redriven, 2 to group billing." in trial
    change(client, form_of(client, do="redrive", find=1, pick=boxes[:2]))
    assert queue.newest_dead_letters()["dead_letter_sequence"].to_pylist() == letters[2:]


def test_a_leased_message_is_taken_from_its_worker_only_if_ticked(
    client: TestClient, queue: Queue
) -> None:
    group = queue.group("billing")
    form = form_of(client, do="discard-message", group="billing", sequence="1:3")
    refused = client.post("/change/orders", data=form)
    assert refused.status_code == 409
    assert "worker-7 holds it" in refused.text
    assert group.stats().leased == 1
    change(client, {**form, "force": "1"})
    assert group.stats().leased == 0


def test_forms_that_no_page_has_are_refused(client: TestClient) -> None:
    form = form_of(client, do="sweep")
    many = {**form, **{f"field-{n}": "x" for n in range(20)}}
    refused = client.post("/change/orders", data=many)
    assert refused.status_code == 400
    assert "more than 20 fields" in refused.text
    large = client.post("/change/orders", data={**form, "reason": "x" * 100_000})
    assert large.status_code == 413
    assert client.post("/change/none", data=form).status_code == 404
    assert client.post("/queue/orders").status_code == 405


def test_an_unknown_error_shows_no_text(visit: Visit, queue: Queue) -> None:
    def fail() -> float:
        raise RuntimeError("a secret")

    app = visit(clock=fail).app
    answer = TestClient(app, "http://localhost", raise_server_exceptions=False).get("/queue/orders")
    assert answer.status_code == 500
    assert "secret" not in answer.text
