"""The texts that name one place have one canonical text."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.delta.object_store import absolute_path, canonical_path, canonical_uri


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/q", "s3a://b/q"),
        ("s3://b/q/", "S3://b/q"),
        ("abfs://c@a/q", "abfss://c@a/q"),
        ("s3://b/a b/ü", "s3://b/a%20b/%C3%BC"),
        ("gs://b/100%25", "GS://b/100%"),
        ("az://c@a.blob.core.windows.net/q", "abfss://c@A.dfs.core.windows.net/q"),
        ("https://A.blob.core.windows.net/c/q/", "abfss://c@a.dfs.core.windows.net/q"),
        ("HTTPS://a.dfs.core.windows.net/c/q", "abfss://c@a.dfs.core.windows.net/q"),
    ],
)
def test_texts_that_name_one_place(one: str, other: str) -> None:
    assert canonical_path(absolute_path(one)) == canonical_path(absolute_path(other))
    assert canonical_path(one) != canonical_path(one.rstrip("/") + "2")


@pytest.mark.parametrize(
    "options", [{"azure_storage_account_name": "A"}, {"account_name": "a", "use_emulator": "true"}]
)
def test_options_name_the_account_that_the_path_does_not(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    full = canonical_path("abfss://c@a.dfs.core.windows.net/q", options)
    for text in ("az://c/q", "azure://c/q/", "abfs://c/q", "adl://c/q"):
        assert canonical_path(text, options) == full
        assert canonical_path(text, {**options, "timeout": "5s"}) == full
        assert canonical_path(text) != full
        assert canonical_path(text) == "az://c/q"
    assert canonical_path("abfss://c@b.dfs.core.windows.net/q") != full
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    assert canonical_path("az://c/q") == full


def test_what_is_no_place_of_a_known_store_stays_as_it_is(tmp_path: Path) -> None:
    assert canonical_path("uc://main.app.files/q/") == "uc://main.app.files/q"
    assert canonical_path(str(tmp_path / "a%20b")) == str(tmp_path / "a%20b")
    assert canonical_uri(str(tmp_path / "link")) == str(tmp_path / "link")
