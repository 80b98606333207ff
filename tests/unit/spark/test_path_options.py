"""The option ``path`` of the source and the sink names a place for the tasks, too."""

from __future__ import annotations

import json

import pytest

from spark_mq.errors import InvalidOption
from spark_mq.spark.options import ReadOptions, WriteOptions


def test_the_driver_resolves_a_path_for_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have another home, and another working directory."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir("/")
    for given, path in [("~/q", "/home/me/q"), ("file:///a%20b", "/a b"), ("q", "/q")]:
        assert WriteOptions.parse({"path": given}).path == path
        assert ReadOptions.parse({"path": given}).paths == (path,)
        assert ReadOptions.parse({"path": json.dumps([given, "/x"])}).paths == (path, "/x")


@pytest.mark.parametrize("path", ["$HOME/q", ""])
def test_a_path_that_nobody_means_is_refused(path: str) -> None:
    for parse in (WriteOptions.parse, ReadOptions.parse):
        with pytest.raises(InvalidOption) as caught:
            parse({"path": path})
        assert caught.value.data["option"] == "path"
