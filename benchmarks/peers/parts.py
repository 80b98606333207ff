"""The parts that measure the peers, as bench.py runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from figures import Result

from peers import part_drain, part_processes, part_publish, part_python
from peers.sizes import Sizes

MODULES = {
    "peers-python": part_python,
    "peers-processes": part_processes,
    "peers-publish": part_publish,
    "peers-drain": part_drain,
}


def parts(sizes: Sizes) -> dict[str, Callable[[Path, int], Iterator[Result]]]:
    """Each part by its name. A part takes an empty folder and the rounds."""
    return {name: partial(module.run, sizes=sizes) for name, module in MODULES.items()}


def expected(name: str, sizes: Sizes) -> set[str]:
    """The names of the figures that a part gives; of other parts nothing is known here."""
    return MODULES[name].figures(sizes) if name in MODULES else set()
