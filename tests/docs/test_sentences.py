"""Sentences of the pages that name figures and reasons of the code."""

from __future__ import annotations

import re
from pathlib import Path

from support.blocks import ROOT

from spark_mq.ledger import acquire, settle, transitions
from spark_mq.parquet.files import MAX_KEPT_BYTES


def words(name: str | Path) -> str:
    """The text of a page in one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_the_price_of_an_idle_queue_is_the_computed_one() -> None:
    """The console of the page, which the examples run, prints it."""
    computed = re.search(r"dollars\(idle_processes=1\).*\n([0-9.]+)\n",
                         (ROOT / "docs/howto/sizing.md").read_text())  # fmt: skip
    assert computed is not None
    assert f"[{computed[1]} dollars a month]" in words("docs/faq.md")


def test_the_pages_name_the_memory_of_decoded_messages() -> None:
    shown = f"{MAX_KEPT_BYTES // 2**20} MiB"
    assert f"keeps up to {shown} of decoded messages" in words("docs/howto/sizing.md")
    assert f"keeps {shown} at most" in words("docs/reference/storage.md")


def test_the_reference_names_every_reason_of_a_dead_message() -> None:
    reasons = {
        settle.REJECTED, acquire.UNREADABLE, transitions.ATTEMPT_LIMIT, transitions.FAILURE_LIMIT,
        transitions.AGE_LIMIT, transitions.EXPIRED, transitions.REQUESTED,
    }  # fmt: skip
    (sentence,) = re.findall(r"`reason` is (.*?) ## ", words("docs/reference/tables.md"))
    assert set(re.findall(r"`([a-z_ ]+)`", sentence)) - {"expires_at"} == reasons


def test_the_changelog_has_one_version_that_is_not_released() -> None:
    headings = re.findall(r"^## (\[.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    unreleased = [heading for heading in headings if "unreleased" in heading]
    assert unreleased in ([], headings[:1])
