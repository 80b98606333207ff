"""The mapping of delta-rs storage options to obstore's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from obstore import store as obstore_stores
from obstore.exceptions import UnknownConfigurationKeyError
from support.handles import shown
from support.rule_variants import returns, rule_variant

from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.storage_options import (
    _CLIENT,
    _CONFIG,
    PROVIDERS,
    StoreOptions,
    is_secret,
    store_options,
)
from spark_mq.errors import InvalidOption

KEY = "c2VjcmV0"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKEY"

IGNORED = StoreOptions()


def config(**given: str) -> StoreOptions:
    return StoreOptions(config=given)


def client(**given: str) -> StoreOptions:
    return StoreOptions(client_options=given)


def retry(**given: Any) -> StoreOptions:
    return StoreOptions(retry_config=given)


def backoff(**given: Any) -> StoreOptions:
    return retry(backoff=given)


MAPPINGS = [
    ("s3", "AWS_ACCESS_KEY_ID", "k", config(access_key_id="k")),
    ("s3", "aws_token", "t", config(session_token="t")),
    ("s3", "AWS_ENDPOINT_URL", "http://h", config(endpoint="http://h")),
    ("s3", "aws_conditional_put", "etag", config(conditional_put="etag")),
    ("s3", "AWS_ROLE_ARN", "a", config(role_arn="a")),
    ("s3", "aws_sts_endpoint", "http://h", config(endpoint_url_sts="http://h")),
    ("s3", "AWS_S3_ADDRESSING_STYLE", "virtual", config(virtual_hosted_style_request="true")),
    ("s3", "AWS_S3_ADDRESSING_STYLE", "path", config(virtual_hosted_style_request="false")),
    ("s3", "allow_http", "TRUE", client(allow_http="true")),
    ("s3", "aws_allow_http", "1", client(allow_http="true")),
    ("s3", "AWS_CONNECT_TIMEOUT", "5s", client(connect_timeout="5s")),
    ("s3", "proxy_url", "http://p", client(proxy_url="http://p")),
    ("s3", "max_retries", "3", retry(max_retries=3)),
    ("s3", "retry_timeout", "1m 30s", retry(retry_timeout=timedelta(seconds=90))),
    ("s3", "backoff_config.init_backoff", "200ms", backoff(init_backoff=timedelta(0, 0.2))),
    ("s3", "max_backoff", "1.5 seconds", backoff(max_backoff=timedelta(seconds=1.5))),
    ("s3", "backoff_config.base", "3", backoff(base=3.0)),
    ("s3", "AWS_S3_ALLOW_UNSAFE_RENAME", "true", IGNORED),
    ("s3", "aws_bucket", "another", IGNORED),
    ("abfs", "azure_storage_access_key", "k", config(account_key="k")),
    ("adl", "AZURE_STORAGE_SAS_TOKEN", "s", config(sas_key="s")),
    ("az", "azure_identity_endpoint", "e", config(msi_endpoint="e")),
    ("az", "AZURE_ALLOW_HTTP", "yes", client(allow_http="true")),
    ("az", "AWS_ACCESS_KEY_ID", "k", IGNORED),
    ("az", "AWS_PROFILE", "p", IGNORED),
    ("gs", "google_service_account_path", "f", config(service_account="f")),
]


@pytest.mark.parametrize(("scheme", "name", "value", "expected"), MAPPINGS)
def test_an_option_goes_to_its_group(scheme: str, name: str, value: str, expected: Any) -> None:
    assert store_options(scheme, {name: value}) == expected


STORES = {
    "aws": ("s3://bucket", obstore_stores.S3Store, {}),
    "azure": ("az://container", obstore_stores.AzureStore, {"account_name": "a"}),
    "google": ("gs://bucket", obstore_stores.GCSStore, {}),
}


@pytest.mark.parametrize("provider", _CONFIG)
def test_obstore_knows_each_name_that_the_mapping_gives_it(provider: str) -> None:
    url, kind, base = STORES[provider]
    keys = set(_CONFIG[provider].values())
    assert [key for key in keys if not knows(kind, url, config={**base, key: "1"})] == []
    for key in _CLIENT:
        assert knows(kind, url, config=base, client_options={key: "1"})
    assert not knows(kind, url, config={**base, "regionx": "1"})
    assert not knows(kind, url, config=base, client_options={"timeoutx": "1"})


def knows(kind: Any, url: str, **groups: Any) -> bool:
    """Return whether obstore knows the names, if not the values."""
    try:
        kind.from_url(url, **groups)
    except UnknownConfigurationKeyError:
        return False
    except Exception as error:
        return "Invalid key" not in str(error)
    return True


@pytest.mark.parametrize("scheme", PROVIDERS)
def test_an_unknown_option_is_named_with_its_nearest_but_without_its_value(scheme: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        store_options(scheme, {"conect_timeout": SECRET})
    assert "'conect_timeout'" in str(caught.value)
    assert "connect_timeout'" in str(caught.value)
    assert caught.value.data == {"option": "conect_timeout"}
    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("path", ["~/key.json", "$HOME/key.json", "${HOME}/key.json"])
@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("gs", "google_service_account"),
        ("gs", "google_application_credentials"),
        ("s3", "aws_web_identity_token_file"),
        ("az", "azure_federated_token_file"),
    ],
)
def test_a_path_that_no_library_expands_is_refused(scheme: str, name: str, path: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}'.*Give the whole path"):
        store_options(scheme, {name: path})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_retries", SECRET),
        ("retry_timeout", SECRET),
        ("retry_timeout", "30"),
        ("backoff.base", SECRET),
        ("aws_conditional_put", f"dynamo:{SECRET}"),
        ("aws_conditional_put", "disabled"),
        ("AWS_PROFILE", SECRET),
        ("AWS_IAM_ROLE_ARN", SECRET),
        ("aws_endpoint_url_s3", SECRET),
        ("azure_storage_connection_string", f"AccountName=a;AccountKey={SECRET}"),
    ],
)
def test_an_option_that_cannot_work_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        store_options("s3", {name: value})
    assert repr(name) in str(caught.value)
    assert value not in str(caught.value).replace(name, "").replace('"30s"', "")
    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\0", "\x7f"])
def test_a_value_that_no_header_can_carry_is_refused(end: str) -> None:
    """Such as a secret with the end of its file. The store's client would panic."""
    for options, around in (
        ({"aws_secret_access_key": SECRET + end}, {}),
        ({}, {"AWS_SECRET_ACCESS_KEY": SECRET + end}),
    ):
        with pytest.raises(
            InvalidOption, match=r"(?i)'aws_secret_access_key'.*line break"
        ) as caught:
            store_options("s3", options, around)
        assert SECRET not in shown(caught.value)
    given = {"secret_access_key": SECRET}  # instead of the variable
    assert store_options("s3", given, {"AWS_SECRET_ACCESS_KEY": end}).config == given


def test_a_document_may_have_several_lines() -> None:
    key = "{\n}\n"
    assert store_options("gs", {"google_service_account_key": key}).config == {
        "service_account_key": key
    }


def test_two_names_of_one_option_must_agree() -> None:
    agreed = store_options("s3", {"AWS_REGION": "a", "region": "a"})
    assert agreed.config == {"region": "a"}
    with pytest.raises(InvalidOption, match=r"AWS_SECRET_ACCESS_KEY.*another value") as caught:
        store_options("s3", {"AWS_SECRET_ACCESS_KEY": SECRET, "secret_access_key": SECRET + "x"})
    assert SECRET not in shown(caught.value)


def test_client_options_of_the_environment_stay_if_others_are_given() -> None:
    environment = {"AWS_ALLOW_HTTP": "true", "AWS_TIMEOUT": "1s", "TIMEOUT": "9s", "AWS_X": "1"}
    found = store_options("s3", {"timeout": "2s"}, environment)
    assert found.client_options == {"timeout": "2s", "allow_http": "true"}
    of_environment = {"timeout": "1s", "allow_http": "true"}
    assert store_options("s3", {}, environment) == StoreOptions(client_options=of_environment)
    assert store_options("gs", {"timeout": "2s"}, environment).client_options == {"timeout": "2s"}


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("s3://b", {"aws_disable_tagging": SECRET}),
        ("s3://b", {"timeout": SECRET}),
        ("az://c", {"account_name": "a", "account_key": SECRET}),
        ("gs://b", {"service_account": f"/nowhere/{SECRET}"}),
    ],
)
def test_a_value_that_obstore_refuses_is_not_shown(root: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption) as caught:
        ObjectStore(root, options)
    assert SECRET not in shown(caught.value)


def test_a_panic_of_obstore_becomes_an_invalid_option() -> None:
    unmapped = StoreOptions(config={"aws_allow_http": SECRET})
    opening = pytest.raises(InvalidOption, match="Opening the object store failed")
    with rule_variant("store_options", returns(unmapped)), opening:
        ObjectStore("s3://b")


@pytest.mark.parametrize(
    ("options", "around", "named"),
    [
        ({"azure_use_emulator": "1", "endpoint": "http://h"}, {}, "endpoint"),
        (
            {},
            {"AZURE_STORAGE_USE_EMULATOR": "True", "AZURE_STORAGE_ENDPOINT": "http://h"},
            "AZURE_STORAGE_ENDPOINT",
        ),
    ],
)
def test_an_endpoint_that_an_emulator_would_ignore_is_refused(
    options: dict[str, str], around: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidOption, match="Remove use_emulator, and give") as caught:
        store_options("az", options, around)
    assert caught.value.option.endswith(named)


def test_an_account_that_the_path_does_not_name_is_refused() -> None:
    """Obstore would use that of the option, and delta-rs that of the path."""
    root = "abfss://c@a.dfs.core.windows.net/q"
    with pytest.raises(InvalidOption, match="'a', and the option another one") as caught:
        ObjectStore(root, {"account_name": "b"})
    assert caught.value.option == "account_name"
    ObjectStore(root, {"account_name": "A", "account_key": KEY})


def test_the_environment_gives_what_no_option_and_no_path_gives() -> None:
    around = {"AWS_REGION": "a", "AWS_S3_ADDRESSING_STYLE": "virtual", "AWS_CONDITIONAL_PUT": "x"}
    with pytest.raises(InvalidOption, match="by etag"):
        store_options("s3", {}, around)
    del around["AWS_CONDITIONAL_PUT"]
    given = {"virtual_hosted_style_request": "true", "region": "b"}
    assert store_options("s3", {"region": "b"}, around).config == given
    named = {"AZURE_STORAGE_ACCOUNT_NAME": "b", "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    assert store_options("abfss", {}, named, account="a").config == {"account_key": KEY}
    assert store_options("az", {}, named).config == {"account_name": "b", "account_key": KEY}


def test_azure_s_long_prefix_in_the_environment_is_obeyed() -> None:
    """Obstore itself would read AZURE_ALLOW_HTTP, and never AZURE_STORAGE_ALLOW_HTTP."""
    long = {"AZURE_STORAGE_ALLOW_HTTP": "true"}
    assert store_options("az", {}, long).client_options == {"allow_http": "true"}
    short = {"AZURE_ALLOW_HTTP": "true"}
    assert store_options("az", {}, short) == StoreOptions(client_options={"allow_http": "true"})
    refused = store_options("az", {"azure_allow_http": "0"}, long).client_options
    assert refused["allow_http"] == "false"


def test_two_servers_share_nothing_though_their_buckets_have_one_name() -> None:
    one = {"endpoint": "https://127.0.0.1:1", "access_key_id": "k", "secret_access_key": "s"}
    other = {**one, "endpoint": "https://127.0.0.1:2"}
    keys = {ObjectStore(root, one).key for root in ("s3://b/a b", "s3a://b/a%20b/")}
    assert len(keys) == 1
    assert ObjectStore("s3://b/a b", other).key not in keys
    child = ObjectStore("s3://b/a b", one).child("c%d")
    assert child.key == ObjectStore("S3://b/a b/c%25d", one).key


def test_names_of_secrets_are_known() -> None:
    secrets = ["AWS_SECRET_ACCESS_KEY", "aws_session_token", "account_key", "azure_client_secret"]
    secrets += ["azure_storage_sas_token", "sas_key", "google_service_account_key", "proxy_url"]
    secrets += ["azure_storage_connection_string", "AZURE_STORAGE_CONNECTION_STRING"]
    assert all(is_secret(name) for name in secrets)
    assert not any(is_secret(name) for name in ("AWS_REGION", "endpoint", "timeout"))


@pytest.mark.parametrize(
    ("scheme", "options", "around", "named"),
    [
        ("s3", {}, {"AWS_ENDPOINT_URL": "HTTP://h"}, "AWS_ENDPOINT_URL"),
        ("s3", {"AWS_ENDPOINT": "http://h", "allow_http": "no"}, {"AWS_ALLOW_HTTP": "1"},
         "AWS_ENDPOINT"),
        ("gs", {"google_base_url": "http://h"}, {"AWS_ALLOW_HTTP": "true"}, "google_base_url"),
        ("az", {}, {"AZURE_STORAGE_ENDPOINT": "http://h"}, "AZURE_STORAGE_ENDPOINT"),
    ],
)  # fmt: skip
def test_a_server_without_tls_must_be_allowed(
    scheme: str, options: dict[str, str], around: dict[str, str], named: str
) -> None:
    """Obstore would refuse each request, and the error would advise to try again."""
    with pytest.raises(InvalidOption, match=r"http://.*_allow_http=") as caught:
        store_options(scheme, options, around)
    assert caught.value.option == named
    allowed = {name: text for name, text in options.items() if name != "allow_http"}
    assert store_options(scheme, {**allowed, "allow_http": "true"}, around)


def test_a_server_with_tls_or_an_allowed_one_is_fine() -> None:
    for scheme, options, around, endpoint in (
        ("s3", {"endpoint": "https://h"}, {"AWS_ENDPOINT_URL": "http://other"}, "https://h"),
        ("s3", {}, {"AWS_ENDPOINT_URL": "http://h", "AWS_ALLOW_HTTP": "true"}, "http://h"),
        ("az", {"use_emulator": "true"}, {}, None),
        ("az", {"use_emulator": "false", "endpoint": "https://h"}, {}, "https://h"),
    ):
        config = store_options(scheme, options, around).config
        assert config.get("endpoint") == endpoint
