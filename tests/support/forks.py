"""What a function does in a forked process."""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any


def in_a_fork(act: Callable[[], Any]) -> Any:
    """What a function returns or raises in a forked process. One that hangs is killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                answer = act()
            except BaseException as error:
                answer = error
            os.write(write, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], 30)
        if not ready:
            os.kill(child, signal.SIGKILL)
        data = os.read(read, 65_536)
    finally:
        os.close(read)
        os.waitpid(child, 0)
    assert data, "the forked process hangs, or died"
    return pickle.loads(data)
