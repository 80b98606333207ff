"""The id of a worker starts with the id of its process, by which others find it."""

from __future__ import annotations

import os

from spark_mq.util import user
from spark_mq.util.user import identify_worker, process_of, worker_label


def test_an_identity_is_that_of_a_process_and_an_older_version_has_the_name_alone() -> None:
    assert identify_worker("w") == identify_worker("w") != "w"
    assert user._process_id(-1) != user._process_id(os.getpid()), "a fork has another pid"
    assert worker_label("host-1") == worker_label(identify_worker("host-1")) == "host-1"
    assert process_of("host-1") == ("host-1", False)
    assert worker_label(None) is None
