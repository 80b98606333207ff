"""What each page shows. Looking changes nothing, and no value is read as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from starlette.testclient import TestClient
from support.approved import SHORT_SPANS, assert_approved, without_what_varies
from support.forms import after_a_visit, client_of, crawl
from support.handles import contents
from support.limits import Limits
from support.readable_html import readable_html
from support.stocked_queue import sequence_of
from support.working import leave_heartbeat

from spark_mq import Message, Queue
from spark_mq.errors import StorageError
from spark_mq.testing import ManualClock, memory_queue

Visit = Callable[..., TestClient]
EVIL = "<script>alert(1)</script>\"'&\u202e"
"""What must never reach a page as it is."""


class Page(HTMLParser):
    """The elements and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def links(self) -> list[str]:
        return [attrs["href"] or "" for tag, attrs in self.tags if tag == "a"]


def get(client: TestClient, address: str, expect: int = 200, **query: Any) -> Page:
    answer = client.get(address, params=query)
    assert answer.status_code == expect, answer.text
    assert "Traceback" not in answer.text
    return Page(answer.text)


def test_without_a_queue_the_page_says_how_to_create_one(visit: Visit) -> None:
    assert "spark-mq queue create" in get(visit(), "/").text


def test_states_are_drawn_as_wide_as_their_share(visit: Visit, queue: Queue) -> None:
    queue.publish(["more"] * 5)
    page = get(visit(), "/queue/orders", part="live")
    drawn = [(attrs["x"], attrs["width"]) for tag, attrs in page.tags if tag == "rect"]
    billing = [("0.0", "66.67"), ("66.67", "11.11"), ("77.78", "11.11"), ("88.89", "11.11")]
    assert drawn == [*billing, ("0.0", "100.0")], "ready, delayed, leased and dead; of audit ready"


def problems_on(page: str) -> list[tuple[str, str, str]]:
    """The problems that a page leads with: the name, the address of more, and the text."""
    lead = re.search(r'<div id="problems"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert lead, page
    found = re.findall(r'<a href="([^"]*)">([^<]*)</a> <bdi>([^<]*)</bdi>', lead[1])
    return [(name, address, html.unescape(text)) for address, name, text in found]


@pytest.fixture
def shop(queue: Queue, keyed: Queue, tmp_path: Path, limits: Limits) -> Queue:
    """The stocked queue with all that a page may show, beside queues with and without problems."""
    queue.sweep()
    assert queue.redrive().messages == 1  # which gives id-bad to billing again
    queue.group("mail").lease("worker-9").reject(error="no customer")
    queue.sweep()
    queue.group("mail").seek("latest")
    leave_heartbeat(queue, "billing", "idle-1", interval=3_600_000_000)
    leave_heartbeat(queue, "billing", "gone-1", host=EVIL, seen_at=1)
    queue.group("gone").lease("worker-9").reject(error="no group")
    queue.sweep()
    queue.drop_group("gone")
    queue.group("billing").configure(max_tracked_ranges=1_000_000, max_in_flight=1)
    stuck = queue.group("stuck")
    stuck.configure(max_delivery_attempts=1, on_max_deliveries="block")
    stuck.lease("w").nack(error="broken")
    queue.publish(["a", "b"], batch_id="import-7")
    done = Queue.create(tmp_path / "done", durable=False)
    for batch_id in ("import-7", "nothing"):
        queue.close_batch(batch_id, to=done, groups=["billing"])
    queue.schedule("nightly", cron="0 2 * * *", timezone="Europe/Berlin", message="<b>run</b>")
    queue.sweep()
    queue.group("audit").pause("repairs")
    keyed.group("plain").configure(order="none")
    earlier = keyed.publish([Message(text, key="d", priority=3) for text in "xy"]).sequences[0]
    keyed.group("late", start=earlier).lease("worker-9", max_messages=2).nack([earlier])
    queues = tmp_path / "queues"
    Queue.create(queues / "shop" / "empty", durable=False)
    for table in ("messages", "leases"):
        (queues / "broken" / table).mkdir(parents=True)
    paused = Queue.create(queues / "paused", durable=False)
    for number in range(5):
        paused.group(f"g{number}").pause("repairs")
    killed = Queue.create(queues / "killed", durable=False)
    killed.publish([str(number) for number in range(1_000)])
    for _ in range(2):
        killed.group("g").lease("worker", max_messages=1_000).nack(delay=0)
    torn = Queue.create(queues / "torn", durable=False)
    limits(tag_bytes=0)  # as of a large ledger, which only its file has
    torn.group("g").ensure()
    for name in ("leases/consumer_group=g/*", "dead_letters/messages/_delta_log/*"):
        (file,) = Path(torn.path).glob(name)
        file.write_bytes(b"")
    return queue


APPROVED = Path(__file__).parent / "pages.txt"
PAGES = (
    "/",
    *(f"/queue/orders{part}" for part in ("", "?part=work", "?part=past")),
    *(f"/group/orders?group={name}" for name in ("billing", "audit", "stuck")),
    *(f"/group/orders?group=billing&part={part}" for part in ("notable", "lanes", "past")),
    "/messages/orders", "/messages/orders?sequence=1:2",
    "/messages/orders?group=billing&state=delayed", "/message/orders?sequence=1:1",
    *(f"/message/orders?sequence=1:{row}&part=life" for row in range(5)),
    "/message/orders?sequence={copy}&part=life", "/message/orders?sequence=3",
    "/letters/orders", "/letters/orders?letter={letter}", "/letters/orders?find=1",
    *(f"/{page}/orders" for page in ("schedules", "batches", "sweeps", "changes")),
    *(f"/queue/shop/empty{part}" for part in ("", "?part=work", "?part=past", "?part=live")),
    *(f"/{page}/shop/empty" for page in ("messages", "letters", "batches", "sweeps", "changes")),
    "/queue/killed", "/group/killed?group=g", "/queue/torn",
    *(f"/group/keyed?group={name}&part=lanes" for name in ("billing", "plain")),
    "/message/keyed?sequence=4:1", "/message/keyed?sequence=4:1&part=life",
    "/change/orders?do=sweep", "/change/orders?do=pause&group=billing",
    "/change/orders?do=resume&group=audit", "/change/orders?do=remove-schedule&schedule=nightly",
    "/change/orders?do=seek&group=billing",
    *(f"/change/orders?do=seek&group=billing&to={to}" for to in ("earliest", "latest", "1:3")),
    "/change/orders?do=configure&group=billing",
    "/change/orders?do=configure&group=billing&setting=on_reject",
    "/change/orders?do=configure&group=billing&setting=max_in_flight&value=70",
    *(f"/change/orders?do={do}" for do in (
        "redrive&find=1", "discard&find=1", "redrive&find=1&all_groups=1",
        "redrive&find=1&reason=x", "redrive&find=1&died_in=gone")),
    *(f"/change/orders?do=discard-message&group=billing&sequence=1:{row}" for row in (1, 3)),
    "/queue/orders?part=past&range=6h", "/group/orders?group=billing&part=past&range=24h",
    "/queue/orders?part=past&range=1y",
    "/changes/orders?done=1", "/schedules/orders?done=1", "/sweeps/orders?done=1&routed=1",
    "/queue/none", "/queue/../../etc", "/group/orders?group=nope", "/message/orders",
    "/messages/orders?state=dead", "/messages/none", "/messages/none?state=ready",
    *(f"/messages/orders?{query}" for query in (
        "key=key-leased", "id=id-leased", "group=billing&state=leased", "sequence=9:0",
        "sequence=-1", "sequence=x&key=k", "state=ready&id=7", f"after={'9' * 30}",
        "group=billing&state=nope")),
    *(f"/letters/orders?{query}" for query in (
        "find=1&since=soon&limit=7", "find=1&limit=many", "find=1&limit=10001", "find=1&first=x",
        "pick=x", "letter=1")),
    *(f"/change/orders?do=seek&group=billing&to={to}" for to in (
        "yesterday", "-1", "1:x", "2026-01-31T12:00:00")),
    *(f"/change/orders?do={do}&group=nobody" for do in ("seek", "configure")),
    *(f"/change/orders?{query}" for query in (
        "", "do=drop", "do=pause", "do=redrive", "do=redrive&find=1&since=soon", "do=discard",
        "do=discard-message&group=billing", "do=discard-message&group=billing&sequence=x",
        "do=discard-message&group=nope&sequence=1:0", "do=pause-schedule&schedule=none",
        "do=configure&group=billing&setting=color&value=7",
        "do=configure&group=billing&setting=max_in_flight&value=many")),
)  # fmt: skip


def test_pages_are_as_they_were_approved(
    visit: Visit, shop: Queue, keyed: Queue, tmp_path: Path
) -> None:
    client, texts = visit(allow_changes=True), {}
    client.get("/")  # for the cookie of a session
    given = {
        "copy": shop.find(message_id="id-bad")[0],
        "letter": shop.newest_dead_letters(1)["dead_letter_sequence"][0].as_py(),
    }
    for address in PAGES:
        answer = client.get(address.format(**given))
        page = Page(answer.text)
        if "<html" in answer.text:
            assert page.links()[0] == "#main"
            assert ("main", {"id": "main", "tabindex": "-1"}) in page.tags
        text = without_what_varies(readable_html(answer.text), tmp_path, spans=SHORT_SPANS)
        # An interval may end during the test, so that there are messages in two.
        texts[f"{answer.status_code} {address}"] = re.sub(r"\d+( in \w+)? at most", "N", text)
    assert_approved(APPROVED, texts.items())
    assert "nobody" not in shop.groups()


def test_metrics_are_as_they_were_approved(visit: Visit, shop: Queue, tmp_path: Path) -> None:
    """What Prometheus makes of them, tests/cli/test_monitoring.py shows."""
    answer = visit().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = without_what_varies(answer.text, tmp_path)
    text = re.sub(r"(?m)^(spark_mq_\w*(?:seconds|bytes)\w*{.*}) .*$", r"\1 N", text)
    text = re.sub(r"(?m)^\w+(_bucket{.*|{.*group=.*} 0)\n", "", text)
    assert_approved(APPROVED.with_name("metrics.txt"), [("/metrics", text)])


def test_a_page_loads_its_past_in_the_range_of_its_address(visit: Visit, queue: Queue) -> None:
    page = get(visit(), "/queue/orders", range="6h")
    assert "/queue/orders?part=past&range=6h" in [given.get("hx-get") for _, given in page.tags]


def test_what_a_trim_or_a_sweep_dropped_is_not_known() -> None:
    clock = ManualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    queue = memory_queue(clock, retention="1h", history_retention="2d")
    assert queue._throughput_known_since() == (clock(), clock())
    for _ in range(3):
        queue.publish("x")
        queue.group("g").lease("w").ack()
        clock.advance("1d")
        queue.sweep()
    publishes, events = queue._throughput_known_since()
    assert events == datetime(2026, 1, 2, tzinfo=UTC), "whole days are dropped"
    assert publishes > events
    counted = queue.throughput(since="30d", every="1d").to_pylist()
    assert [row["at"].day for row in counted if row["acked"]] == [2, 3]


def test_a_load_of_the_first_page_reads_few_histories(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number}" for number in range(7)]
    for name in names:
        Queue.create(tmp_path / "queues" / name, durable=False)
    read: list[str] = []
    real = Queue.throughput

    def throughput(self: Queue, **given: Any) -> Any:
        read.append(self.name)
        if self.name == "q0":
            raise StorageError("the store is away", path=self.path)
        return real(self, **given)

    monkeypatch.setattr(Queue, "throughput", throughput)
    now = [1000.0]
    client = client_of(tmp_path / "queues", clock=lambda: now[0])

    def charts() -> int:
        return sum(attrs.get("class") == "spark" for _, attrs in get(client, "/").tags)

    assert (charts(), read) == (4, names[:5])
    assert (charts(), read) == (6, names), "the failed one does not keep others waiting"
    assert (charts(), read) == (6, names), "half a minute old at most"
    now[0] += 31
    assert charts() == 6
    assert len(read) == 12, "again, and no more than five"


def test_a_refresh_brings_problems_only_if_they_changed(visit: Visit, queue: Queue) -> None:
    client = visit()
    for address in ("/", "/queue/orders", "/group/orders?group=billing"):
        queue.group("billing").resume()
        whole = client.get(address).text
        assert '<div id="problems" aria-live="polite">' in whole
        refresh = html.unescape(re.findall('hx-get="([^"]*part=live[^"]*)"', whole)[0])
        assert client.get(refresh).text.startswith("<section")
        assert 'id="problems"' not in client.get(refresh).text, address
        queue.group("billing").pause("repairs")
        news = client.get(refresh).text
        assert '<div id="problems" hx-swap-oob="innerHTML">' in news
        assert "repairs" in news
        again = html.unescape(re.findall('hx-get="([^"]*part=live[^"]*)"', news)[0])
        assert again != refresh
        assert 'id="problems"' not in client.get(again).text, "a screen reader has read them"


def test_a_missing_sweep_is_a_problem_with_the_commits_that_wait(
    visit: Visit, queue: Queue
) -> None:
    tile = "Commits that wait for a sweep"
    assert tile in get(visit(), "/queue/orders").texts
    late = visit(health={"max_unswept": "1us"})
    text = late.get("/queue/orders").text
    ((name, address, reason),) = problems_on(text)
    assert (name, address) == ("not swept", "/sweeps/orders")
    assert reason.startswith("the queue was not swept for ")
    assert f"{queue.sweep_state().unarchived_commits} commits" in reason
    assert tile not in text, "the problem has the number"
    assert problems_on(late.get("/").text) == [(name, address, reason)]


def test_groups_are_shown_in_pages_and_searched(visit: Visit, queue: Queue) -> None:
    for number in range(60):
        queue.group(f"group-{number:02}").ensure()
    client = visit()
    first, second = (get(client, "/queue/orders", page=number) for number in (0, 1))
    assert "Page 1 of 2" in first.text
    groups = [
        [link for link in page.links() if link.startswith("/group/")] for page in (first, second)
    ]
    assert [len(name) for name in groups] == [50, 12]
    assert not set(groups[0]) & set(groups[1])
    assert "group-07" in get(client, "/queue/orders", q="up-07").text
    assert "No group has this" in get(client, "/queue/orders", q="nope").text
    search = get(client, "/messages/orders")
    assert "audit" not in [one.get("value") for tag, one in search.tags if tag == "option"]
    assert ("input", "group") in [(tag, one.get("name")) for tag, one in search.tags]


def test_a_sequence_is_shown_and_found_as_version_and_row(visit: Visit, queue: Queue) -> None:
    client, sequence = visit(), sequence_of(queue, "bad")
    shown = ("span", {"title": str(sequence)})
    assert shown in get(client, "/messages/orders", sequence="1:2").tags
    for wrong in ("1:", ":2", "1:4294967296", "1:2:3", f"{2**31}:0", "٣:0"):
        assert "sequence" in get(client, "/messages/orders", 400, sequence=wrong).text


def test_a_time_is_shown_as_its_age_with_the_instant(visit: Visit, queue: Queue) -> None:
    page = get(visit(), "/messages/orders", sequence="1:0")
    ((_, shown),) = [one for one in page.tags if one[0] == "time"]
    at = queue.peek(1)[0].published_at
    assert shown == {"datetime": at.isoformat(), "title": f"{at:%Y-%m-%d %H:%M:%S}Z"}
    assert any(re.fullmatch(r"[0-9ms ]+ ago", one) for one in page.texts)
    assert shown["title"] not in page.texts
    leased = get(visit(), "/group/orders", group="billing", part="live")
    assert any(re.fullmatch(r"in [0-9hms ]+", one) for one in leased.texts), "a deadline"


def test_many_messages_are_shown_in_pages(visit: Visit, queue: Queue) -> None:
    queue.publish([f"{number}" for number in range(60)])
    client = visit()
    first = get(client, "/messages/orders")
    (following,) = [link for link in first.links() if "after=" in link]
    second = client.get(following)
    assert second.status_code == 200
    assert "after=" not in " ".join(Page(second.text).links())


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [(b"\xff\x00\x01", "Bytes", "ff 00 01"), (b"plain", "Text", "plain"),
     (b'{"a":[1]}', "JSON", '"a": ['), (b"[" * 100_000, "Text", "the first 65,536"),
     ("é".encode() * 40_000, "Text", "éé"), (b"x" + "é".encode() * 40_000, "Text", "éé"),
     (b"", "Text", "0 bytes")],
)  # fmt: skip
def test_a_payload_is_shown_as_json_text_or_bytes(
    visit: Visit, queue: Queue, value: bytes, kind: str, shown: str
) -> None:
    (sequence,) = queue.publish(value).sequences
    text = get(visit(), "/message/orders", sequence=sequence).text
    assert f"{kind}, {len(value):,} bytes" in text
    assert shown in text


def test_a_dry_run_selects_dead_letters_and_changes_nothing(visit: Visit, queue: Queue) -> None:
    client = visit()
    assert "Dead, waiting for a sweep 1 " in get(client, "/letters/orders").text
    queue.sweep()
    before = queue.dead_letters.describe().version, queue.describe().version

    def select(**query: Any) -> str:
        return get(client, "/letters/orders", **after_a_visit(client, find=1, **query)).text

    sequence = queue.list_dead_letters()["sequence"][0].as_py()
    for query in (
        {}, {"died_in": "billing"}, {"reason": "rejected"}, {"shape": "bad customer"},
        {"key_prefix": "key-"}, {"message_id": "id-bad"}, {"since": "2020-01-01T00:00Z"},
        {"until": "2999-01-01T00:00Z"}, {"first": sequence, "last": sequence},
    ):  # fmt: skip
        assert "1 letter would be redriven" in select(**query), query
    for query in (
        {"died_in": "audit"}, {"reason": "x' or 1=1"}, {"shape": "bad"}, {"key_prefix": "ey-"},
        {"message_id": "id"}, {"since": "2999-01-01T00:00Z"}, {"until": "2020-01-01T00:00Z"},
        {"first": sequence + 1}, {"last": sequence - 1}, {"without": "died_in"},
        {"without": "shape"},
    ):  # fmt: skip
        assert "0 letters would be redriven" in select(**query), query
    assert get(client, "/letters/orders", count="all")
    assert (queue.dead_letters.describe().version, queue.describe().version) == before


def test_a_message_id_that_was_made_stays_in_one_line(visit: Visit, queue: Queue) -> None:
    queue.publish([Message("x", key="short", message_id=one) for one in (str(uuid4()), "x" * 37)])
    text = visit().get("/messages/orders", params={"key": "short"}).text
    assert re.findall(r'<td( class="text")?><bdi>(?:[0-9a-f-]{36}|x{37})</bdi>', text) == [
        "", ' class="text"'
    ]  # fmt: skip


def test_a_column_of_numbers_is_one_although_its_first_row_has_none(
    visit: Visit, queue: Queue, tmp_path: Path
) -> None:
    for table in ("messages", "leases"):
        (tmp_path / "queues" / "broken" / table).mkdir(parents=True)
    text = visit().get("/").text
    assert text.index("/queue/broken") < text.index("/queue/orders")
    assert '<th scope="col">Queue</th><th scope="col" class="number">Worst lag</th>' in text


def test_sweeps_and_health_say_what_is_wrong(visit: Visit, queue: Queue) -> None:
    assert "No queue has a problem." in get(visit(), "/").texts
    strict = visit(health={"max_dead": 0})
    assert "The queue has 1 problem." in get(strict, "/sweeps/orders").text
    for address in ("/", "/queue/orders"):
        page = get(strict, address)
        assert "too many dead" in page.texts
        assert "No queue has a problem." not in page.texts
        assert "/letters/orders" in page.links()
    answer = strict.get("/healthz")
    assert (answer.status_code, answer.json()["problems"]) == (503, 1)
    queue.sweep()
    queue.group("audit").pause("repairs")
    queue.group("billing").pause("repairs")
    names = [name for name, *_ in problems_on(strict.get("/").text)]
    assert names == ["blocked", "blocked", "too many dead"], "which has the dead letters"


def test_values_are_escaped_on_every_page(visit: Visit, queue: Queue) -> None:
    message = Message(EVIL, key=EVIL, message_id=EVIL, headers={EVIL: EVIL})
    (sequence,) = queue.publish(message).sequences
    queue.group("evil", start=sequence).lease("w").nack([sequence], error=EVIL, delay="1h")
    queue.group("dead", start=sequence).lease("w").reject(error=EVIL)
    queue.sweep()
    (own,) = queue.dead_letters.peek(message_id=EVIL)
    headers = {**own.headers, "spark_mq.reason": EVIL, "spark_mq.group": EVIL}
    queue.dead_letters.publish(Message(EVIL, headers=headers))
    queue.group("billing").pause(EVIL)
    texts = [text for _, text in crawl(visit())]
    client = visit(allow_changes=True, user=EVIL)
    for address, query in (
        ("/queue/orders", {"q": EVIL}),
        ("/messages/orders", {"key": EVIL}),
        ("/messages/orders", {"group": "evil", "state": "delayed"}),
        ("/letters/orders", {"find": "1", "key_prefix": EVIL}),
        ("/change/orders", {"do": "pause", "group": "evil"}),
        ("/change/orders", {"do": EVIL}),
        ("/group/orders", {"group": EVIL}),
        (f"/queue/{EVIL}", {}),
    ):
        texts.append(client.get(address, params=query).text)
    pages = [Page(text) for text in texts]
    scripts = [attrs for page in pages for tag, attrs in page.tags if tag == "script"]
    ours = [{"src": f"/static/{name}.js", "defer": ""} for name in ("htmx.min", "tables")]
    assert all(attrs in ours for attrs in scripts)
    assert "\u202e" not in "".join(texts)
    names = {name for page in pages for _, attrs in page.tags for name in attrs}
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert sum(EVIL[:20] in page.text for page in pages) > 10


def test_looking_changes_no_file(visit: Visit, queue: Queue) -> None:
    before, client = contents(queue.path), visit(allow_changes=True)
    assert len(dict(crawl(client))) > 30
    for address in ("/metrics", "/healthz", "/letters/orders?find=1", "/change/orders?do=sweep"):
        assert client.get(address).status_code == 200
    assert contents(queue.path) == before


def test_a_queue_that_was_made_again_is_opened_again(visit: Visit, queue: Queue) -> None:
    client = visit()
    assert get(client, "/queue/orders")
    Queue.drop_at(queue.path, "orders")
    Queue.create(queue.path, durable=False).publish("new")
    assert "first lease creates it" in get(client, "/queue/orders").text
    assert "new" in get(client, "/messages/orders").text
    Queue.drop_at(queue.path, "orders")
    Queue.create(queue.path, durable=False).publish("newer")
    client.get("/messages/orders")
    assert "newer" in get(client, "/messages/orders").text


@pytest.fixture
def keyed(tmp_path: Path) -> Queue:
    """Group `billing` in order: lanes that are leased, held back by a retry, and free."""
    queue = Queue.create(
        tmp_path / "queues" / "keyed", durable=False, lanes=8, order="key", retry_delay="15m"
    )
    for key in ("a", "b", "c"):
        queue.publish([Message(f"{key}{n}", key=key, priority=9 * (n < 3)) for n in range(4)])
    group = queue.group("billing")
    lease = group.lease("worker-7", max_messages=1, visibility_timeout="1h")
    lease.nack([lease.messages[0].sequence], error="no luck")
    assert group.lease("worker-8", max_messages=1, visibility_timeout="1h")
    return queue


def test_what_holds_the_lanes_of_a_group_is_drawn(visit: Visit, keyed: Queue) -> None:
    page = get(visit(), "/group/keyed", group="billing", part="lanes")
    held = {lane.held_by: lane for lane in keyed.group("billing").lanes()}
    assert set(held) == {"retry", "lease", ""}
    cells = {attrs["class"]: attrs for tag, attrs in page.tags if tag == "rect"}
    assert set(cells) == {"lane-free", "lane-leased", "lane-held-back"}
    assert cells["lane-leased"]["x"] == str(held["lease"].lane)
    assert cells["lane-free"]["fill-opacity"] == "1.00"


def test_a_long_key_is_cut_on_all_pages(visit: Visit, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queues" / "long", durable=False, lanes=2)
    long = "k" * 1_000_000
    queue.publish([Message("x", key=long, message_id=long)])
    queue.group("g").configure(order="key")
    client = visit()
    for dead in (False, True):
        if dead:
            queue.group("g").lease("w").reject(error="bad")
            queue.sweep()
        pages = dict(crawl(client))
        assert len(pages) > 10
        assert max(map(len, pages.values())) < 100_000
