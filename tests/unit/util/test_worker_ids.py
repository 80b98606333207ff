"""The id of a worker starts with the id of its process, by which others find it."""

from __future__ import annotations

import os

from spark_mq.util import user


def test_an_identity_is_that_of_a_process_and_an_older_version_has_the_name_alone() -> None:
    mine = user.identify_worker("w")
    assert mine == user.identify_worker("w") != "w"
    assert user._process_id(-1) != user._process_id(os.getpid()), "a fork has another pid"
    assert [user.worker_label(known) for known in (mine, "w", None)] == ["w", "w", None]
    assert user.process_of("host-1") == ("host-1", False)
