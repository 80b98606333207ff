"""Volumes and tables of a Unity Catalog: names, options, credentials and their renewal."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.handles import shown, side_by_side, until
from support.relays import Relay, serving
from support.servers import free_port

from spark_mq import Queue
from spark_mq.delta.object_store import ObjectStore, absolute_path
from spark_mq.delta.storage_options import is_secret, store_options
from spark_mq.errors import InvalidOption, StorageError
from spark_mq.integrations.unity_catalog import VendedCredentials, catalog_server, locate

TOKEN = "dapi-secret-of-the-catalog"
FILES = "uc://main.app.files/queues/orders"
TABLE = "uc://main.app.queue"


class CatalogStandIn:
    """Serves one external volume ``main.app.files`` and one table ``main.app.queue``.

    `answers` has the status and body of each path, which a test may change. `asked` lists the paths
    and bodies of all requests that gave the token.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, Any]] = []
        table = {"table_id": "t-1", "table_type": "EXTERNAL", "storage_location": "s3://b/q"}
        self.answers: dict[str, tuple[int, Any]] = {
            "/volumes/main.app.files": (200, volume()),
            "/tables/main.app.queue": (200, table),
            "/temporary-volume-credentials": (200, keys("one")),
            "/temporary-table-credentials": (200, keys("two")),
        }

    @property
    def options(self) -> dict[str, str]:
        return {"databricks_host": self.url, "databricks_token": TOKEN}

    def serve(self, to: Relay, body: bytes) -> None:
        path = to.path.removeprefix("/api/2.1/unity-catalog")
        status, found = 401, {"error_code": "UNAUTHENTICATED", "message": "who are you?"}
        if to.headers["Authorization"] == f"Bearer {TOKEN}":
            self.asked.append((path, json.loads(body) if body else None))
            missing = {"error_code": "NOT_FOUND", "message": f"{path} is not there"}
            status, found = self.answers.get(path, (404, missing))
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        to.answer(status, data, {"Location": data.decode()} if 300 <= status < 400 else {})


def volume(**others: Any) -> dict[str, Any]:
    """Return what a catalog says of an external volume."""
    named = {"volume_id": "v-1", "volume_type": "EXTERNAL", "storage_location": "s3://bucket/files"}
    return {**named, **others}


def keys(name: str, until: float | None = None) -> dict[str, Any]:
    """Return an answer with credentials that expire at a time in seconds since 1970, or never."""
    given = {
        "access_key_id": f"{name}-id",
        "secret_access_key": f"{name}-secret-key",
        "session_token": f"{name}-session-token",
    }
    expires = {} if until is None else {"expiration_time": int(until * 1000)}
    return {"aws_temp_credentials": given, **expires}


@contextmanager
def running_catalog() -> Iterator[CatalogStandIn]:
    catalog = CatalogStandIn()
    with serving(catalog.serve) as catalog.url:
        yield catalog


@pytest.fixture
def catalog() -> Iterator[CatalogStandIn]:
    with running_catalog() as running:
        yield running


# -- names and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["uc://", "uc://main", "uc://main.app", "uc://main.app.a.b/q", "uc:///main.app.files",
     "uc://main/app/files", "uc://main.app. /q", "uc://.app.files"],
)  # fmt: skip
def test_a_path_that_names_no_volume_is_refused(path: str) -> None:
    with pytest.raises(InvalidOption, match=r"uc://catalog\.schema\.volume/folder"):
        absolute_path(path)


@pytest.mark.parametrize("path", ["uc://main.app.files/a?b", "uc://main.app.files/a/../b"])
def test_a_folder_of_a_volume_obeys_the_rules_of_every_root(path: str) -> None:
    with pytest.raises(InvalidOption, match="must not have"):
        absolute_path(path)


def test_a_catalog_must_be_named() -> None:
    with pytest.raises(InvalidOption, match="databricks_host and databricks_token") as caught:
        catalog_server({}, {}, FILES)
    assert caught.value.option == "databricks_host"


@pytest.mark.parametrize(
    ("options", "environment", "url", "token"),
    [
        ({"DATABRICKS_HOST": "w.example"}, {"DATABRICKS_TOKEN": "t"}, "https://w.example", "t"),
        ({}, {"UNITY_WORKSPACE_URL": "https://w/", "UNITY_ACCESS_TOKEN": "t"}, "https://w", "t"),
        ({"unity_workspace_url": "https://a"}, {"DATABRICKS_HOST": "b"}, "https://a", None),
        ({"databricks_workspace_url": "https://w/api/2.1/unity-catalog"}, {}, "https://w", None),
        ({"databricks_host": "https://w.example/?o=12"}, {}, "https://w.example", None),
        ({"databricks_host": "http://localhost:8080"}, {}, "http://localhost:8080", None),
        ({"databricks_host": "http://uc", "unity_allow_http_url": "true"}, {}, "http://uc", None),
    ],
)
def test_the_options_of_delta_rs_name_the_catalog(
    options: dict[str, str], environment: dict[str, str], url: str, token: str | None
) -> None:
    server = catalog_server(options, environment, FILES)
    assert (server.url, server.token) == (url, token)


@pytest.mark.parametrize("url", ["http://uc.example:8080", "ftp://uc.example"])
def test_a_token_goes_over_no_open_connection(url: str) -> None:
    with pytest.raises(InvalidOption, match="unity_allow_http_url=true"):
        catalog_server({"databricks_host": url, "databricks_token": TOKEN}, {}, FILES)


def test_one_mapping_serves_a_catalog_and_other_stores() -> None:
    options = {"databricks_host": "https://w", "DATABRICKS_TOKEN": "t", "aws_region": "eu-west-1"}
    assert store_options("s3", options).config == {"region": "eu-west-1"}
    assert is_secret("databricks_token")
    assert is_secret("UNITY_ACCESS_TOKEN")


# -- what the catalog says -----------------------------------------------------------------------


def test_a_folder_of_a_volume_is_found_with_credentials_to_write(catalog: CatalogStandIn) -> None:
    found = locate(FILES, catalog.options, {})
    assert found.url == "s3://bucket/files/queues/orders"
    assert found.credentials() == {
        "access_key_id": "one-id",
        "secret_access_key": "one-secret-key",
        "token": "one-session-token",
        "expires_at": None,
    }
    locate(f"{FILES}/messages", catalog.options, {})
    assert catalog.asked == [
        ("/volumes/main.app.files", None),
        ("/temporary-volume-credentials", {"volume_id": "v-1", "operation": "WRITE_VOLUME"}),
    ], "the tables of a queue share one answer"


def test_an_external_table_is_found(catalog: CatalogStandIn) -> None:
    found = locate(TABLE, catalog.options, {})
    assert (found.url, found.credentials()["access_key_id"]) == ("s3://b/q", "two-id")
    body = {"table_id": "t-1", "operation": "READ_WRITE"}
    assert catalog.asked[-1] == ("/temporary-table-credentials", body)


def test_a_sas_token_is_taken_for_azure(catalog: CatalogStandIn) -> None:
    place = "abfss://c@account.dfs.core.windows.net/files"
    catalog.answers["/volumes/main.app.files"] = 200, volume(storage_location=place)
    sas = {"azure_user_delegation_sas": {"sas_token": "sig=x"}, "aws_temp_credentials": None}
    catalog.answers["/temporary-volume-credentials"] = 200, {**sas, "expiration_time": 0}
    found = locate(FILES, catalog.options, {})
    assert found.url == f"{place}/queues/orders"
    assert found.credentials() == {"sas_token": "sig=x", "expires_at": None}


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        (FILES, {"volume_type": "MANAGED"}, "volume of the type MANAGED.*Use an external volume"),
        (FILES, {"storage_location": "file:///tmp/x"}, "its files are at file:///tmp/x"),
        (FILES, {"storage_location": "gs://b/x"}, "its files are at gs://b/x.*Use that path"),
        (TABLE, {"table_type": "MANAGED"}, "table of the type MANAGED.*Use an external table"),
        ("uc://main.app.nothing/q", {}, "no volume or table of this name"),
    ],
)
def test_a_place_that_cannot_hold_a_queue_is_refused_with_the_reason(
    catalog: CatalogStandIn, path: str, answer: dict[str, str], said: str
) -> None:
    for named in ("/volumes/main.app.files", "/tables/main.app.queue"):
        catalog.answers[named][1].update(answer)
    with pytest.raises(InvalidOption, match=said):
        Queue.open(path, storage_options=catalog.options)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "answered 403: no way.*WRITE VOLUME"),
        (404, "answered 404: no way.*WRITE VOLUME"),
        (500, "answered 500: no way.*Retry"),
    ],
)
def test_a_refusal_is_passed_on_with_advice(
    catalog: CatalogStandIn, status: int, said: str
) -> None:
    answer = {"error_code": "X", "message": f"no way\n{TOKEN}"}
    catalog.answers["/temporary-volume-credentials"] = status, answer
    with pytest.raises(StorageError, match=said) as caught:
        Queue.open(FILES, storage_options=catalog.options)
    assert caught.value.landed is False
    assert TOKEN not in str(caught.value)


def test_a_wrong_token_is_named_and_not_shown(catalog: CatalogStandIn) -> None:
    options = {**catalog.options, "databricks_token": "expired-token"}
    with pytest.raises(StorageError, match=r"answered 401.*has expired.*databricks_token") as seen:
        Queue.open(FILES, storage_options=options)
    assert "expired-token" not in shown(seen.value)


def test_a_catalog_of_the_environment_that_is_down_is_a_store_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = CatalogStandIn()
    gone.url = f"http://127.0.0.1:{free_port()}"
    for name, value in gone.options.items():
        monkeypatch.setenv(name.upper(), value)
    with pytest.raises(StorageError, match=r"gave no answer.*Retry"):
        Queue.open(FILES)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
def test_an_answer_that_is_no_catalogs_is_named(catalog: CatalogStandIn, body: bytes) -> None:
    catalog.answers["/volumes/main.app.files"] = 200, body
    with pytest.raises((StorageError, InvalidOption), match=r"gave no answer|type None"):
        Queue.open(FILES, storage_options=catalog.options)


def test_the_token_follows_no_redirect(catalog: CatalogStandIn) -> None:
    with running_catalog() as other:
        catalog.answers["/volumes/main.app.files"] = 302, f"{other.url}/stolen".encode()
        with pytest.raises(StorageError, match="answered 302"):
            Queue.open(FILES, storage_options=catalog.options)
        assert other.asked == []


def test_credentials_of_an_unknown_kind_are_named(catalog: CatalogStandIn) -> None:
    answer = {"gcp_oauth_token": {"oauth_token": "x"}}
    catalog.answers["/temporary-volume-credentials"] = 200, answer
    with pytest.raises(StorageError, match="gave gcp_oauth_token"):
        Queue.open(FILES, storage_options=catalog.options)


def test_no_text_of_a_handle_has_the_token(catalog: CatalogStandIn) -> None:
    store = ObjectStore(FILES, {**catalog.options, "aws_region": "eu-west-1"})
    shown = f"{store!r}{catalog_server(catalog.options, {}, FILES)!r}"
    assert TOKEN not in shown
    assert "secret-key" not in shown


# -- renewal -------------------------------------------------------------------------------------


class Answers:
    """Gives each time new credentials that are valid for some seconds from now, or fails."""

    def __init__(self) -> None:
        self.now, self.life, self.count = 1_700_000_000.0, 3600.0, 0
        self.failure: OSError | None = None
        self.during: Callable[[], object] = lambda: None

    def __call__(self) -> dict[str, Any]:
        self.during()
        if self.failure is not None:
            raise self.failure
        self.count += 1
        return keys(f"k{self.count}", self.now + self.life)


@pytest.fixture
def ask() -> Answers:
    return Answers()


@pytest.fixture
def credentials(ask: Answers) -> VendedCredentials:
    return VendedCredentials("uc://c.s.v", "aws", ask, lambda: ask.now)


@pytest.mark.parametrize(("life", "left"), [(3600, 300), (900, 300), (60, 30)])
def test_credentials_are_renewed_before_they_expire(
    credentials: VendedCredentials, ask: Answers, life: float, left: float
) -> None:
    ask.life = life
    assert credentials()["access_key_id"] == "k1-id"
    ask.now += life - left - 1
    assert credentials()["access_key_id"] == "k1-id"
    ask.now += 1
    assert credentials()["access_key_id"] == "k2-id"
    assert ask.count == 2


def test_a_catalog_that_is_down_stops_nobody_while_credentials_are_valid(
    credentials: VendedCredentials, ask: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    credentials()
    ask.failure = ConnectionError("down")
    ask.now += 3400
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert credentials()["access_key_id"] == "k1-id"
    assert len(caplog.records) == 1, "it waits before it asks again"
    assert "valid for 200 s more: down" in caplog.text
    assert "secret-key" not in caplog.text
    ask.now += 200
    with pytest.raises(ConnectionError, match="down"):
        credentials()
    ask.failure = None
    assert credentials()["access_key_id"] == "k2-id"


def test_no_thread_waits_for_a_renewal_while_credentials_are_valid(
    credentials: VendedCredentials, ask: Answers
) -> None:
    credentials()
    ask.now += 3400
    inside, go = threading.Event(), threading.Event()

    def pause() -> None:
        inside.set()
        assert go.wait(30)

    ask.during = pause
    other = threading.Thread(target=credentials)
    other.start()
    assert inside.wait(30)
    assert credentials()["access_key_id"] == "k1-id"
    go.set()
    other.join()
    assert credentials()["access_key_id"] == "k2-id"
    assert ask.count == 2


def test_threads_that_need_the_first_credentials_ask_once(ask: Answers) -> None:
    looks, given = list[float](), list[str]()

    def now() -> float:
        looks.append(ask.now)
        return ask.now

    credentials = VendedCredentials("uc://c.s.v", "aws", ask, now)
    # Eight threads see twice that there are none, and then one of them asks at a third look.
    ask.during = lambda: until(lambda: len(looks) >= 17, "all threads need them")
    side_by_side(lambda: given.append(credentials()["access_key_id"]))
    assert (given, ask.count) == (["k1-id"] * 8, 1)
